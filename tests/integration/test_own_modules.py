"""Daemons and zygotes import Skate and what it needs, wherever that is, and nothing of the user's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import skate
from programs import PROGRAM_TIMEOUT_S, lines
from skate._node import interpreter

MAIN = """
import os
import skate

skate.init(num_cpus=1)

@skate.remote
def work():
    import beside
    return beside.VALUE, os.getpid(), skate.__file__

print(*skate.get(work.remote()), os.getpid(), skate.__file__, sep="\\n")
"""

#: A name that the standard library asks for on every system, and that Linux does not have.
SHADOW = """
import os, sys
from skate._node import interpreter

with open(os.path.join(os.path.dirname(__file__), "imported"), "a") as file:
    file.write(f"{os.getpid()} {interpreter.runs_no_user_code}\\n")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "beside.py").write_text("VALUE = 42")
    (tmp_path / "nt.py").write_text(SHADOW)
    return tmp_path


def run(project: Path, *arguments: str, directory: Path | None = None, **variables: str) -> tuple[str, str, str]:
    """The pids of worker and driver, and where they have Skate from."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory or project,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    value, worker, worker_has, driver, driver_has = done.stdout.splitlines()
    assert value == "42"
    assert worker_has == driver_has
    return worker, driver, driver_has


@pytest.mark.parametrize("how", ["a script", "a module", "-c", "PYTHONPATH"])
def test_a_module_of_the_user_is_imported_by_the_program_and_its_workers_only(how: str, project: Path) -> None:
    if how == "a script":
        found = run(project, "main.py")
    elif how == "a module":
        found = run(project, "-m", "main")
    elif how == "-c":
        found = run(project, "-c", "import main")
    else:
        elsewhere = project / "elsewhere"
        elsewhere.mkdir()
        found = run(project, "-m", "main", directory=elsewhere, PYTHONPATH=str(project))
    assert {line.split()[0] for line in lines(project / "imported")} <= {*found[:2]}


def test_skate_may_lie_beside_the_script(project: Path) -> None:
    """Then the daemon has the script's directory in its path; it knows at least that it must start no other."""
    (project / "skate").symlink_to(Path(skate.__file__).parent)
    worker, driver, has = run(project, "main.py")
    assert Path(has).parent == project / "skate"
    imported = dict(line.split() for line in lines(project / "imported"))
    assert {state for pid, state in imported.items() if pid not in (worker, driver)} <= {"True"}
    assert {imported.get(pid, "False") for pid in (worker, driver)} == {"False"}


def test_what_skate_needs_may_lie_in_any_directory(project: Path) -> None:
    """Nothing is installed for this interpreter (-S), and everything is in a directory of its own."""
    places = []
    for name in ("skate", "msgspec", "cloudpickle"):
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        place = project / f"for {name}"
        place.mkdir()
        (place / name).symlink_to(Path(found.origin).parent)
        places.append(str(place))
    _, _, has = run(project, "-S", "-c", f"import sys; sys.path += {places!r}; import main")
    assert has == str(project / "for skate" / "skate" / "__init__.py")


def test_init_in_a_process_of_skate_itself_is_an_error_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    @skate.remote
    def nothing() -> None: ...

    monkeypatch.setattr(interpreter, "runs_no_user_code", True)
    for use in (skate.init, nothing.remote):
        with pytest.raises(RuntimeError, match="process of Skate itself"):
            use()
    assert not skate.is_initialized()
