"""Small modules that programs written for Ray import: each does what its name says."""

from __future__ import annotations

import io
import pickle
import re
import socket
import subprocess
import sys
import threading
import types
import warnings
from typing import Any

import cloudpickle
import pytest

import skate
from skate import exceptions
from skate._serialize.diagnose import find_culprit
from skate._serialize.values import serialize
from skate.experimental import tqdm_ray
from skate.util import annotations, debug, metrics

# --- annotations ------------------------------------------------------------------------------------------------------


def test_annotations_is_a_module_of_util() -> None:
    assert isinstance(annotations, types.ModuleType)
    code = "from skate.util import annotations; import types; assert isinstance(annotations, types.ModuleType)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("mark", "kind", "says"),
    [
        (annotations.PublicAPI, "PUBLIC_API", ""),
        (annotations.PublicAPI(stability="beta"), "PUBLIC_API", "**PublicAPI (beta):**"),
        (annotations.PublicAPI(api_group="Tuning"), "PUBLIC_API", ""),
        (annotations.DeveloperAPI, "DEVELOPER_API", "**DeveloperAPI:**"),
        (annotations.DeveloperAPI(api_group="Tuning"), "DEVELOPER_API", "**DeveloperAPI:**"),
        (annotations.Deprecated, "DEPRECATED", "**Deprecated:**"),
        (annotations.Deprecated(message="Use g."), "DEPRECATED", "removed. Use g."),
    ],
)
def test_a_mark_leaves_the_function_as_it_is_and_adds_a_note(mark: Any, kind: str, says: str) -> None:
    def f(x: int) -> int:
        """Double it."""
        return 2 * x

    class C:
        """A class."""

    marked = mark(f)
    assert marked is f
    assert marked(4) == 8
    assert marked._annotated_type is annotations.AnnotationType[kind]
    assert marked.__doc__.startswith("Double it.")
    assert says in marked.__doc__
    assert mark(C) is C
    assert C._annotated == "C"  # type: ignore[attr-defined]


def test_what_is_deprecated_warns_if_it_is_to() -> None:
    @annotations.Deprecated(message="Use h.", warning=True)
    def g() -> int:
        return 1

    @annotations.Deprecated(warning=True)
    class Old:
        def __init__(self, x: int) -> None:
            self.x = x

    with pytest.warns(annotations.RayDeprecationWarning, match="g is deprecated and will be removed. Use h."):
        assert g() == 1
    with pytest.warns(annotations.RayDeprecationWarning, match="Old is deprecated"):
        assert Old(3).x == 3
    quiet = annotations.Deprecated(lambda: 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quiet() == 2


def test_a_stability_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="stable, beta, alpha"):
        annotations.PublicAPI(stability="shaky")


# --- once -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "_said_at", {})
    monkeypatch.setattr(debug, "_is_disabled", False)
    monkeypatch.setattr(debug, "_is_periodic", False)


@pytest.mark.usefixtures("fresh_log")
def test_each_key_is_new_once() -> None:
    assert [debug.log_once(key) for key in ("a", "b", "a", "b")] == [True, True, False, False]
    debug.reset_log_once("a")
    assert [debug.log_once(key) for key in ("a", "b")] == [True, False]
    debug.reset_log_once()
    assert [skate.util.log_once(key) for key in ("a", "b")] == [True, True]


@pytest.mark.usefixtures("fresh_log")
def test_periodic_logging_makes_keys_new_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(debug.time, "monotonic", lambda: now)
    debug.enable_periodic_logging()
    assert debug.log_once("a")
    now += debug.PERIOD_S / 2
    assert not debug.log_once("a")
    now += debug.PERIOD_S
    assert debug.log_once("a")
    debug.disable_log_once_globally()
    assert not debug.log_once("never asked for")


# --- pickling ---------------------------------------------------------------------------------------------------------


