"""What `import ray`, and the import of any module below it, finds while the alias is on.

One finder, the first on `sys.meta_path`, answers for `ray` and for everything below it:

    ray              a module of its own, with every name that `skate` has; its `__version__` is that of a Ray release
    ray.util.queue   the module `skate.util.queue` itself, entered in `sys.modules` under a second name
    ray.data         a module made from the table in `absent.py`: it can be imported, and using it is an error
    ray.dashboard    ModuleNotFoundError

Invariants:

- Nothing is loaded twice. A loader hands out the module of Skate, and gives it its own `__spec__` back, which the
  import system replaces on the way. So `ray.util.queue is skate.util.queue`, classes and exceptions are the same under
  both names, and a pickle made under one name can be loaded under the other.
- The module that the import system has made, or was given, is the one that stays in `sys.modules`. Lazy loaders
  (`importlib.util.LazyLoader`, for one) refuse a module that is swapped for another while it is imported.
- `ray` is an ordinary module that holds its names itself: `ray.get` costs what `skate.get` costs, and tests can patch
  it.

Knows not: the runtime. A driver tells its workers the version of the alias with its job (`_worker/surroundings.py`).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from skate._alias import absent
from skate._core.version import COMMIT, VERSION

if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder

#: The release of Ray whose API Skate has. Libraries compare it with the one that they need.
RAY_VERSION = "2.60.0"
#: The environment variable that names another release.
VERSION_VARIABLE = "SKATE_RAY_VERSION"

_RELEASE = re.compile(r"\d+(\.\d+)*((a|b|rc|\.dev|\.post)\d+)*(\+[a-z0-9.]+)?")
#: Where interpreters find `ray` that `multiprocessing` starts (`spawn`, `forkserver`): they get the search path of
#: their parent, and none of its finders. There is nothing else in that directory.
_FOR_CHILDREN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child")
#: Modules of Ray that are loaded when `ray` is first asked for them, without an import.
_LOADED_ON_USE = frozenset({"_private", "_raylet", "autoscaler", "data"})


def activate(version: str | None = None, *, module: ModuleType | None = None, default: str = RAY_VERSION) -> None:
    """Switch the alias on in this process; a later call can only change the version.

    `module` is the installed package `ray` (`package.py`), which calls this while it is imported, and `default` the
    version that it was installed with.
    """
    global _active
    if version is not None and not isinstance(version, str):
        raise TypeError(f"as_ray(version={version!r}): it may be a text such as {RAY_VERSION!r}.")
    chosen = os.environ.get(VERSION_VARIABLE, "") if version is None else version
    if (chosen or version is not None) and not is_release(chosen):
        said_by = f"as_ray(version={chosen!r})" if version is not None else f"{VERSION_VARIABLE}={chosen}"
        raise ValueError(f"{said_by}: that is no version of Ray; one has the form {RAY_VERSION!r}.")
    loaded = sys.modules.get("ray")
    if loaded is not None and loaded is not module and not is_alias(loaded):
        where = getattr(loaded, "__file__", None) or "an unknown place"
        raise ImportError(
            f"Skate cannot take the name `ray`: this process has already imported another module of that name, from "
            f"{where}.\n"
            "  next: switch the alias on before anything imports ray: call skate.as_ray() at the top of the program.",
            name="ray",
        )
    if _active is None:
        _active = AliasFinder(chosen or default)
        sys.meta_path.insert(0, _active)
        if _FOR_CHILDREN not in sys.path:
            sys.path.insert(1, _FOR_CHILDREN)  # the first is the program's own directory, and stays so
    elif chosen and version:
        _active.version = chosen
        if loaded is not None:
            loaded.__dict__["__version__"] = chosen
    if module is not None:
        _fill(module, _active.version)


def is_release(version: str) -> bool:
    """Whether a release of Ray could have that version."""
    return _RELEASE.fullmatch(version) is not None


def active_version() -> str:
    """The version that `ray.__version__` has in this process; empty if the alias is off."""
    return _active.version if _active is not None else ""


def is_alias(module: ModuleType) -> bool:
    """Whether that module named `ray` is Skate's."""
    return "_skate_alias" in vars(module)


