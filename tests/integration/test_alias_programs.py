"""Programs that say `import ray`, run with Skate under that name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from programs import PROGRAM_TIMEOUT_S, run_program
from skate.cluster_utils import Cluster
from waiting import WITHIN_S, wait_for

UNDER_ALIAS = ("-m", "skate.as_ray")

#: What a program sees of itself, and a worker of its program: one line each.
SEES = """
import inspect, os, sys

def here():
    main = sys.modules["__main__"]
    names = {name: value for name, value in vars(main).items() if name.startswith("__")}
    names["__loader__"] = getattr(names["__loader__"], "__name__", type(names["__loader__"]).__name__)
    names["__spec__"] = names["__spec__"] and (names["__spec__"].name, names["__spec__"].origin)
    path = [each for each in sys.path if not each.endswith("skate/_alias/child")]
    return sorted(names.items(), key=str), sys.argv, path, sys.path[0], os.getcwd()

def source():
    try:
        return inspect.getsource(here)
    except OSError as error:
        return str(error)

print(here())
print(__name__, here.__module__, here.__code__.co_filename, globals() is vars(sys.modules["__main__"]))
print(source())
"""


def run(*words: str | Path, directory: Path, alias: bool, said: str = "", **variables: str) -> tuple[int, str, str]:
    """Run Python with these words, and what it is said on standard input; its exit code and what it wrote."""
    done = subprocess.run(
        [sys.executable, *(UNDER_ALIAS if alias else ()), *words],
        cwd=directory,
        env={**os.environ, **variables},
        input=said,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def same(*words: str | Path, directory: Path) -> tuple[int, str, str]:
    """What happens under the alias, which must be what happens without it."""
    without, under = (run(*words, directory=directory, alias=alias) for alias in (False, True))
    assert under == without
    return under


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Programs in all the forms that Python runs, each of which tells what it sees of itself."""
    (tmp_path / "below" / "package").mkdir(parents=True)
    (tmp_path / "folder").mkdir()
    for name in ("program.py", "below/program.py", "below/package/__main__.py", "folder/__main__.py"):
        (tmp_path / name).write_text(SEES)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text(SEES)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", SEES)
    (tmp_path / "link.py").symlink_to(tmp_path / "below" / "program.py")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("program.py", "a", "-m", "--help"),
        ("below/program.py",),
        ("./below/../program.py", "x y"),
        ("link.py",),
        ("folder",),
        ("archive.zip", "a"),
        ("-m", "program", "a"),
        ("-m", "package.module"),
        ("-m", "package"),
        ("-m", "no_such_module"),
        ("no_such_file.py",),
        ("-c", SEES, "a"),
    ],
    ids=lambda words: " ".join(words)[:30].strip(),
)
def test_a_program_sees_itself_as_without_the_alias(words: tuple[str, ...], project: Path) -> None:
    same(*words, directory=project)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("def f():\n    1 / 0\nf()", 1),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    [][1]", 1),
        ("def f(:\n    pass", 1),
        ("import sys\nsys.exit(7)", 7),
        ("import sys\nsys.exit('words')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import sys\nsys.excepthook = lambda *e: print('mine', e[0], e[2].tb_frame.f_code.co_name)\n1 / 0", 1),
        ("import atexit, threading\natexit.register(print, 'atexit')\nimport sys\nprint(__name__, sys.argv)", 0),
        ("import sys, traceback\ntraceback.print_stack(limit=1)\nsys.exit()", 0),
        ("from __future__ import annotations\ndef f(x: no_such): pass\nprint(f.__annotations__)", 0),
        ("# -*- coding: latin-1 -*-\nprint(ascii('\\u00e9'))", 0),
    ],
)
def test_a_program_ends_as_without_the_alias(code: str, exit_code: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(code)
    for words in (["program.py"], ["-m", "program"], ["-c", code]):
        assert same(*words, directory=tmp_path)[0] == exit_code


def test_a_hook_of_the_program_that_fails_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nsys.excepthook = lambda *e: no_such_name\n1 / 0\n")
    code, _out, err = run("program.py", directory=tmp_path, alias=True)
    assert code == 1
    for text in ("Error in sys.excepthook", "no_such_name", "Original exception was", "ZeroDivisionError"):
        assert text in err


@pytest.mark.parametrize("words", [(), ("-m",), ("-c",), ("-x", "program.py"), ("--no-such-option",)])
def test_wrong_words_are_answered_with_the_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = run(*words, directory=tmp_path, alias=True)
    assert (code, out) == (2, "")
    assert "usage: python -m skate.as_ray program.py" in err
    assert "Traceback" not in err
    if words:
        assert words[0] in err.splitlines()[0]


def test_the_usage_can_be_asked_for(tmp_path: Path) -> None:
    code, out, err = run("--help", directory=tmp_path, alias=True)
    assert (code, err) == (0, "")
    assert "usage: python -m skate.as_ray program.py" in out


def test_a_version_that_is_none_is_one_line(tmp_path: Path) -> None:
    code, out, err = run("-c", "print(1)", directory=tmp_path, alias=True, SKATE_RAY_VERSION="newest")
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "python -m skate.as_ray: SKATE_RAY_VERSION=newest: that is no version of Ray; one has the form '2.60.0'."
    ]