def test_cloudpickle_pickles_what_pickle_does_not() -> None:
    from skate import cloudpickle

    captured = 5
    data = cloudpickle.dumps(lambda x: x + captured)
    assert cloudpickle.loads(data)(1) == pickle.loads(data)(1) == 6
    file = io.BytesIO()
    cloudpickle.dump(threading.Thread, file)
    assert cloudpickle.load(io.BytesIO(file.getvalue())) is threading.Thread
    assert issubclass(cloudpickle.CloudPickler, pickle.Pickler)
    buffers: list[pickle.PickleBuffer] = []
    whole = cloudpickle.dumps(pickle.PickleBuffer(b"abc"), protocol=5, buffer_callback=buffers.append)
    assert bytes(cloudpickle.loads(whole, buffers=buffers)) == b"abc"


def test_cloudpickle_has_the_version_of_the_package() -> None:
    assert skate.cloudpickle.__version__ == cloudpickle.__version__


def test_modules_of_dask_hold_what_skate_has() -> None:
    dask = pytest.importorskip("skate.util.dask", exc_type=ImportError)
    from skate.util.dask import callbacks, scheduler

    for module in (callbacks, scheduler):
        assert all(getattr(module, name) is getattr(dask, name) for name in module.__all__)


def test_modules_can_be_pickled_by_value() -> None:
    from skate import cloudpickle

    module = types.ModuleType("module_of_this_test")
    exec("def f(): return 3", module.__dict__)
    sys.modules["module_of_this_test"] = module
    try:
        cloudpickle.register_pickle_by_value(module)
        assert "module_of_this_test" in cloudpickle.list_registry_pickle_by_value()
        data = cloudpickle.dumps(module.f)
        cloudpickle.unregister_pickle_by_value(module)
    finally:
        del sys.modules["module_of_this_test"]
    assert cloudpickle.loads(data)() == 3