class AliasFinder:
    """Answers for `ray` and everything below it; the import system asks it first."""

    def __init__(self, version: str) -> None:
        self.version = version

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "ray":
            return _spec_of_ray(self)
        if not fullname.startswith("ray."):
            return None
        spec = _spec_of_same(fullname) or absent.find_spec(fullname)
        if spec is None and _is_import(sys._getframe(1)):
            raise ModuleNotFoundError(f"No module named {fullname!r}: {absent.reason(fullname)}", name=fullname)
        return spec

    def invalidate_caches(self) -> None:
        """There are none."""

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        """What `importlib.metadata` knows of `ray`: its name and version."""
        name = context.name if context is not None else None
        if (name is None or name.lower() == "ray") and (context is None or context.path is sys.path):
            from skate._alias.metadata import AliasDistribution

            yield AliasDistribution(self.version)


#: The finder of this process, once the alias is on.
_active: AliasFinder | None = None


def _is_import(caller: Any) -> bool:
    """Whether a module is being imported, rather than only looked for.

    `importlib.util.find_spec` says None about a module that is not there, so a finder must not raise then. An import
    fails in any case, and we want it to say more than the name.
    """
    frame = caller.f_back
    return frame is not None and frame.f_code.co_name == "_find_and_load_unlocked"


def _spec_of_ray(finder: AliasFinder) -> ModuleSpec:
    skate = sys.modules["skate"]
    spec = ModuleSpec("ray", cast(Any, _RayLoader(finder)), origin=skate.__file__, is_package=True)
    assert spec.submodule_search_locations is not None
    spec.submodule_search_locations.extend(skate.__path__)
    spec.has_location = True
    return spec


def _spec_of_same(fullname: str) -> ModuleSpec | None:
    """A module of Skate under Ray's name."""
    name = "skate" + fullname.removeprefix("ray")
    try:
        found = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):  # the module above it is not there, or is a program
        return None
    if found is None:
        return None
    is_package = found.submodule_search_locations is not None
    spec = ModuleSpec(fullname, cast(Any, _SameLoader(name)), origin=found.origin, is_package=is_package)
    if spec.submodule_search_locations is not None:
        spec.submodule_search_locations.extend(found.submodule_search_locations or ())
    return spec


class _RayLoader:
    """Makes the module `ray`. (Not an `importlib.abc.Loader`: importing that takes 5 ms.)"""

    def __init__(self, finder: AliasFinder) -> None:
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary one."""

    def exec_module(self, module: ModuleType) -> None:
        _fill(module, self._finder.version)


class _SameLoader:
    """Hands out a module of Skate under a second name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: tuple[Any, Any] = (None, None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._own = module.__spec__, module.__loader__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__, module.__loader__ = self._own


def _fill(module: ModuleType, version: str) -> None:
    """Give the module `ray` the names that `skate` has."""
    skate = sys.modules["skate"]
    names = vars(module)
    names.update({name: value for name, value in vars(skate).items() if not name.startswith("_")})

    def __getattr__(name: str) -> Any:  # noqa: N807 - the hook of the module
        """What Skate loads on first use."""
        try:
            value = getattr(skate, name)
        except AttributeError:
            if name in _LOADED_ON_USE and absent.find_spec(f"ray.{name}") is not None:
                return importlib.import_module(f"ray.{name}")
            raise absent.missing(module, name, ": Skate has nothing of that name.") from None
        names[name] = value
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*names, *dir(skate)})

    # pkgutil lists what can be imported below it. The installed package has a folder of its own.
    names["__path__"] = list(dict.fromkeys([*names["__path__"], *skate.__path__]))
    names.update(
        __doc__=f"Skate {VERSION} under Ray's name.",
        __all__=list(skate.__all__),
        __version__=version,
        __commit__=COMMIT,
        __getattr__=__getattr__,
        __dir__=__dir__,
        _skate_alias=True,
    )
