"""`skate serve`, run as people run it: in processes of its own, against nodes that no other test sees."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from netns import Network
from skate import serve
from waiting import WITHIN_S, wait_for

COMMAND_S = 40.0
NOTHING_RUNS = 3

APP = """
from skate import serve
import greeting


@serve.deployment(num_replicas=2)
class Greeter:
    async def __call__(self, request):
        return greeting.text()


@serve.deployment
class Broken:
    def __init__(self):
        raise ValueError("no model here")


app = Greeter.options(num_replicas=1).bind()
two = Greeter.bind()
broken = Broken.bind()
"""


class Shell:
    """A folder with an application, and a home of its own, in which commands run."""

    def __init__(self, folder: Path, popen: Callable[..., Any] = subprocess.Popen) -> None:
        self.folder = folder
        self._popen = popen
        self.begun: list[subprocess.Popen[str]] = []
        (folder / "hello.py").write_text(APP)
        self.greet("one")

    def greet(self, word: str) -> None:
        (self.folder / "greeting.py").write_text(f'def text():\n    return "{word}"\n')

    def begin(self, *words: str, address: str = "") -> subprocess.Popen[str]:
        unset = {"SKATE_TOKEN", "SKATE_TOKEN_FILE", "SKATE_ADDRESS", "SKATE_LOG_DIR"}
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment |= {"HOME": str(self.folder)} | ({"SKATE_ADDRESS": address} if address else {})
        with open(self.folder / "out", "w") as out:
            process: subprocess.Popen[str] = self._popen(
                [sys.executable, "-m", "skate.cli", "serve", *words],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.begun.append(process)
        return process

    def run(self, *words: str, address: str = "") -> tuple[int, str]:
        """Exit code and output of a command that ends by itself."""
        code = self.begin(*words, address=address).wait(COMMAND_S)
        return code, self.out

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    def url(self) -> str:
        """Where the application is served, once it is."""
        found = wait_for(lambda: re.search(r"at (http://\S+)", self.out), WITHIN_S, "the URL to be printed")
        assert found is not None
        return str(found[1])


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    for process in shell.begun:
        if process.poll() is None:
            process.kill()
            process.wait()


def answer(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WITHIN_S) as response:
        return str(response.read().decode())


def ended(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(COMMAND_S)


# -- one program -------------------------------------------------------------------------------------------------------


def test_run_serves_until_ctrl_c(shell: Shell) -> None:
    process = shell.begin("run", "hello:two", "--port", "0", "--route-prefix", "/api")
    url = shell.url()
    assert url.endswith("/api/")
    assert answer(url) == "one"
    assert re.search(r"^Serving hello:two at http://127\.0\.0\.1:\d+/api/  \(Ctrl-C ends it\)$", shell.out, re.M)
    assert "  Greeter   2 replicas\n" in shell.out
    ends(shell, process, url, signal.SIGINT)
    assert "Traceback" not in shell.out


def ends(shell: Shell, process: subprocess.Popen[str], url: str, number: int) -> None:
    """A signal ends what is served, in order and without a traceback."""
    before = len(shell.out)
    assert ended(process, number) == 0
    assert "Traceback" not in shell.out[before:]
    assert shell.out.splitlines()[-1].startswith("Ending: requests in work are answered first")
    with pytest.raises(OSError, match="refused"):
        answer(url)


def test_a_changed_file_replaces_the_version_and_a_wrong_one_does_not(shell: Shell) -> None:
    process = shell.begin("run", "hello:app", "--port", "0", "--reload")
    url = shell.url()
    assert answer(url) == "one"
    shell.greet("the second")
    wait_for(lambda: answer(url) == "the second", WITHIN_S, "the second version")
    assert "greeting.py changed: deploying again.\n" in shell.out
    (shell.folder / "greeting.py").write_text("def text(:\n")
    wait_for(lambda: "the version before it serves on" in shell.out, WITHIN_S, "the error to be told")
    assert "hello:app cannot be imported: SyntaxError" in shell.out
    assert answer(url) == "the second"
    shell.greet("a third one")
    wait_for(lambda: answer(url) == "a third one", WITHIN_S, "the third version")
    ends(shell, process, url, signal.SIGTERM)


def test_with_reload_the_first_version_may_be_wrong(shell: Shell) -> None:
    (shell.folder / "greeting.py").unlink()
    process = shell.begin("run", "hello:app", "--route-prefix", "none", "--reload")
    wait_for(lambda: "Not deployed: the next change of a file is waited for." in shell.out, WITHIN_S, "the error")
    assert "No module named 'greeting'" in shell.out
    shell.greet("one")
    wait_for(lambda: "Serving hello:app for handles alone, without HTTP" in shell.out, WITHIN_S, "the application")
    assert ended(process) == 0


def test_a_constructor_that_raises_is_shown_with_its_traceback(shell: Shell) -> None:
    code, out = shell.run("run", "hello:broken", "--route-prefix", "none")
    assert code == 1
    assert out.startswith("skate: deployment Broken of application default did not start.")
    assert 'hello.py", line 15, in __init__' in out
    assert "ValueError: no model here\n  next: " in out


def test_a_port_that_is_taken_is_said_with_who_has_it(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out = shell.run("run", "hello:app", "--port", str(port))
    assert code == 1
    assert out.startswith(f"skate: HTTP cannot be answered at 127.0.0.1:{port}: process {os.getpid()} listens there")
    assert "--port 0 takes one that is free" in out.splitlines()[-1]
    assert len(out.splitlines()) == 2


# -- a node that others use --------------------------------------------------------------------------------------------


def test_run_in_a_cluster_deletes_its_own_application_alone(shell: Shell) -> None:
    @serve.deployment
    def double(number: int) -> int:
        return 2 * number

    with skate.init(num_cpus=2) as info:
        address = str(info["address"])
        handle = serve.run(double.bind(), name="ours", route_prefix=None)
        process = shell.begin("run", "hello:app", "--name", "theirs", "--route-prefix", "none", address=address)
        wait_for(lambda: "Serving hello:app" in shell.out, WITHIN_S, "the second application")
        assert set(serve.status().applications) == {"ours", "theirs"}
        assert ended(process) == 0
        assert set(serve.status().applications) == {"ours"}
        assert handle.remote(4).result(timeout_s=WITHIN_S) == 8

        process = shell.begin("run", "hello:app", "--name", "theirs", "--route-prefix", "none", "--address", address)
        wait_for(lambda: "Serving hello:app" in shell.out, WITHIN_S, "the second application")
        serve.delete("theirs")
        assert process.wait(COMMAND_S) == 0, "it has nothing to do any more"
        assert "The application 'theirs' was deleted by another program." in shell.out

        code, out = shell.run("status", "--json", "--address", address)
        deployment = json.loads(out)["applications"]["ours"]["deployments"]["double"]
        assert (code, deployment["replica_states"], deployment["status"]) == (0, {"RUNNING": 1}, "HEALTHY")
        code, out = shell.run("status", address=address)
        assert re.search(r"^ours +RUNNING +- +double +1/1 ", out, re.M)

        # Nothing is deleted without consent, and there is no terminal to give it in.
        code, out = shell.run("shutdown", "--address", address)
        assert (code, out.splitlines()[-1]) == (2, "  next: skate serve shutdown --yes")
        code, out = shell.run("shutdown", "--yes", "--address", address)
        assert (code, out) == (0, "Deleted: ours. HTTP is not answered any more.\n")
        assert serve.status().applications == {}
        assert shell.run("shutdown", "--yes", "--address", address) == (0, "Nothing is served here.\n")


def test_another_terminal_finds_what_is_served_and_does_not_end_it_by_chance(tmp_path: Path, network: Network) -> None:
    # A network of its own has lobbies of its own: elsewhere the newest node may be that of another test.
    shell = Shell(tmp_path, network.hosts[0].popen)
    code, out = shell.run("status")
    assert (code, out.splitlines()[0]) == (NOTHING_RUNS, "Nothing is served on this machine, and no cluster runs here.")
    assert shell.run("status", "--json") == (NOTHING_RUNS, '{"running": false}\n')
    process = shell.begin("run", "hello:app", "--route-prefix", "none")
    wait_for(lambda: "Serving hello:app" in shell.out, WITHIN_S, "the application")
    code, out = shell.run("status")
    assert code == 0
    assert re.search(r"^default +RUNNING +- +Greeter +1/1 ", out, re.M)
    code, out = shell.run("shutdown", "--yes")
    assert code == 1
    address = re.search(r"--address (skate-\S+)\n", out)
    assert address is not None, out
    assert "end the program with Ctrl-C" in out
    assert shell.run("shutdown", "--yes", "--address", address[1])[0] == 0
    assert process.wait(COMMAND_S) == 0
