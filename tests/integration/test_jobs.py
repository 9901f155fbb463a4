"""Several programs use one node, one after the other or at once: each has its own modules."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import skate
from skate._worker.current import get_runtime
from skate._worker.driver import JOB_VARIABLE
from skate.cli.job import Supervisor
from skate.cluster_utils import Cluster
from waiting import WITHIN_S, wait_for

#: Answers every line of its input with what its tasks and a new actor say; prints a word first.
PROGRAM = """
import sys
import skate, words

skate.init(sys.argv[1], log_to_driver=False)

@skate.remote(num_cpus=0.1)
def say():
    return words.WORD

@skate.remote
class Speaker:
    say = words.say

import os
assert skate.get(skate.remote(os.getcwd).remote()) == os.getcwd()
print("ready", flush=True)
for line in sys.stdin:
    said = set(skate.get([say.remote() for _ in range(20)] + [skate.remote(words.say).remote() for _ in range(20)]))
    print(words.WORD, *said, skate.get(Speaker.remote().say.remote()), flush=True)
"""


class Program:
    def __init__(self, folder: Path, word: str, address: str, **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "words.py").write_text(f"WORD = {word!r}\ndef say(self=None): return WORD\n")
        (folder / "main.py").write_text(PROGRAM)
        self.process = subprocess.Popen(
            [sys.executable, "main.py", address],
            cwd=folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=40)
        assert self.process.returncode == 0

    def say(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return self.process.stdout.readline()


@pytest.fixture(params=["alone", "cluster"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a node with this test as one of its drivers."""
    if request.param == "alone":
        with skate.init(num_cpus=2) as context:
            skate.get(skate.remote(abs).remote(1))

            @skate.remote(lifetime="detached", name="opener", num_cpus=0)
            class Opener:
                """A node takes further drivers once it has a detached actor."""

            opener = Opener.remote()
            skate.get(opener.__ray_ready__.remote())
            yield context.address_info["address"]
            skate.kill(opener)
        return
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 2}) as cluster:
        cluster.connect()
        skate.get(skate.remote(abs).remote(1))
        yield cluster.address
        skate.shutdown()


def test_programs_at_once_run_their_own_modules(address: str, tmp_path: Path) -> None:
    with Program(tmp_path / "a", "one", address) as one, Program(tmp_path / "b", "two", address) as two:
        for _ in range(2):
            assert one.say() == "one one one\n"
            assert two.say() == "two two two\n"


def test_programs_of_one_submitted_job_run_their_own_modules(address: str, tmp_path: Path) -> None:
    job = {JOB_VARIABLE: "01234567"}
    for _ in range(2):
        with (
            Program(tmp_path / "a", "one", address, **job) as one,
            Program(tmp_path / "b", "two", address, **job) as two,
        ):
            assert one.say() == "one one one\n"
            assert two.say() == "two two two\n"


def test_a_program_that_was_changed_runs_what_it_is_now(address: str, tmp_path: Path) -> None:
    for word in ("first", "second", "third"):
        with Program(tmp_path / "a", word, address) as program:
            assert program.say() == f"{word} {word} {word}\n"


DETACHES = """
import sys
import skate, beside
skate.init(sys.argv[1], namespace="n")
thing = skate.remote(max_restarts=-1, max_task_retries=-1)(beside.Thing)
skate.get(thing.options(name="thing", lifetime="detached").remote().where.remote())
"""


def test_a_detached_actor_finds_its_module_after_its_program_has_ended(address: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "import os\nclass Thing:\n    def where(self): return os.getcwd()\n    def die(self): os._exit(1)\n"
    )
    (tmp_path / "main.py").write_text(DETACHES)
    subprocess.run([sys.executable, "main.py", address], cwd=tmp_path, check=True, timeout=60)
    thing = skate.get_actor("thing", namespace="n")
    for _ in range(4):
        with pytest.raises(skate.exceptions.ActorError):
            skate.get(thing.die.options(max_task_retries=0).remote())
        assert skate.get(thing.where.remote()) == str(tmp_path)
    skate.kill(thing)


def test_workers_forget_what_a_program_that_has_ended_sent(address: str, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import sys, skate\n"
        "from skate._worker.current import get_runtime\n"
        "skate.init(sys.argv[1])\n"
        "@skate.remote\ndef inner(): return 1\n"
        "@skate.remote\ndef outer(): return skate.get(inner.remote())\n"
        "skate.get(outer.remote())\n"
        # Its worker is given back first: one that is in use is killed with its program.
        "me = get_runtime()\n"
        "while any(lease['owner'] == me.process_id for lease in me.query('demands')['leases']): pass\n"
    )
    subprocess.run([sys.executable, "main.py", address], cwd=tmp_path, check=True, timeout=60)

    def left() -> set[str]:
        return {row["name"] for row in get_runtime().query("functions")} & {"inner", "outer"}

    wait_for(lambda: not left(), 3.0, "both to be forgotten, before the idle workers end")


@pytest.mark.parametrize("how", ["cancel", "read"])
def test_how_a_job_ended_can_be_asked_after_it_ran_unwatched_for_long(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKATE_LOG_DIR", str(tmp_path / "logs"))
    # Longer than its supervisor stays after the end.
    linger_s, script = 2.0, f"sleep 2.5; touch {tmp_path}/ran; [ {how} = read ] || exec sleep 1000; exit 5"
    with skate.init(num_cpus=1):
        supervisor = Supervisor.options(name="job-1", lifetime="detached").remote(
            "1", ["sh", "-c", script], "", str(tmp_path), None, linger_s
        )
        about = skate.get(supervisor.about.remote())
        wait_for((tmp_path / "ran").exists, WITHIN_S, "the job to have run for long")
        if how == "cancel":
            assert skate.get(supervisor.cancel.remote("me")) == -signal.SIGTERM
        else:
            wait_for(lambda: not psutil.pid_exists(about["pid"]), WITHIN_S, "the job to end")
            assert skate.get(supervisor.read.remote("me", 0)) == (b"", 5)
        skate.kill(supervisor)


def test_a_reader_who_has_heard_of_the_end_leaves_the_supervisor_to_who_cancels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends at once, and what it has started only when it is killed: until then it is being cancelled."""
    monkeypatch.setenv("SKATE_LOG_DIR", str(tmp_path / "logs"))
    stubborn = "trap '' TERM; echo $$; while :; do sleep 1; done"
    with skate.init(num_cpus=1):
        supervisor = Supervisor.options(name="job-1", lifetime="detached").remote(
            "1", ["sh", "-c", f"setsid sh -c {shlex.quote(stubborn)} & exec sleep 1000"], "", str(tmp_path), None
        )
        said, code = b"", None
        while not said.endswith(b"\n"):  # from now on it ignores the signal
            said += skate.get(supervisor.read.remote("me", len(said)))[0]
        cancelled = supervisor.cancel.remote("you")
        while code is None:
            _, code = skate.get(supervisor.read.remote("me", len(said)))
        assert code == -signal.SIGTERM
        assert not skate.get(supervisor.release.remote("me")), "it may not be ended"
        assert skate.get(cancelled) == -signal.SIGTERM
        with contextlib.suppress(psutil.NoSuchProcess):  # it may not have been reaped yet
            assert psutil.Process(int(said)).status() == psutil.STATUS_ZOMBIE
        assert skate.get(supervisor.release.remote("you")), "who cancelled is the last"
        skate.kill(supervisor)
