"""What Ray has and Skate has not, and what an import or a call of it says.

There are two kinds. Most of what is not there is a ModuleNotFoundError when it is imported: libraries find out in this
way which parts of Ray they can use (`try: from ray import tune`), and go on without those. But some libraries import a
name at their top that only few of their users call. Those names are in `NAMES`: they can be imported, and raise
`exceptions.NotInSkateError` when they are called.

So a name belongs into `NAMES` only if a library that is of use without it imports it unconditionally. `ray.tune` must
not get there: xgboost_ray, for one, would take an importable `ray.tune` for the real one and call it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, NoReturn, cast

from skate.exceptions import NotInSkateError

#: Modules that can be imported, and what they have. A name stands for nothing, or for what Skate has elsewhere.
NAMES: dict[str, dict[str, str]] = {
    # modin calls it in its workers.
    "ray._private": {},
    "ray._private.services": {"get_node_ip_address": "skate.util:get_node_ip_address"},
    # Hamilton asks with it what is a reference.
    "ray._raylet": {"ObjectRef": "skate:ObjectRef", "ObjectRefGenerator": "skate:ObjectRefGenerator"},
    # For daft.
    "ray.autoscaler": {},
    "ray.autoscaler.sdk": {"request_resources": ""},
    # For modin.
    "ray.data": {"from_pandas_refs": ""},
    # xgboost_ray and lightgbm_ray ask whether they were started by Ray Train.
    "ray.train._internal": {},
    "ray.train._internal.session": {"get_session": "skate._alias.absent:no_session"},
}

#: Modules of Ray, the part of Ray that they are, and what can be done instead.
_MODULES: dict[str, tuple[str, str]] = {
    "ray.air": ("Ray AIR", ""),
    "ray.autoscaler": ("Ray's autoscaler", "nodes are started with `skate start`."),
    "ray.dag": ("the lazy graphs of Ray", "call .remote() where .bind() is called."),
    "ray.dashboard": ("Ray's dashboard", "`skate status` and `skate list` show what runs."),
    "ray.data": ("Ray Data", "put tables and arrays with skate.put(), and pass the references to tasks."),
    "ray.job_submission": ("Ray's client for jobs", "`skate submit` runs a program on the cluster."),
    "ray.llm": ("Ray's library for language models", ""),
    "ray.rllib": ("RLlib", ""),
    "ray.serve": ("the rest of Ray Serve", "docs/serve.md has what there is."),
    "ray.train": ("the rest of Ray Train", "ray.train.torch.TorchTrainer runs any function on several workers."),
    "ray.tune": ("Ray Tune", "start a task for each trial, and take results as they come with skate.as_completed()."),
    "ray.util.client": ("Ray's client protocol", "skate.init('skate://host:port') connects from any machine."),
    "ray.util.state": ("Ray's state API", "`skate list`, `skate status` and skate.why() tell what there is."),
    "ray.experimental.state": ("Ray's state API", "`skate list`, `skate status` and skate.why() tell what there is."),
    "ray.util.iter": ("Ray's parallel iterators", "skate.map() runs a function over an iterable."),
    "ray.util.spark": ("Ray's clusters on Spark", ""),
    "ray.util.tracing": ("Ray's tracing", "skate.timeline() shows every task."),
    **dict.fromkeys(
        ("ray.util.debugpy", "ray.util.pdb", "ray.util.rpdb"),
        ("Ray's debugger", "call the plain function, which runs in this process."),
    ),
    "ray.workflow": ("Ray Workflow, which Ray itself has no longer", ""),
    "ray._private": ("the inside of Ray", ""),
    "ray._raylet": ("the inside of Ray", ""),
    "ray.core": ("the inside of Ray", ""),
    "ray.internal": ("the inside of Ray", ""),
    "ray.cross_language": ("other languages than Python", ""),
}
#: The same for names that are no modules.
_OTHERS = dict.fromkeys(
    ("ray.Language", "ray.cpp_function", "ray.java_actor_class", "ray.java_function"),
    ("other languages than Python", ""),
)
_PARTS = _MODULES | _OTHERS


def reason(name: str) -> str:
    """Why that name of Ray is not there, as the end of an error's sentence."""
    what, instead = _part_of(name)
    if not what:
        return "Skate has nothing of that name."
    return f"Skate has the API of Ray Core for Python, without {what}." + (instead and f" Instead: {instead}")


