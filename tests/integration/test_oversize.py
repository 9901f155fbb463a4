"""What is larger than a message: it goes through the object store, or is an error; nothing hangs and all else goes on.

Most tests run with a limit of LIMIT bytes for a message instead of 256 MiB.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from shared_runtime import Sharing
from skate._message_limits import FRAME_BYTES_MAX, TEXT_BYTES_MAX, VARIABLE, limits
from skate._worker import current
from skate.cluster_utils import Cluster
from skate.exceptions import ActorDiedError, InternalError, MessageTooLargeError, TaskError, WorkerCrashedError
from skate.strategies import In, NodeLabelSchedulingStrategy
from waiting import wait_for

LIMIT = 4 << 20
#: Each travels inside messages, and COUNT of them are more than a message may have.
SIZE = 90_000
COUNT = 60
#: References that take more than a message.
REFERENCES = 120_000
TIMEOUT_S = 50

HERE = skate.remote(resources={"second": 1})


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In this process and in all that it starts."""
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    limits.set(LIMIT)
    yield
    limits.set(FRAME_BYTES_MAX)


@pytest.fixture(scope="module")
def small_nodes(sharing: Sharing) -> Iterator[Cluster]:
    """Two nodes whose workers have the small limit. A driver that joins them takes a fifth of the time of two nodes."""
    assert not sharing.end()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(LIMIT))
        cluster = Cluster(initialize_head=True)
        cluster.add_node(num_cpus=2, resources={"second": 2})
    with cluster:
        yield cluster


@pytest.fixture(params=["alone", "cluster"])
def here(request: pytest.FixtureRequest, small_limit: None, small_nodes: Cluster) -> Iterator[None]:
    """A node with the resource "second", whose workers have the small limit as this process has."""
    if request.param == "alone":
        with skate.init(num_cpus=2, resources={"second": 2}):
            yield
        return
    small_nodes.connect()
    yield
    skate.shutdown()


@pytest.fixture
def own_here(small_limit: None, anywhere: None) -> None:
    """The same, for a test whose workers have an environment of their own: the process that they come from stays."""


