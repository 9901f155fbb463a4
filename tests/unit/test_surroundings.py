"""What a worker takes over from the driver of its job."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from skate._core.environment import ENVIRONMENT_VARIABLE
from skate._core.task import Job
from skate._worker import surroundings


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that is new."""
    monkeypatch.setattr(surroundings, "_program", b"")
    monkeypatch.setattr(surroundings, "job_path", set())
    monkeypatch.setattr(surroundings, "job_ray_version", "")
    monkeypatch.setattr(sys, "prefix", "/node")
    monkeypatch.setattr(sys, "path", ["/where/it/was/started", "/node/lib", "/node/shared"])
    monkeypatch.chdir(tmp_path)


def test_the_modules_of_the_program_come_first_and_those_of_no_other() -> None:
    surroundings.take_up(Job(b"1", sys_path=("/one", "/node/shared"), program=b"p"))
    assert sys.path == ["/one", "/node/shared", "/node/lib"]
    assert surroundings.job_path == {"/one", "/node/shared"}
    sys.path.append("/late")
    surroundings.take_up(Job(b"1", sys_path=("/one", "/node/shared"), program=b"p"))  # its driver has ended
    assert sys.path == ["/one", "/node/shared", "/node/lib", "/late"]


def test_where_its_environment_says_that_modules_are_comes_before_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, json.dumps({"PYTHONPATH": "/mine::/one"}))
    surroundings.take_up(Job(b"1", sys_path=("/first", "/one"), program=b"p"))
    assert sys.path == ["/mine", "/one", "/first", "/node/lib", "/node/shared"]


def test_the_working_directory_is_the_drivers_where_there_is_such_a_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    surroundings.take_up(Job(b"1", cwd=str(tmp_path / "there"), program=b"p"))
    assert Path.cwd() == tmp_path / "there"
    surroundings.take_up(Job(b"1", cwd=str(tmp_path / "on the driver's machine"), program=b"q"))
    assert capsys.readouterr().err == ""
    (tmp_path / "file").touch()
    surroundings.take_up(Job(b"1", cwd=str(tmp_path / "file"), program=b"r"))
    assert "could not enter the driver's working directory" in capsys.readouterr().err
    assert Path.cwd() == tmp_path / "there"


def test_what_can_be_told_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/a", Path("/b"), "/\udcff"])
    assert surroundings.module_path() == [str(tmp_path), "/a"]
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert surroundings.working_directory() == ""
    assert surroundings.module_path() == ["/a"]