class Connection:
    """Cannot be pickled, because of its lock."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lock = threading.Lock()


def test_a_registered_serializer_is_used_until_it_is_deregistered() -> None:
    with pytest.raises(TypeError):
        skate.cloudpickle.dumps(Connection("a"))
    skate.util.register_serializer(
        Connection, serializer=lambda it: it.address, deserializer=lambda address: Connection(address + "!")
    )
    try:
        data = skate.cloudpickle.dumps([Connection("a")])
        assert [it.address for it in pickle.loads(data)] == ["a!"]
        skate.util.register_serializer(Connection, serializer=lambda it: 1, deserializer=lambda _: Connection("b"))
        assert pickle.loads(skate.cloudpickle.dumps(Connection("a"))).address == "b"
    finally:
        skate.util.deregister_serializer(Connection)
    with pytest.raises(TypeError):
        skate.cloudpickle.dumps(Connection("a"))
    skate.util.deregister_serializer(Connection)  # once more has no effect


def test_arrays_follow_a_registered_serializer_as_well() -> None:
    import numpy as np

    from skate._serialize.values import deserialize, serialize

    skate.util.register_serializer(np.ndarray, serializer=lambda it: it.tolist(), deserializer=tuple)
    try:
        assert deserialize(serialize(np.arange(3)).to_bytes()) == (0, 1, 2)
        assert deserialize(serialize([np.arange(3)]).to_bytes()) == [(0, 1, 2)]
    finally:
        skate.util.deregister_serializer(np.ndarray)
    assert deserialize(serialize(np.arange(3)).to_bytes()).tolist() == [0, 1, 2]


def test_a_serializer_that_raises_is_named() -> None:
    def dismantle(_: Connection) -> str:
        raise OSError("the line is dead")

    skate.util.register_serializer(Connection, serializer=dismantle, deserializer=Connection)
    try:
        with pytest.raises(
            pickle.PicklingError, match=r"the serializer .*dismantle.*Connection, raised OSError: the line"
        ):
            skate.cloudpickle.dumps(Connection("a"))
        with pytest.raises(pickle.PicklingError, match="dismantle"):
            serialize([Connection("a")])
    finally:
        skate.util.deregister_serializer(Connection)


def test_a_serializer_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a class"):
        skate.util.register_serializer(7, serializer=str, deserializer=str)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="serializer=3"):
        skate.util.register_serializer(Connection, serializer=3, deserializer=str)  # type: ignore[arg-type]


def test_the_parts_that_cannot_be_pickled_are_named() -> None:
    lock = threading.Lock()
    connection = Connection("a")

    def work(first: object = None, *, table: object = socket.socket()) -> Any:
        return lock, connection

    try:
        report = io.StringIO()
        ok, failures = skate.util.inspect_serializability(work, print_file=report)
        assert not ok
        assert {failure.path for failure in failures} == {
            ("lock",),
            ("connection", "lock"),
            ("table",),
        }
        inner = next(failure for failure in failures if failure.path == ("connection", "lock"))
        assert (inner.obj, inner.parent, inner.name) == (connection.lock, connection, "lock")
        text = report.getvalue()
        assert "work cannot be pickled: TypeError" in text
        assert "the closure variable 'connection', in it the attribute 'lock' (of type _thread.lock)" in text
        _, shallow = skate.util.inspect_serializability(work, name="job", depth=1, print_file=report)
        assert ("connection",) in {failure.path for failure in shallow}
        _, itself = skate.util.inspect_serializability(lock, name="the lock", print_file=report)
        assert [failure.path for failure in itself] == [("the lock",)]
    finally:
        work.__kwdefaults__["table"].close()  # type: ignore[index]


def test_a_dict_that_contains_itself_is_not_its_own_reason() -> None:
    table: dict[str, Any] = {}
    table.update(itself=table, nested=[table], lock=threading.Lock())
    _, failures = skate.util.inspect_serializability(table, print_file=io.StringIO())
    assert [failure.path for failure in failures] == [("lock",)]
    del table["nested"]
    assert find_culprit(table) == ["the item 'lock' of type _thread.lock"]


def test_what_can_be_pickled_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert skate.util.inspect_serializability([1, 2], name="numbers") == (True, set())
    assert capsys.readouterr().out == "numbers can be pickled.\n"


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_check_what_they_are_given() -> None:
    counter = metrics.Counter("requests", description="answered", tag_keys=("route",))
    with pytest.raises(ValueError, match=r"tag key\(s\) route"):
        counter.inc()
    counter.inc(2, tags={"route": "/"})
    assert counter.set_default_tags({"route": "/x"}) is counter
    counter.inc()
    for wrong, error in ((0, ValueError), (-1, ValueError), ("1", TypeError)):
        with pytest.raises(error, match="requests"):
            counter.inc(wrong)
    with pytest.raises(TypeError, match="it may be a string"):
        counter.inc(tags={"route": 7})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="'colour' is none of its tag_keys"):
        counter.set_default_tags({"colour": "blue"})
    with pytest.raises(TypeError, match="tuple of strings"):
        metrics.Gauge("g", tag_keys=["a"])  # type: ignore[arg-type]
    metrics.Gauge("g").set(-3.5)
    metrics.Gauge("g").set(None)
    for boundaries in (None, [], [0, 1]):
        with pytest.raises(ValueError, match="boundaries"):
            metrics.Histogram("h", boundaries=boundaries)
    metrics.Histogram("h", boundaries=[0.1, 1]).observe(0.5)


def test_metrics_can_be_pickled() -> None:
    counter = metrics.Counter("requests", tag_keys=("route",)).set_default_tags({"route": "/"})
    histogram = metrics.Histogram("seconds", "taken", [0.1, 1], ("route",))
    for metric in (counter, histogram):
        assert pickle.loads(pickle.dumps(metric)).info == metric.info


# --- bars -------------------------------------------------------------------------------------------------------------


def test_a_bar_that_is_not_in_a_terminal_is_a_line_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(tqdm_ray.tqdm(range(3), desc="items")) == [0, 1, 2]
    with tqdm_ray.tqdm(total=4, desc="steps", unit="step") as bar:
        bar.update(2)
    bar.close()
    first, second = capsys.readouterr().err.splitlines()
    assert re.match(r"items \[#{30}\] 3/3 ", first)
    assert re.match(r"steps \[#{15}-{15}\] 2/4 .* step/s", second)


def test_a_bar_shows_itself_whenever_it_is_time(capsys: pytest.CaptureFixture[str]) -> None:
    bar = tqdm_ray.tqdm(total=0, flush_interval_s=0)
    bar.update()
    bar.set_description("later")
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "later", "later"]
    with pytest.raises(TypeError, match="without an iterable"):
        list(tqdm_ray.tqdm(total=1))


def test_bars_are_hidden_while_something_else_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = tqdm_ray.tqdm(total=2, flush_interval_s=0)
    tqdm_ray.safe_print("between", "bars")
    tqdm_ray.instance().hide_bars()
    capsys.readouterr()
    bar.update()
    assert capsys.readouterr().err == ""
    tqdm_ray.instance().unhide_bars()
    assert "1/2" in capsys.readouterr().err
    bar.close()
    assert capsys.readouterr().err.endswith("\n")
    assert bar not in tqdm_ray.instance().bars


# --- types and modes --------------------------------------------------------------------------------------------------


def test_modules_hold_the_same_types_as_skate_itself() -> None:
    assert skate.types.ObjectRef is skate.ObjectRef
    assert skate.remote_function.RemoteFunction is skate.RemoteFunction
    assert skate.runtime_context.get_runtime_context is skate.get_runtime_context
    assert isinstance(skate.get_runtime_context(), skate.runtime_context.RuntimeContext)
    assert skate.actor.ActorProxy is skate.actor.ActorHandle is skate.Actor
    assert skate.actor.ActorProxy[Connection]


def test_strategies_have_a_type_for_annotations() -> None:
    from skate.util.scheduling_strategies import NodeAffinitySchedulingStrategy, SchedulingStrategyT

    assert isinstance(NodeAffinitySchedulingStrategy("0" * 32, soft=True), SchedulingStrategyT)
    assert isinstance("SPREAD", SchedulingStrategyT)
    assert not isinstance(1, SchedulingStrategyT)


def test_accelerators_have_names() -> None:
    from skate.util.accelerators import NVIDIA_A100, NVIDIA_TESLA_A100, NVIDIA_TESLA_V100

    assert (NVIDIA_TESLA_V100, NVIDIA_TESLA_A100) == ("V100", NVIDIA_A100)
    skate.remote(accelerator_type=NVIDIA_A100)(lambda: 1)


def test_the_logger_is_the_one_that_init_configures() -> None:
    assert skate.logger.name == "skate"
    assert skate.__commit__ == skate._api.RuntimeInfo().ray_commit == f"skate-{skate.__version__}"
    assert len({skate.SCRIPT_MODE, skate.WORKER_MODE, skate.LOCAL_MODE}) == 3


# --- exceptions -------------------------------------------------------------------------------------------------------


def test_errors_that_only_ray_raises_can_be_named_and_pickled() -> None:
    from skate import _ray_exceptions

    assert len(_ray_exceptions.NAMES) == 14
    for name in _ray_exceptions.NAMES:
        kind = getattr(exceptions, name)
        assert issubclass(kind, exceptions.RayError)
        copy = pickle.loads(pickle.dumps(kind("what happened")))
        assert type(copy) is kind
        assert str(copy) == "what happened"
    assert exceptions.RpcError("x", rpc_code=4).rpc_code == 4  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="NoSuchError"):
        exceptions.NoSuchError  # type: ignore[attr-defined]  # noqa: B018


def test_importing_skate_loads_none_of_this() -> None:
    rare = ["ids", "cloudpickle", "types", "runtime_context", "remote_function", "serialization", "_ray_exceptions"]
    rare += ["experimental", "client_builder", "job_config", "runtime_env", "util", "_worker.logging_config"]
    code = f"import sys, skate; print(*[name for name in {rare} if 'skate.' + name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert loaded.split() == []
