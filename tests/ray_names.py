"""Lists the public names of an installed Ray: `python tests/ray_names.py` in an environment that has it, not Skate.

Nothing is started. A name of a module counts as public if it is in the module's `__all__`, or is defined in the module
itself: a class, a function, a constant in capitals. A submodule counts if its name is public. What a module merely
imports does not count. The output goes into `unit/ray_names.json`, beside the reasons for what Skate has not.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
import warnings

MODULES = [
    "ray",
    "ray.actor",
    "ray.client_builder",
    "ray.cluster_utils",
    "ray.exceptions",
    "ray.experimental",
    "ray.experimental.tqdm_ray",
    "ray.job_config",
    "ray.remote_function",
    "ray.runtime_context",
    "ray.runtime_env",
    "ray.train",
    "ray.train.torch",
    "ray.types",
    "ray.util",
    "ray.util.accelerators",
    "ray.util.annotations",
    "ray.util.check_serialize",
    "ray.util.debug",
    "ray.util.metrics",
    "ray.util.multiprocessing",
    "ray.util.placement_group",
    "ray.util.queue",
    "ray.util.scheduling_strategies",
    "ray.util.serialization",
]


def public_names(module: types.ModuleType) -> list[str]:
    listed = set(getattr(module, "__all__", ()))
    found = set(listed)
    for name in dir(module):
        if name.startswith("_") or name in listed:
            continue
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            own = value.__name__ == f"{module.__name__}.{name}"
        elif isinstance(value, (type, types.FunctionType)):
            own = value.__module__ == module.__name__
        else:
            own = name.isupper() and len(name) > 1 and name != "TYPE_CHECKING"
        if own:
            found.add(name)
    return sorted(found)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    names = {name: public_names(importlib.import_module(name)) for name in MODULES}
    version = importlib.import_module("ray").__version__
    json.dump({"version": version, "names": names}, sys.stdout, indent=1)
