"""What `import ray` finds while Skate has Ray's name."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pickle
import pkgutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import cloudpickle
import pytest

import skate
import skate.util.queue
from skate._alias import absent, finder


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The alias, switched on for one test."""
    monkeypatch.delenv(finder.VERSION_VARIABLE, raising=False)
    with no_alias():
        skate.as_ray()
        yield importlib.import_module("ray")


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which the alias is off, for a test that switches it on."""
    monkeypatch.delenv(finder.VERSION_VARIABLE, raising=False)
    with no_alias():
        yield


class no_alias:  # noqa: N801 - reads as a statement
    """What a test changes in the import system is put back."""

    def __enter__(self) -> None:
        self._before = (dict(sys.modules), list(sys.meta_path), list(sys.path), finder._active)
        finder._active = None

    def __exit__(self, *_error: object) -> None:
        modules, finders, sys.path[:], finder._active = self._before
        # Finders that other packages have put there meanwhile stay: importlib_metadata, which Dask imports, switches
        # that of Python off.
        added = [each for each in sys.meta_path if each not in finders and not isinstance(each, finder.AliasFinder)]
        sys.meta_path[:] = added + finders
        for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in modules.items() if name.partition(".")[0] == "ray"})


def public_modules() -> list[str]:
    """Every module of Skate that users may import, by what stands behind `skate.`."""
    found = [
        each.name.removeprefix("skate.")
        for each in pkgutil.walk_packages(skate.__path__, "skate.")
        if not any(part.startswith("_") for part in each.name.split("."))
    ]
    return [name for name in found if name not in ("mypy_plugin", "cli.__main__") and not name.startswith("cli")]


@pytest.mark.parametrize("name", public_modules())
def test_a_module_of_skate_is_the_same_under_both_names(name: str, ray: ModuleType) -> None:
    ours = importlib.import_module(f"skate.{name}")
    spec, loader = ours.__spec__, ours.__loader__
    theirs = importlib.import_module(f"ray.{name}")
    assert theirs is ours is sys.modules[f"ray.{name}"]
    assert (ours.__spec__, ours.__loader__, ours.__name__) == (spec, loader, f"skate.{name}")
    assert importlib.import_module(f"skate.{name}") is ours
    assert importlib.util.find_spec(f"ray.{name}") is not None


def test_every_name_of_skate_is_the_same_under_both_names(ray: ModuleType) -> None:
    assert ray is not skate
    assert ray.__all__ == skate.__all__
    for name in skate.__all__:
        if name != "__version__":
            assert getattr(ray, name) is getattr(skate, name)
    assert ray.util is skate.util
    assert ray.exceptions.GetTimeoutError is skate.exceptions.GetTimeoutError
    assert {"get", "util", "__version__"} <= set(dir(ray))


def test_the_forms_of_import(ray: ModuleType) -> None:
    names: dict[str, Any] = {}
    exec(
        "import ray.util.queue as q\n"
        "import ray.util.multiprocessing.pool\n"
        "from ray.util import ActorPool, queue\n"
        "from ray.exceptions import RayTaskError\n"
        "from ray import *\n",
        names,
    )
    assert names["q"] is names["queue"] is skate.util.queue
    assert names["ActorPool"] is skate.util.ActorPool
    assert names["RayTaskError"] is skate.exceptions.TaskError
    assert names["ray"] is ray
    assert names["get"] is skate.get
    assert names["__version__"] == "2.60.0"


def test_ray_is_an_ordinary_module_that_can_be_looked_at(ray: ModuleType) -> None:
    assert type(ray) is ModuleType
    assert (ray.__name__, ray.__package__, ray.__version__) == ("ray", "ray", "2.60.0")
    assert ray.__file__ == skate.__file__
    found = importlib.util.find_spec("ray")
    assert found is ray.__spec__
    assert found is not None
    assert found.name == "ray"
    assert {"util", "exceptions"} <= {each.name for each in pkgutil.iter_modules(ray.__path__)}
    assert hasattr(ray, "init")
    assert not hasattr(ray, "no_such_name")
    assert importlib.reload(ray) is ray
    assert ray.get is skate.get


def test_the_version_is_that_of_a_release_of_ray(off: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(finder.VERSION_VARIABLE, "2.9.3")
    skate.as_ray()
    ray = importlib.import_module("ray")
    assert ray.__version__ == importlib.metadata.version("ray") == "2.9.3"
    skate.as_ray(version="2.40.0")
    assert ray.__version__ == importlib.metadata.version("ray") == finder.active_version() == "2.40.0"
    skate.as_ray()  # says nothing about it
    assert ray.__version__ == "2.40.0"
    assert sum(isinstance(each, finder.AliasFinder) for each in sys.meta_path) == 1


def test_the_version_can_be_chosen_before_ray_is_imported(off: None) -> None:
    skate.as_ray("1.13.0")
    assert importlib.import_module("ray").__version__ == "1.13.0"


@pytest.mark.parametrize("version", ["new", "2.x", "2.60.0; rm", "", 5, b"2.9.3", (2, 9)])
def test_what_is_no_version_is_refused_and_changes_nothing(version: Any, off: None) -> None:
    is_text = isinstance(version, str)
    says = "that is no version of Ray; one has the form" if is_text else "it may be a text such as"
    with pytest.raises(ValueError if is_text else TypeError) as error:
        skate.as_ray(version)
    assert str(error.value) == f"as_ray(version={version!r}): {says} '2.60.0'."
    assert finder.active_version() == ""
    assert importlib.util.find_spec("ray") is None


def test_a_variable_that_is_no_version_is_named(off: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(finder.VERSION_VARIABLE, "newest")
    with pytest.raises(ValueError, match="SKATE_RAY_VERSION=newest: that is no version of Ray"):
        skate.as_ray()
    assert finder.active_version() == ""


@pytest.mark.parametrize("name", ["skate.mypy_plugin", "ray.mypy_plugin"])
def test_the_plugin_for_mypy_can_be_imported_or_says_that_mypy_is_not_there(name: str) -> None:
    """In interpreters of their own: one that has mypy, and one that has not."""
    program = f"import sys, skate; skate.as_ray(); {{}}import {name}; print(sys.modules[{name!r}].plugin.__name__)"
    command = [sys.executable, "-c", program.format("")]
    assert subprocess.run(command, check=True, timeout=50, capture_output=True, text=True).stdout == "plugin\n"
    command[-1] = program.format("sys.path[:] = [each for each in sys.path if 'site-packages' not in each]; ")
    done = subprocess.run(command, check=False, timeout=50, capture_output=True, text=True)
    assert "ModuleNotFoundError: skate.mypy_plugin is a plugin for mypy, which is not installed" in done.stderr


def test_the_metadata_of_the_distribution(ray: ModuleType) -> None:
    found = importlib.metadata.distribution("ray")
    assert found.metadata["Name"] == "ray"
    assert "not Ray" in found.metadata["Summary"]
    assert found.requires == ["skate"]
    assert found.files is None
    assert "ray" in {each.metadata["Name"] for each in importlib.metadata.distributions()}
    assert importlib.metadata.packages_distributions()["ray"] == ["ray"]
    assert not list(importlib.metadata.distributions(name="ray", path=["/nowhere"]))
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("raydp")


def test_a_name_that_is_missing_is_an_attribute_error_that_says_so(ray: ModuleType) -> None:
    with pytest.raises(AttributeError, match=r"module 'ray' has no attribute 'no_such_name': Skate has nothing") as e:
        _ = ray.no_such_name
    assert (e.value.name, e.value.obj) == ("no_such_name", ray)
    with pytest.raises(ImportError, match="cannot import name 'no_such_name' from 'ray'"):
        exec("from ray import no_such_name")


@pytest.mark.parametrize("name", ["ray.no_such_module", "ray.util.no_such_module", "ray.util.queue.below"])
def test_a_module_that_is_missing_is_a_module_not_found_error_that_says_so(name: str, ray: ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"{name}") as error:
        importlib.import_module(name)
    assert error.value.name == name
    if not name.endswith("below"):
        assert "Skate has nothing of that name." in str(error.value)
        assert importlib.util.find_spec(name) is None  # a question, and no import


@pytest.mark.parametrize("name", [f"{module}.{name}" for module, names in absent.NAMES.items() for name in names])
def test_what_libraries_import_without_need_can_be_imported(name: str, ray: ModuleType) -> None:
    module, _, last = name.rpartition(".")
    names: dict[str, Any] = {}
    exec(f"import {module}\nfrom {module} import {last} as found\nfrom {module} import *", names)
    found = names["found"]
    assert names[last] is found
    home = absent.NAMES[module][last]
    if home:
        where, _, real = home.partition(":")
        assert found is getattr(importlib.import_module(where), real)
        return
    with pytest.raises(skate.exceptions.NotInSkateError, match=f"{name} is not part of Skate") as error:
        found(1, x=2)
    assert isinstance(error.value, RuntimeError)
    assert error.value.name == name
    assert error.value.part
    assert found.__module__ == module
    assert pickle.loads(pickle.dumps(found)) is found
    assert pickle.loads(cloudpickle.dumps(found)) is found


def test_the_inside_of_ray_that_libraries_look_at_is_there_without_an_import(ray: ModuleType) -> None:
    assert ray._raylet.ObjectRef is skate.ObjectRef
    assert ray._private.__name__ == "ray._private"
    assert not hasattr(ray._raylet, "CoreWorker")


def test_no_process_belongs_to_a_session_of_ray_train(ray: ModuleType) -> None:
    # lightgbm_ray asks before every training.
    assert importlib.import_module("ray.train._internal.session").get_session() is None


def test_no_module_of_skate_hides_behind_one_that_is_absent() -> None:
    def is_in_skate(name: str) -> bool:
        parent, _, _ = name.rpartition(".")
        if parent != "skate" and not is_in_skate(parent):
            return False
        return importlib.util.find_spec(name) is not None

    assert is_in_skate("skate.train")
    assert [name for name in absent.NAMES if is_in_skate("skate" + name.removeprefix("ray"))] == []


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("import ray.tune", "No module named 'ray.tune': .* without Ray Tune. Instead: start a task"),
        ("import ray.tune.search.sample", "No module named 'ray.tune': .* without Ray Tune"),
        ("import ray.data.dataset", "No module named 'ray.data.dataset': .* without Ray Data"),
        ("import ray.util.state", "No module named 'ray.util.state': .* without Ray's state API. .*`skate list`"),
        ("import ray.job_submission", "`skate submit`"),
        ("from ray.util import pdb", "No module named 'ray.util.pdb': .* without Ray's debugger"),
        ("from ray.util import iter", "No module named 'ray.util.iter': .* without Ray's parallel iterators"),
        ("from ray import get, tune", "No module named 'ray.tune': .* without Ray Tune. Instead: start a task"),
        ("from ray.util import state", "No module named 'ray.util.state': .* without Ray's state API. .*`skate list`"),
        ("from ray.experimental import state", "No module named 'ray.experimental.state': .* without Ray's state API"),
        ("from ray import java_function", "cannot import name 'java_function' from 'ray': .* other languages"),
        ("from ray.data import Dataset", "cannot import name 'Dataset' from 'ray.data': .* without Ray Data"),
        ("from ray.data import *\nfrom ray.data import Dataset", "'Dataset' from 'ray.data': .* without Ray Data"),
        ("from ray.train import TorchTrainer", "cannot import name 'TorchTrainer'"),
        (f"{'; '.join(f'v{i} = 1' for i in range(300))}; from ray import tune", "without Ray Tune"),
        ("from ray.util import no_such_name", r"cannot import name 'no_such_name' from 'skate.util' \("),
    ],
)
def test_libraries_find_out_by_an_import_error_what_is_not_there(statement: str, text: str, ray: ModuleType) -> None:
    with pytest.raises(ImportError, match=text):
        exec(statement)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("from skate import tune", "No module named 'skate.tune': .* without Ray Tune"),
        ("from skate.util import state", "No module named 'skate.util.state': .* without Ray's state API"),
        ("import skate.util; skate.util.state", "module 'skate.util' has no attribute 'state': .* Ray's state API"),
        ("import skate; skate.data", "module 'skate' has no attribute 'data': .* without Ray Data"),
        ("import skate; skate.no_such_name", "module 'skate' has no attribute 'no_such_name'$"),
        ("import skate.util; skate.util.nothing", "has no attribute 'nothing'; it has ActorGroup, "),
    ],
)
def test_skate_says_under_its_own_name_what_of_ray_it_has_not(statement: str, text: str, off: None) -> None:
    with pytest.raises((ImportError, AttributeError), match=text):
        exec(statement)


def test_modules_that_are_asked_for_with_any_name_below_them_are_found(ray: ModuleType) -> None:
    """An idiom of plugins: a name in the list makes `__import__` return the last module of the path."""
    for name in ("ray", "ray.data", "ray.util"):
        assert __import__(name, fromlist=["", "tune", "state", "no_such_name"]) is sys.modules[name]


def test_an_absent_module_says_what_else_it_has_not(ray: ModuleType) -> None:
    data = ray.data  # loaded on first use, as in Ray
    assert data is importlib.import_module("ray.data")
    assert not hasattr(skate, "data")
    with pytest.raises(AttributeError, match=r"module 'ray.data' has no attribute 'read_csv': .*without Ray Data"):
        _ = data.read_csv
    assert not hasattr(ray, "tune")


def test_a_module_below_an_absent_one_needs_no_import_of_its_own(ray: ModuleType) -> None:
    with pytest.raises(skate.exceptions.NotInSkateError, match=r"ray.autoscaler.sdk.request_resources is not part of"):
        ray.autoscaler.sdk.request_resources(num_cpus=1)
    assert not hasattr(ray.autoscaler, "node_provider")


def test_classes_that_are_absent_can_be_named_and_subclassed(off: None) -> None:
    callback = absent.make("ray.tune", "Callback")

    class Mine(callback):  # type: ignore[misc]
        def __init__(self, n: int) -> None:
            self.n = n

    assert not isinstance(3, callback)
    for make in (callback, Mine):
        with pytest.raises(skate.exceptions.NotInSkateError, match=r"ray.tune.Callback is not part of Skate"):
            make(1)
    error = absent.make("ray.tune", "TuneError")
    try:
        raise ValueError("another")
    except error:
        pytest.fail("it is none")
    except ValueError:
        pass


def test_ray_itself_keeps_its_name_once_it_is_imported(off: None) -> None:
    sys.modules["ray"] = ModuleType("ray")
    with pytest.raises(ImportError, match="already imported another module of that name"):
        skate.as_ray()
    assert finder.active_version() == ""


def test_pickles_made_under_either_name_are_of_the_same_things(ray: ModuleType) -> None:
    pool = importlib.import_module("ray.util").ActorPool
    assert b"cskate.util.actor_pool" in pickle.dumps(pool, protocol=0)
    assert pickle.loads(b"cray.util.actor_pool\nActorPool\n.") is pool
    assert pickle.loads(b"cray.exceptions\nRayTaskError\n.") is skate.exceptions.TaskError
    assert pickle.loads(cloudpickle.dumps(ray)) is ray

    def uses_ray() -> Any:
        return ray.get

    assert pickle.loads(cloudpickle.dumps(uses_ray))() is skate.get


def test_tests_can_patch_it(ray: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with mock.patch("ray.get", return_value=7):
        assert ray.get("x") == 7
    assert ray.get is skate.get
    with mock.patch("ray.util.queue.Queue") as fake:
        assert skate.util.queue.Queue is fake
    with mock.patch.object(ray, "new", 1, create=True):
        assert ray.new == 1
    assert not hasattr(ray, "new")
    monkeypatch.setattr("ray.init", None)
    assert ray.init is None
    monkeypatch.undo()
    assert ray.init is skate.init


@pytest.mark.parametrize("name", ["ray", "ray.util.queue", "ray.util"])
def test_lazy_loaders_can_load_it(name: str, off: None) -> None:
    skate.as_ray()
    ours = importlib.import_module("skate" + name.removeprefix("ray"))
    own = ours.__spec__
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    assert module.__doc__  # loads it
    assert sys.modules[name] is module
    assert type(module) is ModuleType
    assert ours.__spec__ is own
    if name == "ray":
        assert module.get is skate.get
    else:
        assert module is ours


def test_modules_imported_by_several_threads_at_once_under_both_names_are_loaded_once() -> None:
    """In an interpreter of its own, in which none of them is loaded."""
    program = (
        "import sys, threading, importlib, skate\n"
        "skate.as_ray()\n"
        "below = ('util', 'util.queue', 'util.actor_pool', 'util.executor')\n"
        "names = [top + '.' + rest for rest in below for top in ('ray', 'skate')]\n"
        "barrier = threading.Barrier(len(names) * 2)\n"
        "found = {}\n"
        "def load(name):\n"
        "    barrier.wait()\n"
        "    found.setdefault(name.partition('.')[2], set()).add(importlib.import_module(name))\n"
        "threads = [threading.Thread(target=load, args=(name,)) for name in names * 2]\n"
        "[each.start() for each in threads]; [each.join() for each in threads]\n"
        "assert {len(each) for each in found.values()} == {1}, found\n"
        "assert len(found) == 4\n"
        "assert all(m.__spec__.name == m.__name__ for each in found.values() for m in each)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_importing_skate_does_not_load_the_alias() -> None:
    code = (
        "import sys, skate; print(*[name for name in sys.modules if name.startswith(('skate._alias', 'skate.as_ray'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout.strip() == b""


def test_as_ray_is_a_module_that_can_be_called(off: None) -> None:
    from skate import as_ray

    assert isinstance(as_ray, ModuleType)
    assert as_ray is importlib.import_module("skate.as_ray") is skate.as_ray
    assert as_ray() is None
    assert importlib.import_module("ray").get is skate.get


def test_a_thread_that_imports_ray_meanwhile_sees_no_half_of_it(off: None) -> None:
    skate.as_ray()
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.append(importlib.import_module("ray").get)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [skate.get] * 8