# -- workers -----------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
import {name} as ray
from {name}.util import ActorPool
from {name}.exceptions import RayTaskError
import helper

class Mine(Exception):
    pass

@ray.remote
def look(below):
    assert isinstance(below, ray.ObjectRef) or below is None
    main = sys.modules["__main__"]
    return sys.argv, sys.path[0], main.__name__, hasattr(main, "look"), helper.pid()

@ray.remote
def nested():
    return ray.get(look.remote(None))

@ray.remote
def fail():
    raise Mine("x")

@ray.remote
class Counter:
    def __init__(self):
        self.value = 0

    def add(self, n):
        from {name}.util.queue import Queue, Empty
        assert issubclass(Empty, Exception)
        self.value += n
        return self.value, type(self).__module__

if __name__ == "__main__":
    ray.init(num_cpus=2)
    seen = ray.get([look.remote(None), nested.remote()])
    print([each[:4] for each in seen], all(each[4] != os.getpid() for each in seen))
    counter = Counter.remote()
    print(ray.get([counter.add.remote(1) for _ in range(3)]))
    pool = ActorPool([Counter.remote(), Counter.remote()])
    print(sorted(pool.map(lambda actor, n: actor.add.remote(n), [1, 2])))
    try:
        ray.get(fail.remote())
    except Mine as error:
        print(isinstance(error, RayTaskError), error.cause)
    print(ray.get(helper.task.remote(4)))
"""
HELPER = """
import os
import {name} as ray

def pid():
    assert ray.is_initialized()
    return os.getpid()

@ray.remote
def task(n):
    return [ray.get(ray.put(n)), __name__]
"""


def test_tasks_and_actors_of_a_program_work_as_without_the_alias(tmp_path: Path) -> None:
    """`python program.py` with `import skate as ray`, and `python -m skate.as_ray program.py` with `import ray`."""
    outcomes = []
    for name in ("skate", "ray"):
        (tmp_path / "program.py").write_text(PROGRAM.replace("{name}", name))
        (tmp_path / "helper.py").write_text(HELPER.replace("{name}", name))
        outcomes.append(run("program.py", "a", directory=tmp_path, alias=name == "ray"))
    assert outcomes[0] == outcomes[1]
    code, out, err = outcomes[1]
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "[4, 'helper']"


TOP = """
import skate
skate.as_ray({arguments})
import ray
import importlib.metadata

@ray.remote
def versions():
    import ray.util.queue, skate.util.queue
    assert ray.util.queue is skate.util.queue
    return ray.__version__, importlib.metadata.version("ray")

assert ray.get(versions.remote()) == (ray.__version__, importlib.metadata.version("ray"))
print(ray.__version__)
"""


@pytest.mark.parametrize(("arguments", "version"), [("", "2.60.0"), ("version='2.9.3'", "2.9.3")])
def test_as_ray_at_the_top_of_a_program(arguments: str, version: str) -> None:
    assert run_program(TOP.replace("{arguments}", arguments)) == (f"{version}\n", "")


def test_workers_have_the_version_that_the_environment_of_the_driver_names(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TOP.replace("{arguments}", ""))
    for alias in (False, True):
        told = run("program.py", directory=tmp_path, alias=alias, SKATE_RAY_VERSION="2.40.0")
        assert told == (0, "2.40.0\n", "")


CHILDREN = """
import multiprocessing, os, sys
import ray
import ray.util.queue

def look(x):
    import skate
    return ray.__version__, ray.util.queue is skate.util.queue, __name__, x

@ray.remote
def nested():
    # A child of a worker has the alias, too: it imports this module, where the worker got the function by value.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(os.getpid) != os.getpid()

if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.apply(look, (1,)))
    print(ray.get(nested.remote()))
