"""The environment that a job, a task or an actor runs in, as a typed form of the dict that `runtime_env=` takes.

@skate.remote(runtime_env=RuntimeEnv(env_vars={"OMP_NUM_THREADS": "1"}))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from skate._options import task_options

__all__ = ["RuntimeEnv", "RuntimeEnvConfig"]


class RuntimeEnvConfig(dict[str, Any]):
    """How long an environment may take to set up, and when that is done.

    It can be made and read. Skate sets up nothing that takes time, so `RuntimeEnv` does not take it.
    """

    def __init__(
        self, setup_timeout_seconds: int = 600, eager_install: bool = True, log_files: list[str] | None = None
    ) -> None:
        if not isinstance(setup_timeout_seconds, int) or (setup_timeout_seconds <= 0 and setup_timeout_seconds != -1):
            raise ValueError(
                f"RuntimeEnvConfig(setup_timeout_seconds={setup_timeout_seconds!r}): it may be a whole number of "
                "seconds above 0, or -1 for no limit."
            )
        if not isinstance(eager_install, bool):
            raise TypeError(f"RuntimeEnvConfig(eager_install={eager_install!r}): it may be True or False.")
        super().__init__(
            setup_timeout_seconds=setup_timeout_seconds, eager_install=eager_install, log_files=list(log_files or [])
        )

    def to_dict(self) -> dict[str, Any]:
        return dict(self)


class RuntimeEnv(dict[str, Any]):
    """A dict with the environment variables of a process: `{"env_vars": {…}}`.

    A key that Ray has and Skate has not (working_dir, pip, conda, …) is a ValueError that names it.
    """

    def __init__(self, *, env_vars: Mapping[str, str] | None = None, **others: Any) -> None:
        given = {name: value for name, value in others.items() if value is not None and name != "_validate"}
        if env_vars is not None:
            given["env_vars"] = dict(env_vars)
        super().__init__(task_options(runtime_env=given).runtime_env)

    def env_vars(self) -> dict[str, str]:
        return dict(self.get("env_vars", {}))

    def to_dict(self) -> dict[str, Any]:
        return dict(self)

    def serialize(self) -> str:
        """The environment as JSON."""
        return json.dumps(self, sort_keys=True)

    @classmethod
    def deserialize(cls, serialized_runtime_env: str) -> RuntimeEnv:
        return cls(**json.loads(serialized_runtime_env))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (dict(self),)


def _again(given: dict[str, Any]) -> RuntimeEnv:
    return RuntimeEnv(**given)
