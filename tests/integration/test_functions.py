"""Which functions can be tasks: defined anywhere, in any way, and again under the same name."""

from __future__ import annotations

import enum
import functools
import math
import operator
import subprocess
import sys
import threading
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import skate
from skate._worker.current import get_runtime

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Account:
    balance: int

    def after(self, amount: int) -> Account:
        return Account(self.balance + amount)


def helper(x: int) -> int:
    return x + 1000


FACTOR = 3


@skate.remote
def uses_module_globals(x: int) -> int:
    return helper(x) * FACTOR


@skate.remote
def is_even(n: int) -> bool:
    return True if n == 0 else skate.get(is_odd.remote(n - 1))


@skate.remote
def is_odd(n: int) -> bool:
    return False if n == 0 else skate.get(is_even.remote(n - 1))


def run_program(path: Path, source: str, *arguments: str, cwd: Path | None = None) -> str:
    """Run a script; its output. It must end well and in silence."""
    path.write_text(source)
    done = subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=50, cwd=cwd, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# --- kinds of callables -----------------------------------------------------------------------------------------------

with_runtime = pytest.mark.usefixtures("runtime")


@with_runtime
def test_lambdas_and_closures() -> None:
    base = 10
    assert skate.get(skate.remote(lambda x: x + base).remote(1)) == 11


@with_runtime
def test_closures_made_in_a_loop_are_different_functions() -> None:
    adders = [skate.remote(lambda x, step=step: x + step) for step in range(10)]
    assert skate.get([adder.remote(100) for adder in adders]) == list(range(100, 110))

    def adder(step: int) -> Any:
        return skate.remote(lambda x: x + step)

    assert skate.get([adder(step).remote(100) for step in range(10)]) == list(range(100, 110))


@with_runtime
def test_a_closure_has_the_values_of_the_moment_of_its_first_call() -> None:
    """As documented: a function is sent once; values that change belong into arguments."""
    level = 1

    def read() -> int:
        return level

    remote = skate.remote(read)
    assert skate.get(remote.remote()) == 1
    level = 2
    assert skate.get(skate.remote(read).remote()) == 2


@with_runtime
@pytest.mark.parametrize(
    ("function", "arguments", "value"),
    [
        (math.sqrt, (16,), 4.0),
        (len, ([1, 2],), 2),
        (max, (1, 5, 3), 5),
        ("a-b".split, ("-",), ["a", "b"]),
        (operator.itemgetter(1), ([7, 8],), 8),
        (functools.partial(pow, 2), (10,), 1024),
        (Account(5).after, (3,), Account(8)),
    ],
    ids=lambda part: str(part).partition(" at 0x")[0],
)
def test_anything_that_can_be_called(function: Any, arguments: Any, value: Any) -> None:
    assert skate.get(skate.remote(function).remote(*arguments)) == value


@with_runtime
def test_a_callable_instance() -> None:
    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def __call__(self, x: int) -> int:
            return self.factor * x

    assert skate.get(skate.remote(Scale(4)).remote(5)) == 20


@with_runtime
def test_module_globals_and_helpers() -> None:
    assert skate.get(uses_module_globals.remote(1)) == 3003