@pytest.fixture
def others_take_less(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process does not know that the others take no more than LIMIT."""
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    with skate.init(num_cpus=1, resources={"second": 1}):
        yield


@pytest.fixture
def we_take_less(fresh_runtime: Any) -> Iterator[None]:
    """The others do not know that this process takes no more than LIMIT."""
    limits.set(LIMIT)
    yield
    limits.set(FRAME_BYTES_MAX)


def get(ref: Any) -> Any:
    return skate.get(ref, timeout=TIMEOUT_S)


def piece(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SIZE // 4)


@HERE
def echo(*values: Any, **named: Any) -> tuple[int, int]:
    """How many there are, and how long they are together."""
    everything = [*values, *named.values()]
    return len(everything), sum(map(len, everything))


@HERE
def make(number: int) -> bytes:
    return piece(number)


def sleep_for_long(sign: Path) -> None:
    sign.touch()
    time.sleep(1000)


def works() -> None:
    """The same worker, and the channel to it, do what they did before."""
    assert get(echo.remote(b"abc")) == (1, 3)


# -- the real limit ----------------------------------------------------------------------------------------------------


def test_an_error_with_a_text_of_70_megabytes_arrives(fresh_runtime: Any) -> None:
    @skate.remote(max_retries=0)
    def f(size: int) -> int:
        if size:
            raise ValueError("x" * size)
        return 1

    with pytest.raises(ValueError, match=r"xxx$") as info:
        get(f.remote(70_000_000))
    assert len(info.value.args[0]) == 70_000_000
    assert get(f.remote(0)) == 1


class Watched(bytes):
    """Is not printed as a whole."""

    def __repr__(self) -> str:
        raise AssertionError("all of it is printed")


@pytest.mark.parametrize("how", ["list", "several", "cause", "context", "group"])
def test_an_error_with_an_argument_of_300_megabytes_arrives_and_is_not_printed_as_a_whole(
    fresh_runtime: Any, how: str
) -> None:
    if how == "group" and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no groups")

    @skate.remote(max_retries=0)
    def f() -> None:
        large = ValueError([Watched(300_000_000)])
        if how == "list":
            raise large
        if how == "several":
            raise KeyError(1, {2: Watched(300_000_000)})
        if how == "group":
            raise ExceptionGroup("both", [large, TypeError("small")])  # noqa: F821 - Python 3.11 and later
        try:
            raise large
        except ValueError as error:
            if how == "cause":
                raise RuntimeError("with a cause") from error
            raise RuntimeError("with a context")  # noqa: B904 - that is what is tried

    with pytest.raises(TaskError) as info:
        get(f.remote())
    text = str(info.value)
    assert len(text) < 40_000
    assert "(300,000,000 bytes in all)" in text
    if how in ("list", "several"):
        assert f"(sent without args[{int(how == 'several')}], 286.1 MiB: an error may have 128.0 MiB)" in text
    if how == "cause":
        assert isinstance(info.value.__cause__, ValueError), "the cause arrives without its argument"
    if how == "group":
        assert [type(each).__name__ for each in info.value.exceptions] == ["ValueError", "TypeError"]
    assert len(repr(info.value)) < 40_000


# -- out and back ------------------------------------------------------------------------------------------------------


def test_many_small_returns_arrive(here: None) -> None:
    values = get(HERE(lambda: [piece(number) for number in range(COUNT)]).options(num_returns=COUNT).remote())
    assert values == [piece(number) for number in range(COUNT)]
    works()


def test_so_do_those_of_a_dynamic_generator(here: None) -> None:
    generator = get(HERE(lambda: map(piece, range(COUNT))).options(num_returns="dynamic").remote())
    assert get(list(generator)) == [piece(number) for number in range(COUNT)]
    works()


def test_so_do_those_of_a_streaming_generator(here: None) -> None:
    def numbers() -> Iterator[bytes]:
        yield from map(piece, range(COUNT))

    assert [get(ref) for ref in HERE(numbers).remote()] == [piece(number) for number in range(COUNT)]
    works()


def test_many_small_arguments_arrive(here: None) -> None:
    assert get(echo.remote(*map(piece, range(COUNT)))) == (COUNT, COUNT * SIZE)
    assert get(echo.remote(**{f"p{number}": piece(number) for number in range(COUNT)})) == (COUNT, COUNT * SIZE)
    assert get(echo.remote(*["x"] * 2_000_000)) == (2_000_000, 2_000_000)
    works()


def test_so_do_references_among_many_small_arguments_and_inside_them(here: None) -> None:
    @HERE
    def f(first: bytes, inside: list[Any], *rest: bytes, last: bytes) -> bool:
        return first == last == skate.get(inside[0]) == piece(7) and rest == tuple(map(piece, range(COUNT)))

    ref = make.remote(7)
    assert get(f.remote(ref, [ref], *map(piece, range(COUNT)), last=ref))
    works()


def test_many_references_to_small_values_arrive(here: None) -> None:
    refs = [make.remote(number) for number in range(COUNT)]
    assert get(echo.remote(*refs)) == (COUNT, COUNT * SIZE)
    assert get(HERE(lambda *values: list(values)).remote(*refs)) == [piece(number) for number in range(COUNT)]
    works()


def test_so_do_those_to_values_of_another_process(here: None) -> None:
    @skate.remote
    def pass_on(refs: list[Any]) -> tuple[int, int]:
        return skate.get(echo.remote(*refs))  # type: ignore[no-any-return]

    assert get(pass_on.remote([skate.put(piece(number)) for number in range(COUNT)])) == (COUNT, COUNT * SIZE)


def test_many_tasks_with_large_arguments_are_sent_in_several_messages(here: None) -> None:
    get(echo.remote())
    assert set(get([echo.remote(piece(number)) for number in range(10 * COUNT)])) == {(1, SIZE)}


LARGE: dict[str, Callable[[], Any]] = {
    "text": lambda: "x" * (2 * LIMIT),
    "number": lambda: 1 << (16 * LIMIT),
    "bytes": lambda: b"x" * (2 * LIMIT),
    "list": lambda: [f"{number}" for number in range(LIMIT // 4)],
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_value_is_stored_whatever_it_is(here: None, kind: str) -> None:
    value = LARGE[kind]()
    ref = skate.put(value)
    assert get(ref) == value
    assert get(HERE(lambda value, refs: value == skate.get(refs[0])).remote(ref, [ref]))
    assert get(HERE(lambda: LARGE[kind]()).remote()) == value


# -- errors ------------------------------------------------------------------------------------------------------------


class Broken(ValueError):
    def __init__(self, message: str, data: bytes) -> None:
        super().__init__(message)
        self.data = data


def test_an_error_with_a_large_attribute_arrives_without_it(here: None) -> None:
    @HERE
    def f() -> None:
        raise Broken("bad", bytes(LIMIT))

    with pytest.raises(ValueError, match=r"sent without data, 4\.0 MiB") as info:
        get(f.remote())
    assert isinstance(info.value, TaskError)
    assert str(info.value).endswith("bad")
    assert not hasattr(info.value, "data")
    works()


def test_one_with_a_large_text_arrives_with_its_ends(here: None) -> None:
    def f() -> None:
        raise KeyError("begin" + "x" * LIMIT + "end")

    for ref in (HERE(f).remote(), *HERE(f).options(num_returns=2).remote()):
        with pytest.raises(KeyError, match=r"begin.*characters in all.*end"):
            get(ref)
    works()


def test_one_of_a_generator_is_its_last_item(here: None) -> None:
    def f() -> Iterator[int]:
        yield 1
        raise Broken("bad", bytes(LIMIT))

    first, last = HERE(f).remote()
    assert get(first) == 1
    with pytest.raises(ValueError, match="sent without data"):
        get(last)


# -- actors ------------------------------------------------------------------------------------------------------------


@HERE
class Actor:
    def __init__(self, *values: bytes) -> None:
        self.size = sum(map(len, values))

    def echo(self, *values: bytes) -> int:
        return self.size + sum(map(len, values))

    def make(self, count: int) -> list[bytes]:
        return [piece(number) for number in range(count)]

    def fail(self) -> None:
        raise Broken("bad", bytes(LIMIT))

    async def nothing(self) -> None:
        """Because of it calls run on an event loop."""


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_actor_takes_and_returns_as_much_as_a_task(here: None, concurrency: int) -> None:
    @HERE
    class Plain:
        def __init__(self, *values: bytes) -> None:
            self.size = sum(map(len, values))

        def echo(self, *values: bytes) -> int:
            return self.size + sum(map(len, values))

        def make(self, count: int) -> list[bytes]:
            return [piece(number) for number in range(count)]

        def fail(self) -> None:
            raise Broken("bad", bytes(LIMIT))

    refs = [make.remote(number) for number in range(COUNT)]
    actor = Plain.options(max_concurrency=concurrency).remote(*refs)  # type: ignore[attr-defined]
    assert get(actor.echo.remote()) == COUNT * SIZE
    assert get(actor.echo.remote(*map(piece, range(COUNT)))) == 2 * COUNT * SIZE
    assert get(actor.echo.remote(*refs)) == 2 * COUNT * SIZE
    assert get(actor.make.options(num_returns=COUNT).remote(COUNT)) == [piece(number) for number in range(COUNT)]
    with pytest.raises(ValueError, match="sent without data"):
        get(actor.fail.remote())
    assert set(get([actor.echo.remote(piece(number)) for number in range(5 * COUNT)])) == {(COUNT + 1) * SIZE}


def test_so_does_one_with_coroutines(here: None) -> None:
    refs = [make.remote(number) for number in range(COUNT)]
    actor = Actor.remote(*map(piece, range(COUNT)))  # type: ignore[attr-defined]
    assert get(actor.echo.remote(*refs)) == 2 * COUNT * SIZE
    assert get(actor.make.options(num_returns=COUNT).remote(COUNT)) == [piece(number) for number in range(COUNT)]
    with pytest.raises(ValueError, match="sent without data"):
        get(actor.fail.remote())


def test_a_large_error_of_a_constructor_is_the_reason_of_the_death(here: None) -> None:
    @HERE
    class Fails:
        def __init__(self) -> None:
            raise Broken("bad", bytes(LIMIT))

        def f(self) -> None: ...

    with pytest.raises(ActorDiedError, match="sent without data"):
        get(Fails.remote().f.remote())  # type: ignore[attr-defined]
    works()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The remote")
@pytest.mark.parametrize("size", [1_000_000, 20_000_000])
def test_what_a_process_says_last_arrives_also_if_it_fills_the_socket(fresh_runtime: Any, size: int) -> None:
    @skate.remote
    class Failing:
        def __init__(self) -> None:
            raise ValueError("y" * size)

        def call(self) -> None: ...

    @skate.remote(max_calls=1, max_retries=0)
    def fail() -> None:
        raise ValueError("z" * size)

    @skate.remote(max_calls=1, max_retries=0, num_returns=100)
    def many() -> list[bytes]:
        return [bytes(50_000)] * 100

    with pytest.raises(ActorDiedError, match="its __init__ raised") as died:
        skate.get(Failing.options(max_restarts=1).remote().call.remote(), timeout=TIMEOUT_S)
    assert "y" * size in str(died.value)
    with pytest.raises(ValueError, match="z" * 1000):
        skate.get(fail.remote(), timeout=TIMEOUT_S)
    assert skate.get(many.remote(), timeout=TIMEOUT_S) == [bytes(50_000)] * 100


def test_a_function_that_captures_too_much_is_an_error_where_it_is_called(here: None) -> None:
    data = bytes(LIMIT)
    with pytest.raises(MessageTooLargeError, match=r"the remote function .* captures .*'data'.*\n.*4\.0 MiB") as info:
        HERE(lambda: len(data)).remote()
    assert info.value.size_bytes > LIMIT
    assert info.value.limit_bytes == limits.definition
    works()


@pytest.mark.filterwarnings("ignore:The remote")
def test_so_is_a_class(here: None) -> None:
    class Large:
        data = bytes(LIMIT)

    with pytest.raises(MessageTooLargeError, match=r"the remote class .*Large.*\n.*4\.0 MiB"):
        HERE(Large).remote()
    works()


@pytest.mark.filterwarnings("ignore:The remote")
def test_what_is_just_below_the_limit_works(here: None) -> None:
    data = bytes(limits.definition - 100_000)

    class Large:
        content = data

        def __init__(self, *values: bytes) -> None:
            self.size = sum(map(len, values))

        def total(self) -> int:
            return self.size + len(self.content)

    assert get(HERE(lambda: len(data)).remote()) == len(data)
    actor = HERE(Large).remote(*[make.remote(number) for number in range(COUNT)])
    assert get(actor.total.remote()) == len(data) + COUNT * SIZE


def test_a_task_with_too_many_references_fails(here: None) -> None:
    ref = skate.put(1)
    with pytest.raises(MessageTooLargeError, match="the call is too large"):
        get(HERE(lambda refs: len(refs)).remote([skate.put(None) for _ in range(REFERENCES)]))
    works()
    assert get(ref) == 1


def test_so_does_one_that_returns_them(here: None) -> None:
    with pytest.raises(MessageTooLargeError, match="the result of the task is too large"):
        get(HERE(lambda: [skate.put(None) for _ in range(REFERENCES)]).remote())
    works()


def test_so_does_an_item_that_has_them_inside_and_the_stream_goes_on(here: None) -> None:
    def items() -> Iterator[Any]:
        yield [skate.put(None) for _ in range(REFERENCES)]
        yield 2

    first, second = HERE(items).remote()
    with pytest.raises(MessageTooLargeError, match="the item is too large"):
        get(first)
    assert get(second) == 2
    works()


def test_so_does_the_value_of_a_borrowed_reference_that_has_them_inside(here: None) -> None:
    value = skate.put([skate.put(None) for _ in range(REFERENCES)])

    @HERE
    def read(refs: list[Any]) -> int:
        return len(skate.get(refs[0]))

    with pytest.raises(MessageTooLargeError, match="the value is too large"):
        get(read.remote([value]))
    assert len(get(value)) == REFERENCES
    works()


def test_so_does_an_actor_that_is_given_them(here: None) -> None:
    @HERE
    class Holder:
        def __init__(self, refs: list[Any]) -> None: ...

        def f(self) -> None: ...

    with pytest.raises(ActorDiedError, match="what it takes to make an actor"):
        get(Holder.remote([skate.put(None) for _ in range(REFERENCES)]).f.remote())  # type: ignore[attr-defined]
    works()


@pytest.mark.parametrize(
    "options",
    [
        {"resources": {"x" * LIMIT: 1}},
        {"resources": {f"resource {number}": 1 for number in range(LIMIT // 20)}},
        {"runtime_env": {"env_vars": {"X": "x" * LIMIT}}},
        {"runtime_env": {"env_vars": {f"X{number}": "ä" * 1000 for number in range(60)}}},
        {"name": "x" * LIMIT},
        {"label_selector": {"zone": "x" * LIMIT}},
        {"accelerator_type": "x" * LIMIT},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_is_too_large_is_an_error_where_it_is_given(here: None, options: dict[str, Any]) -> None:
    class A:
        pass

    for kind in (echo, skate.remote(A)):
        with pytest.raises(ValueError, match="102,400") as info:
            kind.options(**options).remote()
        assert type(info.value) is ValueError
        assert next(iter(options)) in str(info.value)
        assert len(str(info.value)) < 1000
    works()


def test_options_that_are_just_not_too_large_work(own_here: None) -> None:
    @skate.remote
    class A:
        def name(self) -> str | None:
            return skate.get_runtime_context().get_actor_name()

    name = "x" * TEXT_BYTES_MAX
    value = "ä" * (TEXT_BYTES_MAX // 2 - 1)
    read = skate.remote(lambda: os.environ["XX"]).options(runtime_env={"env_vars": {"XX": value}}, name=name)
    assert get(read.remote()) == value
    actor = A.options(name=name, concurrency_groups={name: 1}).remote()
    assert get(actor.name.remote()) == name
    assert skate.get_actor(name) == actor


def test_so_are_names_and_labels_elsewhere(here: None) -> None:
    long = "x" * LIMIT
    with pytest.raises(ValueError, match="102,400"):
        skate.get_actor(long)
    with pytest.raises(ValueError, match="102,400"):
        skate.util.placement_group([{"CPU": 1}], name=long)
    with pytest.raises(ValueError, match="102,400"):
        NodeLabelSchedulingStrategy(hard={"zone": In(long)})
    with pytest.raises(ValueError, match=r"1,000,000, and 100,000 are the most"):
        skate.util.placement_group([{"CPU": 1}] * 1_000_000)
    with pytest.raises(MessageTooLargeError, match="use shorter names"):
        skate.util.placement_group([{long: 1}])
    works()


def test_a_key_that_is_too_large_is_an_error(here: None) -> None:
    with pytest.raises(ValueError, match="65536 is the most"):
        skate.kv.put("k" * (2 * LIMIT), b"")
    with pytest.raises(MessageTooLargeError, match=r"a request to the node \(Topic\)"):
        skate.pubsub.publish("t" * (2 * LIMIT), b"")
    for number in range(LIMIT // 60_000 + 5):
        skate.kv.put(f"{number:03}".ljust(60_000, "k"), b"")
    with pytest.raises(MessageTooLargeError, match="there is no answer: the answer has"):
        skate.kv.keys()
    skate.kv.put("small", b"1")
    assert skate.kv.get("small") == b"1"


# -- a receiver that refuses -------------------------------------------------------------------------------------------


def test_a_worker_that_refuses_a_call_says_so_and_takes_the_next(others_take_less: None) -> None:
    refs = [skate.put(piece(number)) for number in range(COUNT)]
    for _ in range(3):
        with pytest.raises(MessageTooLargeError, match="the call is too large") as info:
            get(echo.remote(*refs))
        assert info.value.limit_bytes == LIMIT
        works()


def test_an_actor_that_refuses_a_call_takes_the_next(others_take_less: None) -> None:
    refs = [skate.put(piece(number)) for number in range(COUNT)]
    actor = Actor.remote()  # type: ignore[attr-defined]
    for _ in range(3):
        with pytest.raises(MessageTooLargeError, match="the call is too large"):
            get(actor.echo.remote(*refs))
        assert get(actor.echo.remote(b"abc")) == 3


@pytest.mark.filterwarnings("ignore:The remote")
def test_a_worker_that_refuses_a_function_says_so_for_each_of_its_tasks(others_take_less: None) -> None:
    data = bytes(2 * LIMIT)
    f = HERE(lambda: len(data))
    for _ in range(3):
        with pytest.raises(MessageTooLargeError, match="the remote function was not received: a message of 83"):
            get(f.remote())
        works()


def test_a_result_that_is_refused_fails_its_task(we_take_less: None) -> None:
    f = skate.remote(max_retries=0)(lambda count: [piece(number) for number in range(count)])
    for _ in range(3):
        for ref in f.options(num_returns=COUNT).remote(COUNT)[:2]:
            with pytest.raises(MessageTooLargeError, match="the result of the task is too large"):
                get(ref)
        assert get(f.remote(1)) == [piece(0)]


def test_between_nodes_nothing_is_sent_again_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    with Cluster(initialize_head=True) as cluster:
        cluster.add_node(num_cpus=1, resources={"second": 1})
        cluster.connect()
        refs = [skate.put(piece(number)) for number in range(COUNT)]
        for _ in range(2):
            with pytest.raises(MessageTooLargeError, match="the call is too large"):
                get(echo.remote(*refs))
            works()
        skate.shutdown()


# -- what is no message at all -----------------------------------------------------------------------------------------

#: A frame of five bytes that msgpack cannot read.
GARBAGE = b"\x05\0\0\0\xc1\xc1\xc1\xc1\xc1"


def test_a_worker_that_is_sent_garbage_ends_and_its_task_is_told(tmp_path: Path) -> None:
    f = skate.remote(max_retries=0)(lambda: 1)
    with skate.init(num_cpus=1):
        assert get(f.remote()) == 1
        slow = skate.remote(max_retries=0)(sleep_for_long).remote(tmp_path / "runs")
        wait_for((tmp_path / "runs").exists, 30, "the task to run")
        (worker,) = current.get_runtime().peers.all()
        worker.channel.sock.send(GARBAGE)
        with pytest.raises(WorkerCrashedError, match="not a message"):
            get(slow)
        assert get(f.remote()) == 1


def test_a_driver_that_is_sent_garbage_says_so() -> None:
    @skate.remote(max_retries=0)
    def garble() -> None:
        executor = current.get_runtime().executor
        executor._owner.channel.sock.send(GARBAGE)
        time.sleep(1000)

    with skate.init(num_cpus=1), pytest.raises(InternalError, match="not a message"):
        get(garble.remote())
