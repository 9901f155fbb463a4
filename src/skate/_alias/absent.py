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
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn, cast

from skate.exceptions import NotInSkateError

#: Modules that can be imported, and what they have. A name stands for nothing, or for what Skate has elsewhere.
NAMES: dict[str, dict[str, str]] = {
    # modin calls it in its workers.
    "ray._private": {},
    "ray._private.services": {"get_node_ip_address": "skate.util:get_node_ip_address"},
    # For daft.
    "ray.autoscaler": {},
    "ray.autoscaler.sdk": {"request_resources": ""},
    # For modin.
    "ray.data": {"from_pandas_refs": ""},
    # For xgboost_ray and lightgbm_ray.
    "ray.train": {},
    "ray.train._internal": {},
    "ray.train._internal.session": {"get_session": ""},
}

#: Parts of Ray, what they are, and what can be done instead.
_PARTS: dict[str, tuple[str, str]] = {
    "ray.air": ("Ray AIR", ""),
    "ray.autoscaler": ("Ray's autoscaler", "nodes are started with `skate start`."),
    "ray.dag": ("the lazy graphs of Ray", "call .remote() where .bind() is called."),
    "ray.dashboard": ("Ray's dashboard", "`skate status` and `skate list` show what runs."),
    "ray.data": ("Ray Data", "put tables and arrays with skate.put(), and pass the references to tasks."),
    "ray.job_submission": ("Ray's client for jobs", "`skate submit` runs a program on the cluster."),
    "ray.llm": ("Ray's library for language models", ""),
    "ray.rllib": ("RLlib", ""),
    "ray.serve": ("Ray Serve", "actors with async methods can answer many calls at a time."),
    "ray.train": ("Ray Train", "actors can be trained in step with each other; examples/parameter_server.py does so."),
    "ray.tune": ("Ray Tune", "start a task for each trial, and take results as they come with skate.as_completed()."),
    "ray.util.client": ("Ray's client protocol", "skate.init('skate://host:port') connects from any machine."),
    "ray.util.collective": ("Ray's collective communication", "pass references between actors."),
    "ray.util.state": ("Ray's state API", "`skate list`, `skate status` and skate.why() tell what there is."),
    "ray.experimental.state": ("Ray's state API", "`skate list`, `skate status` and skate.why() tell what there is."),
    "ray.util.tracing": ("Ray's tracing", "skate.timeline() shows every task."),
    "ray.workflow": ("Ray Workflow, which Ray itself has no longer", ""),
    "ray._private": ("the inside of Ray", ""),
    "ray._raylet": ("the inside of Ray", ""),
    "ray.core": ("the inside of Ray", ""),
    "ray.internal": ("the inside of Ray", ""),
    **dict.fromkeys(
        ("ray.Language", "ray.cpp_function", "ray.cross_language", "ray.java_actor_class", "ray.java_function"),
        ("other languages than Python", ""),
    ),
}


def reason(name: str) -> str:
    """Why that name of Ray is not there, as the end of an error's sentence."""
    what, instead = _part_of(name)
    if not what:
        return "Skate has nothing of that name."
    return f"Skate has the API of Ray Core for Python, without {what}." + (instead and f" Instead: {instead}")


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

        def __getattr__(missing: str) -> NoReturn:  # noqa: N807 - the hook of the module
            text = f"module {name!r} has no attribute {missing!r}: {reason(f'{name}.{missing}')}"
            raise AttributeError(text, name=missing, obj=module)

        vars(module).update(
            __doc__=f"Of {_part_of(name)[0] or 'Ray'}; Skate has it so that it can be imported.",
            __all__=list(NAMES[name]),
            __getattr__=__getattr__,
        )
        for each, home in NAMES[name].items():
            where, _, real = home.partition(":")
            setattr(module, each, getattr(importlib.import_module(where), real) if where else make(name, each))


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
