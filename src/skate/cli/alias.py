"""`skate alias install` and `remove`: a package `ray` in this environment that is Skate."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from skate._alias import package
from skate._alias.finder import RAY_VERSION, VERSION_VARIABLE, is_release
from skate._core.version import VERSION
from skate.cli.trouble import Trouble


def alias(what: str) -> int:
    """Install the package, or remove it."""
    directory = Path(sysconfig.get_path("purelib"))
    try:
        return _install(directory) if what == "install" else _remove(directory)
    except OSError as error:
        raise Trouble(
            f"cannot write to the packages of this environment: {error.strerror}: {error.filename}.",
            "use an environment of your own (python -m venv), or run the program with python -m skate.as_ray.",
        ) from None


def _install(directory: Path) -> int:
    version = os.environ.get(VERSION_VARIABLE) or RAY_VERSION
    if not is_release(version):
        raise Trouble(
            f"{VERSION_VARIABLE} is {version!r}, which is no version of Ray.", f"set one such as {RAY_VERSION}."
        )
    try:
        package.check_no_other(directory, sys.path)
    except package.OtherRayError as error:
        raise Trouble(
            f"the name ray is taken: {error}",
            "run programs with `python -m skate.as_ray program.py`, which leaves it alone, or use another environment.",
        ) from None
    package.install(directory, version)
    print(f"Installed: `import ray` finds Skate {VERSION}, which says that it is Ray {version}, in {directory}.")
    print("`skate alias remove` removes it.")
    return 0


def _remove(directory: Path) -> int:
    if package.remove(directory):
        print(f"Removed the package ray from {directory}.")
    else:
        print(f"Nothing to remove: {directory} has no package ray of Skate.")
    return 0
