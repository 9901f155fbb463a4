"""`skate serve`: what can be said on the command line, and what it says about mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from skate.cli import main
from skate.cli.trouble import Trouble
from skate.serve import reload
from skate.serve.command import parse
from skate.serve.exceptions import DeployFailedError, ServeError
from skate.serve.metrics import Snapshot
from skate.serve.report import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    ServeStatus,
)
from skate.serve.status_text import plain, table, urls

MODULE = """
from skate import serve
import served_part


@serve.deployment
class Greeter:
    def __init__(self, word="hello"):
        self.word = word

    def __call__(self, request):
        return self.word


app = Greeter.bind()
nothing = None


def make(arguments):
    return Greeter.bind(arguments["word"])


def made():
    return Greeter.options(name="Made").bind()


def wrong(one, two):
    return app


class group:
    inner = Greeter.options(name="Inner", version="mine").bind([app])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "served.py").write_text(MODULE)
    (tmp_path / "served_part.py").write_text("one = 1\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "hungry.py").write_text("import absent_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("served", "served_part"):
        sys.modules.pop(name, None)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    try:
        code = main(["serve", *words])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# -- the words ---------------------------------------------------------------------------------------------------------


def test_the_words_of_run_become_settings() -> None:
    words = "run served:make word=hi --port 9000 other=a=b --route-prefix none --name greeter --reload --host 0.0.0.0"
    options = parse(words.split())
    assert options.arguments == {"word": "hi", "other": "a=b"}
    assert (options.target, options.name, options.route_prefix) == ("served:make", "greeter", None)
    assert (options.host, options.port, options.reload, options.app_dir) == ("0.0.0.0", 9000, True, ".")


def test_without_options_it_is_the_default_application_at_the_root() -> None:
    options = parse(["run", "served:app"])
    assert (options.name, options.route_prefix, options.host, options.port) == ("default", "/", None, None)
    assert (options.address, options.arguments, options.reload) == (None, {}, False)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("rnu", "skate serve: there is no command 'rnu'; did you mean run?"),
        ("run", "the following arguments are required: MODULE:NAME\n"),
        ("run served", "'served' has not the form MODULE:NAME, as in served:app."),
        ("run ./served.py:app", "'./served.py:app' has not the form MODULE:NAME, as in served:app."),
        ("run served:app --prot 1", "there is no option --prot; did you mean --port?"),
        ("run served:app --port 70000", "'70000' is no port"),
        ("run served:app --route-prefix api", "'api' may be a path such as /api"),
        ("run served:app --route-prefix /-/x", "'/-/x' may be a path such as /api, but not below /-"),
        ("run served:app --name a/b", "'a/b' is no name"),
        ("run served:app --address here", "'here' is no address"),
        ("run served:app word", "'word' is not understood; arguments of the application have the form KEY=VALUE."),
        ("status word", "'word' is not understood"),
        ("deploy app.yaml", "skate serve has no 'deploy', because it has no YAML files."),
        ("build served:app", "`skate serve run module:app` serves the application."),
        ("config", "skate serve has no 'config'"),
    ],
)
def test_a_mistake_is_two_lines_and_exit_code_2(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, *words.split())
    assert (code, out) == (2, "")
    assert text in err
    assert len(err.splitlines()) == 2


def test_help_lists_the_commands_and_needs_no_package_for_http(capsys: pytest.CaptureFixture[str]) -> None:
    program = "import sys; from skate.cli import main\ntry: main(['serve'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert all(f"    {name} " in done.stdout for name in ("run", "status", "shutdown"))
    assert not {"uvicorn", "starlette", "numpy"} & set(done.stdout.splitlines()[-1].split())
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "    serve " in capsys.readouterr().out


# -- module:name -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "arguments", "name"),
    [
        ("served:app", {}, "Greeter"),
        ("served:make", {"word": "hi"}, "Greeter"),
        ("served:made", {}, "Made"),
        ("served:group.inner", {}, "Inner"),
    ],
)
def test_an_application_is_found_or_made(target: str, arguments: dict[str, str], name: str) -> None:
    assert repr(reload.load(target, ".", arguments)) == f"Application({name})"


@pytest.mark.parametrize(
    ("target", "arguments", "texts"),
    [
        ("serve_d:app", {}, ["there is no module 'serve_d' in ", "did you mean served?"]),
        ("zzz:app", {}, ["modules there: broken, hungry, served, served_part."]),
        ("served:ap", {}, ["served has no 'ap'.", "did you mean app?"]),
        ("served:zzz", {}, ["there, to be served: app, make, made, wrong, Greeter.bind(…)."]),
        ("served:Greeter", {}, ["served:Greeter is a deployment", "app = Greeter.bind(…)"]),
        ("served:nothing", {}, ["served:nothing is no application but an object of class NoneType."]),
        ("served:app", {"a": "b"}, ["served:app takes no arguments", "leave KEY=VALUE out."]),
        ("served:make", {}, ["served:make raised KeyError: 'word'", 'served.py", line 20, in make']),
        ("served:wrong", {}, ["served:wrong is a function with 2 parameters."]),
        ("broken:app", {}, ["broken:app cannot be imported: SyntaxError", 'broken.py", line 1']),
        ("hungry:app", {}, ["No module named 'absent_package'", 'hungry.py", line 1']),
    ],
)
def test_what_cannot_be_served_is_said_with_what_there_is(
    target: str, arguments: dict[str, str], texts: list[str]
) -> None:
    with pytest.raises(Trouble) as caught:
        reload.load(target, ".", arguments)
    report = caught.value.report()
    for text in texts:
        assert text in report
    assert reload.__file__ not in report
    assert "importlib" not in report