def missing(module: ModuleType, name: str, otherwise: str = "") -> Exception:
    """The error of a module's `__getattr__`, which calls this, for a name that the module does not have.

    It is an AttributeError. But in `from ray import tune` the import system would drop its text, and the error of the
    import of `ray.tune` as well: it goes on if a name or a module is not there, and `cannot import name` is all that
    it says in the end. So for what belongs to a part of Ray the error is raised one step earlier, as an ImportError,
    when the import system asks whether the module has the name.

    otherwise: what is said about a name that belongs to no part of Ray that we know.
    """
    full = ".".join(["ray", *module.__name__.split(".")[1:], name])
    known = bool(_part_of(full)[0])
    if known and _is_from_import(sys._getframe(2)) and not _can_be_imported(module, name):
        seen = full if "_skate_alias" in vars(sys.modules.get("ray", module)) else f"{module.__name__}.{name}"
        if full in _MODULES:
            return ModuleNotFoundError(f"No module named {seen!r}: {reason(full)}", name=seen)
        where = seen.rpartition(".")[0]
        return ImportError(f"cannot import name {name!r} from {where!r}: {reason(full)}", name=where)
    why = f": {reason(full)}" if known else otherwise
    return AttributeError(f"module {module.__name__!r} has no attribute {name!r}{why}", name=name, obj=module)


def _is_from_import(frame: FrameType) -> bool:
    """Whether that frame is of the import system, which works on a statement `from … import …`.

    `__import__("ray.data", fromlist=["anything"])` asks for the module, and must not fail.
    """
    if frame.f_code.co_name != "_handle_fromlist" or frame.f_back is None:
        return False
    from opcode import opmap

    code, at = frame.f_back.f_code.co_code, frame.f_back.f_lasti
    while code[at] == opmap["EXTENDED_ARG"]:  # before the instruction, in Python 3.10 and in code with many names
        at += 2
    return code[at] == opmap["IMPORT_NAME"]


def _can_be_imported(module: ModuleType, name: str) -> bool:
    try:
        return importlib.util.find_spec(f"{module.__name__}.{name}") is not None
    except (ImportError, ValueError):
        return False


def _part_of(name: str) -> tuple[str, str]:
    """The part of Ray that the name belongs to, and what to do instead."""
    while name:
        if name in _PARTS:
            return _PARTS[name]
        name = name.rpartition(".")[0]
    return "", ""


def find_spec(fullname: str) -> ModuleSpec | None:
    """A module in the table; None for any other."""
    return ModuleSpec(fullname, cast(Any, _AbsentLoader()), is_package=True) if fullname in NAMES else None


class _AbsentLoader:
    """Makes a module of the table."""

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary one."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__

        def __getattr__(last: str) -> ModuleType:  # noqa: N807 - the hook of the module
            if f"{name}.{last}" in NAMES:  # as in Ray, `ray.autoscaler.sdk` needs no import of its own
                return importlib.import_module(f"{name}.{last}")
            raise missing(module, last)

        vars(module).update(
            __doc__=f"Of {_part_of(name)[0] or 'Ray'}; Skate has it so that it can be imported.",
            __all__=list(NAMES[name]),
            __getattr__=__getattr__,
        )
        for each, home in NAMES[name].items():
            where, _, real = home.partition(":")
            setattr(module, each, getattr(importlib.import_module(where), real) if where else make(name, each))


def no_session() -> None:
    """The session of Ray Train that this process belongs to: none, as anywhere outside Ray Train."""


def make(module: str, name: str) -> Any:
    """What stands for a name of Ray that Skate has not: a class if its name is that of one, else a function.

    It can be imported, named in annotations, asked for with isinstance() and subclassed. Calling it, or making an
    instance of it or of a subclass, raises NotInSkateError.
    """
    full = f"{module}.{name}"

    def fail(*_args: Any, **_keywords: Any) -> NoReturn:
        what, instead = _part_of(full)
        raise NotInSkateError(name=full, part=what, instead=instead)

    fail.__module__, fail.__doc__ = module, f"Raises NotInSkateError: Skate has no {full}."
    if name.lstrip("_")[:1].isupper():
        base = Exception if name.endswith("Error") else object
        return type(name, (base,), {"__module__": module, "__doc__": fail.__doc__, "__new__": fail})
    fail.__name__ = fail.__qualname__ = name
    return fail
