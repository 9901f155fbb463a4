"""The package `ray` that `skate alias install` writes into an environment, and `skate alias remove` removes.

It is a distribution as pip makes them: `ray/__init__.py`, and a `ray-….dist-info` whose RECORD lists every file. So pip
lists it, finds that it meets the requirement `ray` of other packages, and can uninstall it. Its INSTALLER says who
wrote it: nothing else is ever removed.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from importlib.machinery import PathFinder
from pathlib import Path

from skate._alias.metadata import INSTALLER, metadata

_INIT = '''\
"""Skate under Ray's name. This is not Ray: `skate alias install` wrote it, and `skate alias remove` removes it."""

import sys

_skate_alias = True

try:
    from skate._alias.finder import activate
except ImportError as error:
    raise ImportError(
        "The package `ray` of this environment is Skate under Ray's name, and Skate cannot be imported: "
        f"{error}. Install Skate again, or remove the package with `pip uninstall ray`.",
        name="ray",
    ) from error

activate(module=sys.modules[__name__], default=@version@)
'''


#: Files of the `.dist-info` besides INSTALLER and RECORD.
_INFO = ("METADATA", "top_level.txt")


class OtherRayError(Exception):
    """There is another `ray`; the text says which and where."""


def find(directory: Path) -> Path | None:
    """The `.dist-info` of the package that Skate has written into that directory, if any."""
    for info in sorted(directory.glob("ray-*.dist-info")):
        if _is_ours(info):
            return info
    return None


def check_no_other(directory: Path, path: list[str]) -> None:
    """Raise OtherRayError if that directory, or another one in which Python looks for modules, has a `ray` already."""
    for found in importlib.metadata.distributions(name="ray", path=path):
        if found.read_text("INSTALLER") != f"{INSTALLER}\n":
            where = found.locate_file("")
            raise OtherRayError(f"Ray {found.version} is installed in {where}.")
    spec = PathFinder.find_spec("ray", path)
    # A folder without __init__.py, which has no origin, hides nothing: an installed package comes before it.
    if spec is not None and spec.origin is not None and find(Path(spec.origin).parents[1]) is None:
        raise OtherRayError(f"there is a module named ray: {spec.origin}.")
    if (directory / "ray").exists() and find(directory) is None:
        raise OtherRayError(f"there is something else at {directory / 'ray'}.")


def install(directory: Path, version: str) -> None:
    """Write the package; one that was there is replaced. Raises OSError if the directory cannot be written to."""
    info = f"ray-{version}.dist-info"
    files = {
        "ray/__init__.py": _INIT.replace("@version@", repr(version)),
        f"{info}/INSTALLER": f"{INSTALLER}\n",
        f"{info}/METADATA": metadata(version),
        f"{info}/top_level.txt": "ray\n",
    }
    record = [f"{name},sha256={_digest(text)},{len(text.encode())}\n" for name, text in files.items()]
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"])
    # Written beside its place and moved there, so that no process sees a part of it.
    draft = Path(tempfile.mkdtemp(prefix=".skate-alias-", dir=directory))
    try:
        for name, text in files.items():
            target = draft / name
            target.parent.mkdir(exist_ok=True)
            target.write_text(text, encoding="utf-8")
        remove(directory)
        for name in (info, "ray"):
            os.rename(draft / name, directory / name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def remove(directory: Path) -> bool:
    """Remove what `install` has written, and nothing else; whether there was any."""
    info = find(directory)
    if info is None:
        return False
    # INSTALLER comes last: if this is interrupted, the rest is found again.
    for name in ("ray/__init__.py", *(f"{info.name}/{each}" for each in (*_INFO, "RECORD", "INSTALLER"))):
        (directory / name).unlink(missing_ok=True)
    shutil.rmtree(directory / "ray" / "__pycache__", ignore_errors=True)
    for folder in (directory / "ray", info):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return True


def _is_ours(info: Path) -> bool:
    try:
        return (info / "INSTALLER").read_text(encoding="utf-8") == f"{INSTALLER}\n"
    except OSError:
        return False


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
