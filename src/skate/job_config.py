"""Settings of a whole job as an object, for `init(job_config=…)`."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["JobConfig"]


class JobConfig:
    """What a program wants of its job: `skate.init(job_config=JobConfig(ray_namespace="train"))`.

    runtime_env and ray_namespace are what `init` takes as runtime_env and namespace; arguments of `init` itself win.
    metadata, jvm_options and code_search_path are kept and have no effect.
    """

    def __init__(
        self,
        jvm_options: list[str] | None = None,
        code_search_path: list[str] | None = None,
        runtime_env: dict[str, Any] | None = None,
        _client_job: bool = False,
        metadata: dict[str, str] | None = None,
        ray_namespace: str | None = None,
        default_actor_lifetime: str = "non_detached",
        **others: Any,
    ) -> None:
        unknown = [name for name in others if not name.startswith("_")]
        if unknown:
            raise TypeError(f"JobConfig() has no argument {unknown[0]!r}.")
        self.jvm_options = list(jvm_options or [])
        self.code_search_path = list(code_search_path or [])
        self.metadata = dict(metadata or {})
        self.ray_namespace = ray_namespace
        self.py_logging_config: Any = None
        self.set_runtime_env(runtime_env)
        self.set_default_actor_lifetime(default_actor_lifetime)

    def set_runtime_env(self, runtime_env: dict[str, Any] | None, validate: bool = True) -> None:
        from skate._options import task_options

        self.runtime_env = task_options(runtime_env=runtime_env or {}).runtime_env

    def set_ray_namespace(self, ray_namespace: str) -> None:
        self.ray_namespace = ray_namespace

    def set_metadata(self, key: str, value: str) -> None:
        self.metadata[key] = value

    def set_py_logging_config(self, logging_config: Any = None) -> None:
        """A `skate.LoggingConfig`."""
        self.py_logging_config = logging_config

    def set_default_actor_lifetime(self, default_actor_lifetime: str) -> None:
        if default_actor_lifetime not in ("detached", "non_detached"):
            raise ValueError(f"JobConfig(default_actor_lifetime={default_actor_lifetime!r}): it may be 'non_detached'.")
        if default_actor_lifetime == "detached":
            raise ValueError(
                "JobConfig(default_actor_lifetime='detached') is not part of Skate.\n"
                "  next: give each such actor lifetime='detached' in @skate.remote(...) or .options(...)."
            )
        self.default_actor_lifetime = default_actor_lifetime

    @classmethod
    def from_json(cls, job_config_json: str) -> JobConfig:
        return cls(**json.loads(job_config_json))


def checked_job_config(job_config: object) -> JobConfig:
    if not isinstance(job_config, JobConfig):
        raise TypeError(f"init(job_config={job_config!r}): it may be a skate.job_config.JobConfig.")
    return job_config