@with_runtime
def test_a_decorated_function() -> None:
    def twice(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(function(*args))

        return wrapper

    @skate.remote
    @twice
    def increase(x: int) -> int:
        return x + 1

    assert skate.get(increase.remote(1)) == 3


@with_runtime
def test_recursion_of_a_plain_inner_function() -> None:
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert skate.get(skate.remote(factorial).remote(10)) == 3628800


@with_runtime
def test_recursion_of_a_remote_inner_function() -> None:
    @skate.remote
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * skate.get(factorial.remote(n - 1))

    assert skate.get(factorial.remote(6)) == 720


@with_runtime
def test_mutual_recursion() -> None:
    assert skate.get([is_even.remote(6), is_even.remote(5)]) == [True, False]


@with_runtime
def test_mutual_recursion_of_inner_functions() -> None:
    @skate.remote
    def ping(n: int) -> str:
        return "ping" if n == 0 else skate.get(pong.remote(n - 1))

    @skate.remote
    def pong(n: int) -> str:
        return "pong" if n == 0 else skate.get(ping.remote(n - 1))

    assert skate.get([ping.remote(3), pong.remote(4)]) == ["pong", "pong"]


@with_runtime
def test_a_function_defined_again_under_the_same_name() -> None:
    values = []
    for version in range(5):

        @skate.remote
        def same_name(version: int = version) -> int:
            return version

        values.append(skate.get(same_name.remote()))
    assert values == [0, 1, 2, 3, 4]


@with_runtime
def test_old_and_new_versions_live_side_by_side() -> None:
    def define(text: str) -> Any:
        def function() -> str:
            return text

        return skate.remote(function)

    old, new = define("old"), define("new")
    assert skate.get([old.remote(), new.remote(), old.remote()]) == ["old", "new", "old"]


@with_runtime
def test_a_function_from_exec() -> None:
    space: dict[str, Any] = {}
    exec("def made(x):\n    return offset + x\noffset = 7", space)
    assert skate.get(skate.remote(space["made"]).remote(1)) == 8


@with_runtime
def test_what_a_task_does_to_globals_stays_in_its_process() -> None:
    def change() -> int:
        global FACTOR
        FACTOR = 99
        return FACTOR

    assert skate.get(skate.remote(change).remote()) == 99
    assert FACTOR == 3


# --- classes and instances --------------------------------------------------------------------------------------------


@with_runtime
def test_instances_come_back_as_their_own_class() -> None:
    identity = skate.remote(lambda value: value)
    account = skate.get(identity.remote(Account(5)))
    assert type(account) is Account
    assert account == Account(5)
    assert skate.get(identity.remote(Point(1, 2))) == Point(1, 2)
    assert type(skate.get(identity.remote(Point(1, 2)))) is Point
    assert skate.get(identity.remote(Colour.RED)) is Colour.RED


@with_runtime
def test_a_class_of_a_test_function_comes_back_as_itself() -> None:
    class Local:
        pass

    class Kind(enum.Enum):
        ONE = 1

    make = skate.remote(lambda: (Local(), Kind.ONE))
    local, kind = skate.get(make.remote())
    assert type(local) is Local
    assert kind is Kind.ONE


@with_runtime
def test_a_remote_function_on_a_class() -> None:
    class Tools:
        @staticmethod
        @skate.remote
        def double(x: int) -> int:
            return 2 * x

    assert skate.get(Tools.double.remote(4)) == 8


@with_runtime
def test_a_remote_function_of_a_class_is_the_same_through_an_instance() -> None:
    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @skate.remote
        def times(self, x: int = 3) -> int:
            assert type(self) is Scale
            return self.factor * x

        @skate.remote
        def below(self, n: int) -> int:
            return n + skate.get(self.below.remote(self, n - 1)) if n else skate.get(Scale.times.remote(self))

        def run(self, x: int) -> int:
            return skate.get(self.times.remote(self, x))

    scale = Scale(5)
    assert scale.times is Scale.times
    assert scale.run(4) == 20
    assert skate.get(scale.times.options(name="scaled").remote(scale)) == 15
    assert skate.get(scale.below.remote(scale, 2)) == 18
    assert skate.get(skate.remote(lambda it: it.run(2)).remote(scale)) == 10


@with_runtime
def test_a_remote_function_of_an_actor_class_is_a_task() -> None:
    @skate.remote
    class Worker:
        @skate.remote
        def double(x: int) -> int:  # noqa: N805
            return 2 * x

        def call(self, x: int) -> list[int]:
            return skate.get([self.double.remote(x), type(self).double.remote(x + 1)])

    assert skate.get(Worker.remote().call.remote(4)) == [8, 10]
    assert skate.get(Worker.double.remote(3)) == 6


# --- captures ---------------------------------------------------------------------------------------------------------


@with_runtime
def test_a_large_capture_warns_with_its_name_and_size() -> None:
    table = b"x" * 20_000_000
    with pytest.warns(UserWarning, match=r"table[\s\S]*(19|20)(\.\d+)? Mi?B[\s\S]*skate\.put"):
        ref = skate.remote(lambda: len(table)).remote()
    assert skate.get(ref) == 20_000_000


@with_runtime
def test_a_large_global_of_a_script_warns_with_its_name_too() -> None:
    space: dict[str, Any] = {"__name__": "__main__", "big_table": bytearray(20_000_000)}
    exec("def size():\n    return len(big_table)", space)
    with pytest.warns(UserWarning, match="big_table"):
        ref = skate.remote(space["size"]).remote()
    assert skate.get(ref) == 20_000_000


@with_runtime
def test_a_large_capture_of_an_actor_warns_with_its_name_too() -> None:
    table = b"x" * 20_000_000

    @skate.remote
    class Reader:
        def size(self) -> int:
            return len(table)

    with pytest.warns(UserWarning, match=r"remote class Reader[\s\S]*'table' \(bytes, 19\.1 MB\)"):
        reader = Reader.remote()
    assert skate.get(reader.size.remote()) == 20_000_000


@with_runtime
def test_a_large_capture_warns_once_for_many_calls() -> None:
    table = b"x" * 20_000_000
    function = skate.remote(lambda i: len(table) + i)
    with pytest.warns(UserWarning, match="table") as caught:
        refs = [function.remote(i) for i in range(5)]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert skate.get(refs) == [20_000_000 + i for i in range(5)]


@with_runtime
def test_a_capture_that_cannot_be_sent_is_named() -> None:
    door = threading.Lock()
    with pytest.raises(TypeError, match=r"door[\s\S]*lock") as caught:
        skate.remote(lambda: door.locked()).remote()
    assert isinstance(caught.value, skate.exceptions.SerializationError)


@with_runtime
def test_an_argument_that_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()

    def take(door: Any, *more: Any, key: Any = None) -> None: ...

    class House:
        def __init__(self, door: Any = None) -> None: ...
        def close(self, door: Any) -> None: ...

    task, house = skate.remote(take), skate.remote(House)
    for call, named in (
        (lambda: task.remote(lock), "'door' of take"),
        (lambda: task.remote(1, 2, [lock]), "at position 3 of take"),
        (lambda: task.remote(1, key={"a": lock}), "'key' of take"),
        (lambda: house.remote(lock), "'door' of House.__init__"),
        (lambda: house.remote().close.remote(lock), "'door' of House.close"),
    ):
        with pytest.raises(TypeError, match=r"_thread\.lock cannot be pickled") as caught:
            call()
        assert str(caught.value).startswith(f"the argument {named} cannot be sent to another process.")


@with_runtime
def test_looking_for_what_cannot_be_sent_keeps_no_object() -> None:
    ref = skate.put(1)
    with pytest.raises(TypeError, match="the element 1"):
        skate.remote(lambda pair: None).remote([ref, threading.Lock()])
    runtime, id = get_runtime(), ref.binary()
    del ref
    with runtime.lock:
        runtime._housekeeping()
        assert id not in runtime.table.entries


@with_runtime
def test_a_value_that_cannot_be_put_says_where_the_trouble_is() -> None:
    with pytest.raises(TypeError, match=r"inner[\s\S]*lock"):
        skate.put({"fine": 1, "inner": threading.Lock()})


@with_runtime
def test_a_result_that_cannot_be_sent_is_an_error_of_the_task() -> None:
    with pytest.raises(skate.exceptions.SkateError, match="lock"):
        skate.get(skate.remote(threading.Lock).remote())
    assert skate.get(skate.remote(lambda: "the worker goes on").remote()) == "the worker goes on"


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_script_with_functions_and_classes_of_its_own(tmp_path: Path) -> None:
    output = run_program(
        tmp_path / "script.py",
        """
from dataclasses import dataclass
from enum import Enum
import skate

LEVEL = 5

class Kind(Enum):
    GOOD = "good"

@dataclass
class Item:
    kind: Kind
    size: int

def helper(item):
    return Item(item.kind, item.size + LEVEL)

@skate.remote
def grow(item):
    return helper(item)

@skate.remote
def grow_all(items):
    return skate.get([grow.remote(item) for item in items])

class Failure(Exception):
    pass

@skate.remote
def fail():
    raise Failure("own class")

items = skate.get(grow_all.remote([Item(Kind.GOOD, 1), Item(Kind.GOOD, 2)]))
print([item.size for item in items], type(items[0]) is Item, items[0].kind is Kind.GOOD)
try:
    skate.get(fail.remote())
except Failure as error:
    print("caught", error.cause.args)
""",
    )
    assert output == "[6, 7] True True\ncaught ('own class',)\n"


@pytest.mark.parametrize("guard", [True, False])
def test_a_script_needs_no_main_guard(guard: bool, tmp_path: Path) -> None:
    """Workers do not run the script again, with or without the guard; it prints once."""
    body = """
print("body")
{guard}
    print(skate.get([square.remote(i) for i in range(4)]))
""".format(guard='if __name__ == "__main__":' if guard else "if True:")
    output = run_program(
        tmp_path / "script.py",
        """
import skate

@skate.remote
def square(x):
    return x * x
"""
        + body,
    )
    assert output == "body\n[0, 1, 4, 9]\n"


def test_modules_next_to_the_script(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("""
import skate
from pack.inner import OFFSET

class Money:
    def __init__(self, amount):
        self.amount = amount

def shift(x):
    return x + OFFSET

@skate.remote
def shift_remotely(x):
    return shift(x)
""")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "inner.py").write_text("OFFSET = 40\n")
    output = run_program(
        tmp_path / "script.py",
        """
import skate
import tools
from tools import Money, shift

shift_here = skate.remote(lambda x: shift(x))
pay = skate.remote(lambda amount: Money(amount))

print(skate.get([tools.shift_remotely.remote(1), shift_here.remote(2), skate.remote(tools.shift).remote(3)]))
money = skate.get(pay.remote(5))
print(type(money) is Money, money.amount)
""",
        cwd=Path("/"),
    )
    assert output == "[41, 42, 43]\nTrue 5\n"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_module_found_through_a_path_that_the_script_added(when: str, tmp_path: Path) -> None:
    """Before init, or after tasks have run: a notebook does that in its tenth cell."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "far.py").write_text("def away():\n    return 'far'\n")
    lines = ["skate.get(skate.remote(abs).remote(1))", 'sys.path.insert(0, os.path.dirname(__file__) + "/library")']
    output = run_program(
        tmp_path / "script.py",
        "import os\nimport sys\nimport skate\n"
        + "\n".join(lines if when == "after" else reversed(lines))
        + """
import far
print(skate.get(skate.remote(far.away).remote()), skate.get(skate.remote(lambda: far.away()).remote()))
""",
    )
    assert output == "far far\n"


def test_classes_with_slots_and_functions_with_caches_of_a_script(tmp_path: Path) -> None:
    output = run_program(
        tmp_path / "script.py",
        """
import functools
import typing
from dataclasses import dataclass
import skate

@dataclass(slots=True)
class Point:
    x: int
    y: int = 2

@dataclass(slots=True, frozen=True)
class Frozen:
    x: int

class Base:
    __slots__ = "one"

class Slotted(Base):
    __slots__ = ["two", "__three", "__dict__", "__weakref__"]

    def __init__(self):
        self.one, self.two, self.__three, self.four = 1, 2, 3, 4

    def all(self):
        return self.one, self.two, self.__three, self.four

class Named(typing.NamedTuple):
    x: int
    y: str = "of a tuple"

class Trouble(Exception):
    __slots__ = ("code",)

    def __init__(self, code):
        self.code = code

@functools.lru_cache(maxsize=5)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

@functools.cache
def load():
    return object()

@skate.remote
def echo(value):
    return value

@skate.remote
def make():
    return Point(3), Frozen(4), Named(5), Slotted().all(), hasattr(Point(3), "__dict__"), load() is load()

@skate.remote
def cached(n):
    return fibonacci(n), fibonacci.cache_parameters()["maxsize"]

@skate.remote
def fail():
    raise Trouble(7)

@skate.remote
class Keeper:
    def __init__(self, point):
        self.point = point

    def swap(self, point):
        self.point, point = point, self.point
        return point

print(*skate.get([echo.remote(each(1)) for each in (Point, Frozen, Named)]), skate.get(echo.remote(Slotted())).all())
print(skate.get(make.remote()))
print(skate.get(cached.remote(20)), skate.get(skate.remote(fibonacci).remote(10)))
keeper = Keeper.remote(Point(5))
print(skate.get(keeper.swap.remote(Point(6))), skate.get(keeper.swap.remote(Point(7))))
try:
    skate.get(fail.remote())
except Trouble as trouble:
    print("trouble", trouble.code)
""",
    )
    assert output.splitlines() == [
        "Point(x=1, y=2) Frozen(x=1) Named(x=1, y='of a tuple') (1, 2, 3, 4)",
        "(Point(x=3, y=2), Frozen(x=4), Named(x=5, y='of a tuple'), (1, 2, 3, 4), False, True)",
        "(6765, 5) 55",
        "Point(x=5, y=2) Point(x=6, y=2)",
        "trouble 7",
    ]


def test_programs_without_a_file() -> None:
    source = "import skate\nf = skate.remote(lambda x: x + 1)\nprint(skate.get(f.remote(1)))\n"
    given = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=50, check=False)
    assert (given.returncode, given.stdout, given.stderr) == (0, "2\n", "")
    piped = subprocess.run([sys.executable, "-"], input=source, capture_output=True, text=True, timeout=50, check=False)
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, "2\n", "")


def test_a_program_run_as_a_module_of_a_package(tmp_path: Path) -> None:
    package = tmp_path / "application"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text("BASE = 7\n")
    (package / "__main__.py").write_text("""
import skate
from . import parts

@skate.remote
def add(x):
    return parts.BASE + x

print(skate.get(add.remote(1)))
""")
    done = subprocess.run(
        [sys.executable, "-m", "application"], capture_output=True, text=True, timeout=50, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "8\n", "")


def test_globals_of_a_script_have_the_values_of_the_first_call(tmp_path: Path) -> None:
    output = run_program(
        tmp_path / "script.py",
        """
import skate

@skate.remote
def read():
    return LEVEL

LEVEL = 1
print(skate.get(read.remote()))

@skate.remote
def read():
    return LEVEL

LEVEL = 2
print(skate.get(read.remote()))
""",
    )
    assert output == "1\n2\n"


def test_ray_programs_run_with_another_import(tmp_path: Path) -> None:
    output = run_program(
        tmp_path / "script.py",
        """
import skate as ray

ray.init(num_cpus=2)

@ray.remote(num_cpus=1)
def slow_add(a, b):
    return a + b

@ray.remote
def chain(x):
    return ray.get(slow_add.remote(x, 1))

refs = [chain.remote(i) for i in range(10)]
done = []
while refs:
    ready, refs = ray.wait(refs, num_returns=1, timeout=30)
    done += ray.get(ready)
print(sorted(done))
try:
    ray.get(ray.remote(lambda: 1 / 0).remote())
except ray.exceptions.RayTaskError as error:
    print(isinstance(error, ZeroDivisionError))
ray.shutdown()
""",
    )
    assert output == f"{list(range(1, 11))}\nTrue\n"