"""


def test_children_that_multiprocessing_starts_have_the_alias(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CHILDREN)
    code, out, err = run("program.py", directory=tmp_path, alias=True)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "spawn ('2.60.0', True, '__mp_main__', 1)",
        "forkserver ('2.60.0', True, '__mp_main__', 1)",
        "fork ('2.60.0', True, '__main__', 1)",
        "True",
    ]


def test_a_program_may_come_from_standard_input(tmp_path: Path) -> None:
    for program in (SEES, "1 / 0\n", "import sys; sys.exit(3)"):
        plain, aliased = (run("-", "a", directory=tmp_path, alias=alias, said=program) for alias in (False, True))
        assert aliased == plain
    program = "import ray\nprint(ray.get(ray.remote(lambda: 7).remote()))"
    assert run("-", directory=tmp_path, alias=True, said=program) == (0, "7\n", "")


LATE = """
import skate

skate.init(num_cpus=2)

@skate.remote
def before():
    return 1

@skate.remote
def known():
    try:
        import ray
    except ImportError:
        return None
    return ray.__version__

@skate.remote
class Known:
    look = staticmethod(known._function)

assert skate.get(before.remote()) == 1
assert skate.get([known.remote(), Known.remote().look.remote()]) == [None, None]
skate.as_ray(version="2.9.0")
import ray
assert skate.get([known.remote(), Known.remote().look.remote()]) == ["2.9.0", "2.9.0"]

@ray.remote
def look():
    import ray.util.queue
    return ray.__version__

@ray.remote
class Nest:
    def look(self):
        return ray.get(look.remote())

print(ray.get([look.remote() for _ in range(4)]), ray.get(Nest.remote().look.remote()), ray.get(before.remote()))
skate.as_ray(version="2.10.0")  # the same function, pickled to the same bytes, goes with the new version
print(ray.get([ray.remote(look._function).remote() for _ in range(4)]))
assert ray.get([look.remote(), known.remote(), Known.remote().look.remote()]) == ["2.10.0"] * 3
"""


def test_functions_defined_before_and_after_a_late_as_ray_have_it_in_workers_that_were_there_before(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text(LATE)
    told = run("program.py", directory=tmp_path, alias=False)
    assert told == (0, f"{['2.9.0'] * 4} 2.9.0 1\n{['2.10.0'] * 4}\n", "")


ON_CLUSTER = """
import sys
import ray

ray.init(address=sys.argv[1])

@ray.remote(num_cpus=1)
def where():
    import ray.util
    return ray.get_runtime_context().get_node_id(), ray.__version__

@ray.remote(num_cpus=0, scheduling_strategy="SPREAD")
class Keeper:
    def get(self):
        return ray.get(where.remote())[1]

nodes = {node["NodeID"] for node in ray.nodes()}
strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
found = ray.get([where.options(scheduling_strategy=strategy(id, soft=False)).remote() for id in nodes])
assert {id for id, _ in found} == nodes
assert {version for _, version in found} == {"2.60.0"}
keeper = Keeper.options(name="keeper", lifetime="detached", max_restarts=-1).remote()
print(len(found), ray.get(keeper.get.remote()))
"""
LATER = """
import sys
import skate

skate.init(address=sys.argv[1])
keeper = skate.get_actor("keeper")
print(skate.get(keeper.get.remote()))
skate.kill(keeper, no_restart=False)
print(skate.get(keeper.get.options(max_task_retries=-1).remote()))
skate.kill(keeper)
try:
    skate.get(skate.remote(lambda: __import__("ray")).remote())
except ImportError as error:
    print(type(error.cause).__name__)
"""


def test_workers_on_nodes_that_were_there_before_have_the_alias(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ON_CLUSTER)
    (tmp_path / "later.py").write_text(LATER)
    with Cluster(initialize_head=True) as cluster:
        cluster.add_node(num_cpus=1)
        assert run("program.py", cluster.address, directory=tmp_path, alias=True) == (0, "2 2.60.0\n", "")
        # The actor keeps the alias of its program, also in its next life; another program does not have it.
        told = run("later.py", cluster.address, directory=tmp_path, alias=False)
        assert told == (0, "2.60.0\n2.60.0\nModuleNotFoundError\n", "")


def test_ctrl_c_ends_a_program_under_the_alias_as_it_does_without(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys, threading, time\nimport {name} as ray\n"
        "wait = ray.remote(lambda: time.sleep(600)).remote()\nprint('ready', flush=True)\nray.get(wait)\n"
    )
    program = (tmp_path / "program.py").read_text()
    for name, words in (("skate", ["program.py"]), ("ray", [*UNDER_ALIAS, "program.py"])):
        (tmp_path / "program.py").write_text(program.replace("{name}", name))
        process = subprocess.Popen(
            [sys.executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=WITHIN_S)
        assert process.returncode == -signal.SIGINT
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert "_alias" not in err
        wait_for(lambda process=process: process.poll() is not None, WITHIN_S, "it is gone")