def test_errors_of_the_library_speak_of_flags() -> None:
    error = ServeError(
        "HTTP cannot be answered at 127.0.0.1:8000.\n  why:  process 7 listens there.\n"
        "  next: end it, or serve.run(…, port=…) with another one; port=0 takes one that is free."
    )
    assert reload.trouble_of(error).report() == (
        "skate: HTTP cannot be answered at 127.0.0.1:8000: process 7 listens there\n"
        "  next: end it, or --port with another one; --port 0 takes one that is free.\n"
    )
    assert "--route-prefix none" in reload.trouble_of(ServeError("x\n  next: serve.run(…, route_prefix=None)")).next


def test_a_prefix_that_is_taken_is_said_in_words_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise DeployFailedError(
            "the route_prefix '/' is that of 'a'.\n  next: serve.run(…, route_prefix=…) with another."
        )

    monkeypatch.setattr(reload.api, "run", run)
    plan = reload.Plan("served:app", ".", {}, "default", "/")
    with pytest.raises(Trouble) as caught:
        plan.deploy(plan.application())
    assert caught.value.report() == "skate: the route_prefix '/' is that of 'a'\n  next: --route-prefix with another.\n"


# -- versions ----------------------------------------------------------------------------------------------------------


def test_every_source_file_below_the_folder_is_part_of_the_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_file = ModuleType("no_file")
    no_file.__file__ = "_classes.py"  # as that of torch.classes, which is no file
    monkeypatch.setitem(sys.modules, "no_file", no_file)
    plan = reload.Plan("served:group.inner", ".", {}, "default", "/")
    outer = plan.application()
    assert set(reload.sources(".")) == {os.path.realpath(folder / name) for name in ("served.py", "served_part.py")}
    inner = outer._args[0][0]  # an application in a list
    before, inner_before = outer._deployment.version, inner._deployment.version
    assert before == f"mine {inner_before}"
    (folder / "served_part.py").write_text("two = 2\n")
    assert plan.application()._deployment.version != before


def test_a_file_that_is_missing_or_wrong_is_watched(folder: Path) -> None:
    for target, name in (("broken:app", "broken.py"), ("hungry:app", "absent_package.py"), ("zzz:app", "zzz.py")):
        with pytest.raises(Trouble) as caught:
            reload.load(target, ".", {})
        assert os.path.realpath(folder / name) in reload.sources(".", caught.value)


def test_a_stamp_changes_with_the_file(folder: Path) -> None:
    path = folder / "served_part.py"
    before = reload.stamp(str(path))
    path.write_text("one = 11\n")
    assert reload.stamp(str(path)) != before
    path.unlink()
    assert reload.stamp(str(path)) is None


# -- texts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "prefix", "text"),
    [
        (("127.0.0.1", 8000), "/", "at http://127.0.0.1:8000/"),
        (("127.0.0.1", 8000), "/api", "at http://127.0.0.1:8000/api/"),
        (("::1", 8000), "/", "at http://[::1]:8000/"),
        (None, "/", "for handles alone, without HTTP"),
        (("127.0.0.1", 8000), None, "for handles alone, without HTTP"),
    ],
)
def test_the_url_is_what_can_be_typed(address: tuple[str, int] | None, prefix: str | None, text: str) -> None:
    assert urls(ServeStatus(address, {}), prefix) == text


def test_the_status_for_programs_is_json_also_after_a_request_that_took_minutes() -> None:
    counted = Snapshot()
    counted.seconds.add(61.0)
    each = DeploymentStatusOverview(DeploymentStatus.HEALTHY, {"RUNNING": 1}, 1, "", counted)
    app = ApplicationStatusOverview(ApplicationStatus.RUNNING, "", 0.0, None, "A", {"A": each})
    found = json.loads(json.dumps(plain(ServeStatus(None, {"first": app})), allow_nan=False))
    assert found["applications"]["first"]["deployments"]["A"]["metrics"]["latency_p99_s"] is None


def test_an_application_without_deployments_has_a_line_and_the_last_one_of_its_error() -> None:
    app = ApplicationStatusOverview(
        ApplicationStatus.DEPLOY_FAILED, "Traceback\n  x\nValueError: no", 0.0, None, "A", {}
    )
    names, line = table(ServeStatus(None, {"first": app})).splitlines()
    assert names.split()[:4] == ["application", "status", "route", "deployment"]
    assert line.split(maxsplit=9) == ["first", "DEPLOY_FAILED", *"-------", "ValueError: no"]
