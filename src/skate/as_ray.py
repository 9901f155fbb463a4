"""Skate under Ray's name: `import ray` and `from ray.util import ActorPool` find Skate.

At the top of a program or a notebook, before anything imports ray:

    >>> import skate
    >>> skate.as_ray()
    >>> import ray

Or around a program that stays as it is:

    python -m skate.as_ray program.py …
    python -m skate.as_ray -m module …

The workers of the program have the alias too. `ray.__version__` names the release of Ray whose API is meant; the
argument `version` and the environment variable SKATE_RAY_VERSION choose another. The page docs/coming-from-ray.md has
the rest.
"""

from __future__ import annotations

import sys
from types import ModuleType


class _CallableModule(ModuleType):
    """This module, which can be called."""

    def __call__(self, version: str | None = None) -> None:
        """Have `import ray` find Skate in this process and in the workers of its program.

        `version` is what `ray.__version__` says, for libraries that want another release than the one whose API is
        meant. Calling it again changes the version, also for functions and classes that workers know; actors that live
        keep theirs. Raises ImportError if Ray itself has been imported already.
        """
        from skate._alias.finder import activate

        activate(version)
        # Only if there is one already: a program that has not called `init` must not load the runtime for this.
        current = sys.modules.get("skate._worker.current")
        runtime = current.runtime_or_none() if current is not None else None
        if runtime is not None:
            runtime.forget_prepared()


if __name__ == "__main__":
    from skate._alias.run import main

    main(sys.argv[1:])
else:
    sys.modules[__name__].__class__ = _CallableModule
