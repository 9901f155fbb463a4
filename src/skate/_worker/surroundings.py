"""Where a program's modules and files are: what a worker takes over from the driver before it works for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from skate._core.environment import ENVIRONMENT_VARIABLE
from skate._core.task import Job

#: The module search path that all processes of the program have.
job_path: set[str] = set()
#: What `ray.__version__` says in all processes of the program, if Skate has Ray's name in them.
job_ray_version = ""
#: The program that this worker works for.
_program = b""
#: How log records look in all processes of the program.
_logging = ""


def module_path() -> list[str]:
    """Where this process looks for modules, as far as Python does so and others can be told."""
    here = working_directory()
    return [path or here for path in sys.path if isinstance(path, str) and (path or here) and _can_be_told(path)]


def working_directory() -> str:
    """Empty if it is gone, or cannot be told."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return ""
    return here if _can_be_told(here) else ""


def _can_be_told(path: str) -> bool:
    """Its name is text, and not just bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def inherited_env() -> dict[str, str]:
    """Variables that a process was started with because its `runtime_env` has them."""
    said = os.environ.get(ENVIRONMENT_VARIABLE)
    if not said:
        return {}
    import json

    variables: dict[str, str] = json.loads(said)
    return variables


def ray_version() -> str:
    """What `ray.__version__` says in this process, if Skate has Ray's name here (`_alias/finder.py`); else empty."""
    finder = sys.modules.get("skate._alias.finder")
    return finder.active_version() if finder is not None else ""


def job_logging() -> str:
    """What `init(logging_config=…)` was given in this process, as JSON; else empty."""
    return _logging


def set_job_logging(logging: str) -> None:
    global _logging
    _logging = logging


def set_job(path: Iterable[str], version: str) -> None:
    """What all processes of the program have: its module search path, and its version of the alias, if any."""
    global job_ray_version
    job_path.clear()
    job_path.update(path)
    job_ray_version = version


def late_ray_version() -> str:
    """What `ray.__version__` says here, if that is more than the processes of the program know."""
    version = ray_version()
    return version if version != job_ray_version else ""


def use_ray_version(version: str) -> None:
    """Give Skate Ray's name in this process, as in the one that it works for."""
    if version and version != ray_version():
        from skate._alias.finder import activate

        activate(version)


def take_up(job: Job) -> None:
    """In a worker, before it works for anybody; it works for no other program, though the driver may be gone later.

    The PYTHONPATH of its `runtime_env` comes first. What its own interpreter needs comes last: the driver's may be
    elsewhere.
    """
    global _program
    if _program == job.program:
        return
    _program = job.program
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    installed = (sys.prefix + os.sep, sys.base_prefix + os.sep)
    own = [path for path in sys.path if path == package or path.startswith(installed)]
    first = [path for path in inherited_env().get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = dict.fromkeys([*first, *job.sys_path, *own])
    set_job(job.sys_path, job.ray_version)
    use_ray_version(job.ray_version)
    if job.logging:
        import json

        from skate._worker.logging_config import LoggingConfig

        LoggingConfig.from_dict(json.loads(job.logging)).apply()
    if job.cwd:
        try:
            os.chdir(job.cwd)
        except FileNotFoundError:
            pass  # it is on the driver's machine
        except OSError as error:
            sys.stderr.write(f"skate: a worker could not enter the driver's working directory: {error}\n")
