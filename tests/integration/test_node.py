"""A real node daemon with real processes, driven by peers that speak the protocol and nothing else of Skate."""

from __future__ import annotations

import ast
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import pytest

from skate._core.task import Line, Task
from skate._node.main import NodeConfig
from skate._wire import messages as wire
from skate._wire.channel import RECEIVE_BYTES, Channel, ChannelClosed
from waiting import WITHIN_S, wait_for

HERE = Path(__file__).parent
TIMEOUT_S = 20.0
PROGRAM = "import sys; sys.path[:] = sys.argv.pop().split(':'); from skate._node.main import main; main()"

M = TypeVar("M")


class Driver:
    """A driver's side of the control channel, and of the direct channels to its workers."""

    def __init__(
        self, *, log_to_driver: bool = True, preload: tuple[str, ...] = (), pid: int = 0, **settings: Any
    ) -> None:
        ours, theirs = socket.socketpair()
        defaults = {"num_cpus": 2, "object_store_memory": 64 << 20, "spill_directory": tempfile.gettempdir()}
        settings = {"worker_entry": "fake_worker:run", **defaults, **settings}
        config = NodeConfig(control_fd=theirs.fileno(), **settings)
        self.stderr_read, stderr = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, msgspec.json.encode(config).decode(), ":".join([str(HERE), *sys.path])],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stderr=stderr,
        )
        os.close(stderr)
        theirs.close()
        self.control = Channel(ours, carries_fds=True)
        self.inbox: list[Any] = []
        self.peers: dict[bytes, Channel] = {}
        #: Messages from peers, with the peer.
        self.heard: list[tuple[bytes, Any]] = []
        self._buffer = bytearray(RECEIVE_BYTES)
        self._task = 0
        self._request = 0
        self.send(
            wire.Hello(
                pid or os.getpid(),
                "driver",
                sys_path=[str(HERE), *sys.path],
                cwd=str(HERE),
                preload=list(preload),
                log_to_driver=log_to_driver,
            )
        )
        self.welcome = self.expect(wire.Welcome)
        self.arena_fd = self.control.fds.popleft()

    def send(self, message: wire.Message) -> None:
        self.control.send(message)

    # -- hearing ----------------------------------------------------------------------------------------------------

    def hear(self, deadline: float) -> None:
        channels = {self.control.fileno(): b"", **{peer.fileno(): id for id, peer in self.peers.items()}}
        ready, _, _ = select.select(list(channels), [], [], max(0.0, deadline - time.monotonic()))
        for fd in ready:
            if channels[fd] == b"":
                for message in self.control.receive(self._buffer):
                    if isinstance(message, wire.PeerConnected):
                        sock = socket.socket(fileno=self.control.fds.popleft())
                        assert message.process_id not in self.peers, "a second channel to the same process"
                        self.peers[message.process_id] = Channel(sock)
                    self.inbox.append(message)
            else:
                peer = channels[fd]
                try:
                    self.heard += [(peer, message) for message in self.peers[peer].receive(self._buffer)]
                except ChannelClosed:
                    self.peers.pop(peer).close()

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + TIMEOUT_S
        while not (value := condition()):
            assert time.monotonic() < deadline, f"no {what} in {TIMEOUT_S} s; heard {self.inbox} {self.heard}"
            self.hear(deadline)
        return value

    def expect(self, kind: type[M], accept: Callable[[M], bool] = lambda _: True) -> M:
        """The next such message on the control channel, taken out of the inbox."""

        def find() -> list[M]:
            return [message for message in self.inbox if isinstance(message, kind) and accept(message)][:1]

        (message,) = self.wait_until(find, kind.__name__)
        self.inbox.remove(message)
        return message

    def lines(self, count: int) -> list[Line]:
        """That many printed lines."""

        def printed() -> list[Line]:
            return [line for message in self.inbox if isinstance(message, wire.Logs) for line in message.lines]

        self.wait_until(lambda: len(printed()) >= count, f"{count} lines")
        found = printed()
        self.inbox = [message for message in self.inbox if not isinstance(message, wire.Logs)]
        return found

    # -- doing --------------------------------------------------------------------------------------------------------

    def lease(
        self, *, resources: dict[str, float] | None = None, env: dict[str, str] | None = None, key: int = 1
    ) -> wire.LeaseGranted:
        self.send(wire.LeaseDemand(key, {"CPU": 1.0} if resources is None else resources, env or {}, 1, 0))
        return self.expect(wire.LeaseGranted, lambda granted: granted.key == key)

    def start(self, worker: bytes, text: str) -> bytes:
        """Have a worker run some text."""
        self._task += 1
        task = self._task.to_bytes(20, "big")
        self.peers[worker].send(wire.Tasks(1, [Task(task, text.encode(), b"")]))
        return task

    def run(self, worker: bytes, text: str) -> Any:
        """Have a worker run some text, and return what it calls `value`."""
        task = self.start(worker, text)

        def result() -> list[bytes]:
            return [
                result.value
                for peer, message in self.heard
                if peer == worker and isinstance(message, wire.Results)
                for result in message.results
                if result.id == task and isinstance(result.value, bytes)
            ]

        return ast.literal_eval(self.wait_until(result, f"result of {text!r}")[0].decode())

    def ask(self, what: str) -> Any:
        self._request += 1
        self.send(wire.Query(self._request, what))
        return self.expect(wire.Answer, lambda answer: answer.request == self._request).body

    def worker_pids(self) -> list[int]:
        return [worker["pid"] for worker in self.ask("workers")]

    def close(self) -> str:
        """End the daemon by ending the channel; what it wrote to stderr."""
        self.control.close()
        for peer in self.peers.values():
            peer.close()
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.arena_fd)
        self.process.wait(TIMEOUT_S)
        with open(self.stderr_read, encoding="utf-8") as stream:
            return stream.read()


@pytest.fixture
def new_driver() -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def make(**settings: Any) -> Driver:
        drivers.append(Driver(**settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        assert driver.close() == ""


@pytest.fixture
def driver(new_driver: Callable[..., Driver]) -> Driver:
    return new_driver()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(*pids: int) -> None:
    wait_for(lambda: all(is_gone(pid) for pid in pids), TIMEOUT_S, f"the end of processes {pids}")


# -- leases and channels ---------------------------------------------------------------------------------------------


def test_a_leased_worker_runs_what_its_owner_sends(driver: Driver) -> None:
    granted = driver.lease()
    assert granted.pid in driver.worker_pids()
    assert driver.run(granted.process_id, "import os; value = os.getpid()") == granted.pid


def test_the_worker_hears_of_its_lease_first(driver: Driver) -> None:
    granted = driver.lease()
    said = driver.run(granted.process_id, "value = [(m.lease, m.owner, m.resources) for m in said[1:]]")
    assert said == [(granted.lease, driver.welcome.process_id, {"CPU": 1.0})]


def test_a_returned_worker_is_lent_again_over_the_same_channel(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(num_cpus=1)  # with two, another worker may be ready by the second time
    first = driver.lease()
    driver.send(wire.LeaseReturn(first.lease))
    second = driver.lease()
    assert second.process_id == first.process_id
    assert second.lease != first.lease
    assert driver.run(second.process_id, "value = 1") == 1


def test_a_waiting_task_makes_room_for_another(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(num_cpus=1)
    first = driver.lease()
    driver.send(wire.LeaseDemand(2, {"CPU": 1.0}, {}, 1, 0))
    driver.run(first.process_id, "daemon.send(wire.Blocked())")
    second = driver.expect(wire.LeaseGranted)
    assert second.process_id != first.process_id
    driver.run(first.process_id, "daemon.send(wire.Unblocked())")
    assert driver.run(second.process_id, "value = 2") == 2


def test_a_worker_gets_a_channel_to_its_sibling(driver: Driver) -> None:
    """Asked for twice; made once."""
    first, second = driver.lease(key=1), driver.lease(key=2)
    text = f"[daemon.send(wire.Connect({second.process_id!r})) for _ in range(2)]; value = 1"
    driver.run(first.process_id, text)
    wait_for(
        lambda: (
            driver.run(second.process_id, "import os; value = len(os.listdir('/proc/self/fd'))")
            > driver.run(first.process_id, "import os; value = len(os.listdir('/proc/self/fd'))") - 1
        ),
        TIMEOUT_S,
        "the sibling's channel",
    )


def test_connecting_to_nobody_is_answered(driver: Driver) -> None:
    driver.send(wire.Connect(b"nobody"))
    gone = driver.expect(wire.PeerGone)
    assert gone.process_id == b"nobody"
    assert "does not know" in gone.reason


def test_gpus_are_assigned_by_number(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(num_gpus=2)
    granted = driver.lease(resources={"GPU": 1.0})
    assert driver.run(granted.process_id, "value = said[1].gpu_ids") == [0]


def test_what_the_node_does_not_have_is_refused(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(infeasible_grace_s=0.01)
    driver.send(wire.LeaseDemand(7, {"CPU": 1.0, "wheels": 4.0}, {}, 1, 0))
    refused = driver.expect(wire.LeaseInfeasible)
    assert refused.key == 7
    assert refused.asked == {"CPU": 1.0, "wheels": 4.0}
    assert refused.total["CPU"] == 2.0


def test_an_owner_is_asked_for_leases_that_another_of_its_classes_waits_for(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(num_cpus=1)
    granted = driver.lease(key=1)
    driver.send(wire.LeaseDemand(1, {"CPU": 1.0}, {}, 5, 0))
    driver.send(wire.LeaseDemand(2, {"CPU": 1.0}, {}, 5, 0))
    assert driver.expect(wire.LeaseReclaim).leases == [granted.lease]
    driver.send(wire.LeaseReturn(granted.lease))
    assert driver.expect(wire.LeaseGranted).key == 2


def test_spare_workers_leave_when_asked(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(num_cpus=4, prestart=1, idle_worker_s=0.05)
    leases = [driver.lease(key=key) for key in range(3)]
    for granted in leases:
        driver.send(wire.LeaseReturn(granted.lease))
    wait_for(lambda: len(driver.worker_pids()) == 1, TIMEOUT_S, "the spare workers to leave")


def test_a_worker_that_cannot_leave_stays(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(num_cpus=1, prestart=0, idle_worker_s=0.01)
    granted = driver.lease()
    driver.run(granted.process_id, "stays = True")
    driver.send(wire.LeaseReturn(granted.lease))

    def was_asked_twice() -> bool:
        return bool(driver.run(granted.process_id, "value = sum(isinstance(it, wire.Retire) for it in said) > 1"))

    def is_lent() -> bool:
        """While it is asked once more, another one may be."""
        again = driver.lease()
        driver.send(wire.LeaseReturn(again.lease))
        return bool(again.process_id == granted.process_id)

    wait_for(was_asked_twice, TIMEOUT_S, "the worker to be asked to leave, and again")
    wait_for(is_lent, TIMEOUT_S, "the worker to be lent again")


# -- what a worker is born with --------------------------------------------------------------------------------------


def test_a_worker_is_told_the_path_and_directory_of_the_driver(driver: Driver) -> None:
    granted = driver.lease()
    assert driver.run(granted.process_id, "value = said[1].job.cwd") == str(HERE)
    assert driver.run(granted.process_id, "value = said[1].job.sys_path") == (str(HERE), *sys.path)


def test_a_worker_has_no_descriptors_but_its_own(driver: Driver) -> None:
    """Standard streams, control channel, arena, one direct channel."""
    granted = driver.lease()
    links = driver.run(
        granted.process_id,
        "import os\nvalue = []\nfor fd in os.listdir('/proc/self/fd'):\n"
        " try: value.append(os.readlink('/proc/self/fd/' + fd))\n except OSError: pass",
    )
    kinds = sorted(link.split(":")[0] for link in links)
    assert [kind for kind in kinds if kind in ("pipe", "socket")] == ["pipe", "pipe", "socket", "socket"]
    assert set(kinds) - {"pipe", "socket"} == {"/dev/null", "/memfd"}


def test_workers_draw_different_random_numbers(driver: Driver) -> None:
    first, second = driver.lease(key=1), driver.lease(key=2)
    draw = "import random; value = random.random()"
    assert driver.run(first.process_id, draw) != driver.run(second.process_id, draw)


def test_a_worker_uses_one_thread_for_arithmetic(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    granted = driver.lease()
    text = "import os; value = os.environ['OMP_NUM_THREADS']"
    assert driver.run(granted.process_id, text) == os.environ.get("OMP_NUM_THREADS", "1")


def test_an_environment_has_workers_of_its_own(driver: Driver) -> None:
    plain = driver.lease(key=1)
    special = driver.lease(key=2, env={"SKATE_TEST_COLOUR": "red", "OMP_NUM_THREADS": "3"})
    text = "import os; value = os.environ.get('SKATE_TEST_COLOUR'), os.environ.get('OMP_NUM_THREADS')"
    assert driver.run(special.process_id, text) == ("red", "3")
    assert driver.run(plain.process_id, text)[0] is None


def test_an_environment_that_nobody_uses_goes(new_driver: Callable[..., Driver]) -> None:
    """First its worker, then the process that the worker was forked from."""
    driver = new_driver(idle_worker_s=0.02)
    special = driver.lease(env={"SKATE_TEST_COLOUR": "red"})
    zygote = psutil.Process(special.pid).ppid()
    driver.send(wire.LeaseReturn(special.lease))
    wait_gone(special.pid, zygote)
    again = driver.lease(env={"SKATE_TEST_COLOUR": "red"})
    assert psutil.Process(again.pid).ppid() != zygote


def test_an_environment_in_which_python_does_not_start_is_refused(driver: Driver) -> None:
    driver.send(wire.LeaseDemand(3, {"CPU": 1.0}, {"PYTHONHOME": "/nowhere"}, 1, 0))
    refused = driver.expect(wire.LeaseInfeasible)
    assert refused.key == 3
    assert "PYTHONHOME" in refused.reason
    assert driver.lease().pid


def test_workers_that_die_before_they_are_ready_are_reported(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(worker_entry="fake_worker:fail", prestart=0)
    driver.send(wire.LeaseDemand(1, {"CPU": 1.0}, {}, 1, 0))
    assert "the worker has a bad day" in driver.expect(wire.LeaseInfeasible).reason


def test_a_worker_that_cannot_be_imported_is_reported(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(worker_entry="no_such_module:run", prestart=0)
    driver.send(wire.LeaseDemand(1, {"CPU": 1.0}, {}, 1, 0))
    assert "no_such_module" in driver.expect(wire.LeaseInfeasible).reason


def test_modules_are_loaded_before_later_workers_start(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(preload=("this_module_is_not_there", "wave"), num_cpus=20, prestart=1)
    text = "import sys; value = 'wave' in sys.modules"
    keys = iter(range(1, 20))
    wait_for(lambda: driver.run(driver.lease(key=next(keys)).process_id, text), TIMEOUT_S, "a worker with the module")


# -- what workers print ----------------------------------------------------------------------------------------------


def test_prints_reach_the_driver_with_the_name_of_the_task(driver: Driver) -> None:
    granted = driver.lease()
    driver.run(granted.process_id, "print('\\0skate:task:resize'); print('hello')")
    driver.run(granted.process_id, "import sys; print('oh no', file=sys.stderr)")
    lines = sorted(driver.lines(2), key=lambda line: line.is_error)
    assert lines == [
        Line(granted.pid, "resize", False, "hello"),
        Line(granted.pid, "", True, "oh no"),
    ]


def test_a_line_without_an_end_is_shown_too(driver: Driver) -> None:
    granted = driver.lease()
    driver.run(granted.process_id, "print('continue? ', end='', flush=True)")
    assert driver.lines(1)[0].text == "continue? "


def test_a_very_long_line_is_cut(driver: Driver) -> None:
    granted = driver.lease()
    driver.run(granted.process_id, "print('x' * 1_000_000); print('next')")
    cut, after = driver.lines(2)
    assert cut.text.startswith("x" * 16384 + " … (cut here")
    assert after.text == "next"


def test_what_was_printed_before_the_end_arrives_before_goodbye(driver: Driver) -> None:
    granted = driver.lease()
    driver.run(granted.process_id, "print('one'); print('two', end='', flush=True)")
    driver.send(wire.Shutdown())
    driver.expect(wire.Goodbye)
    assert [line.text for line in driver.lines(2)] == ["one", "two"]
    wait_gone(driver.process.pid)


def test_a_driver_that_does_not_want_prints_gets_none(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(log_to_driver=False)
    granted = driver.lease()
    driver.run(granted.process_id, "print('hello')")
    driver.send(wire.Shutdown())
    driver.expect(wire.Goodbye)
    assert not [message for message in driver.inbox if isinstance(message, wire.Logs)]


def test_a_driver_that_does_not_read_is_not_waited_for(driver: Driver) -> None:
    """The worker prints more than fits anywhere and still gets to its end; lines are dropped, and that is said."""
    granted = driver.lease()
    marker = HERE / f".printed-{os.getpid()}"
    text = f"for i in range(60_000): print('x' * 1000)\nopen({str(marker)!r}, 'w').close()"
    driver.start(granted.process_id, text)
    try:
        wait_for(marker.exists, TIMEOUT_S, "the worker to have printed everything")
    finally:
        marker.unlink(missing_ok=True)
    dropped: list[str] = []

    def said() -> bool:
        dropped.extend(line.text for line in driver.lines(1) if "dropped" in line.text)
        return bool(dropped)

    wait_for(said, TIMEOUT_S, "the number of dropped lines")


# -- death -----------------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_reported_with_its_task_and_last_words(driver: Driver) -> None:
    granted = driver.lease()
    driver.run(granted.process_id, "import sys; [print('line', i, file=sys.stderr) for i in range(30)]")
    task = driver.start(granted.process_id, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    gone = driver.expect(wire.PeerGone)
    assert (gone.process_id, gone.pid, gone.exit_code) == (granted.process_id, granted.pid, -signal.SIGKILL)
    assert gone.running == task
    assert gone.stderr == [f"line {i}" for i in range(10, 30)]
    assert gone.reason == ""


def test_an_exit_code_is_reported(driver: Driver) -> None:
    granted = driver.lease()
    driver.start(granted.process_id, "import os; os._exit(7)")
    assert driver.expect(wire.PeerGone).exit_code == 7


def test_a_crash_says_where(driver: Driver) -> None:
    granted = driver.lease()
    driver.start(granted.process_id, "import ctypes; ctypes.string_at(0)")
    gone = driver.expect(wire.PeerGone)
    assert gone.exit_code == -signal.SIGSEGV
    assert any("Segmentation fault" in line for line in gone.stderr)


def test_a_dead_worker_is_replaced(driver: Driver) -> None:
    granted = driver.lease()
    driver.start(granted.process_id, "import os; os._exit(1)")
    driver.expect(wire.PeerGone)
    second = driver.lease()
    assert driver.run(second.process_id, "value = 1") == 1
    wait_for(lambda: len(driver.worker_pids()) == 2, TIMEOUT_S, "two workers")


def test_late_askers_hear_how_a_process_died(driver: Driver) -> None:
    granted = driver.lease()
    driver.start(granted.process_id, "import os; os._exit(5)")
    first = driver.expect(wire.PeerGone)
    driver.send(wire.Connect(granted.process_id))
    assert driver.expect(wire.PeerGone) == first


def test_what_a_worker_started_dies_with_it(driver: Driver) -> None:
    granted = driver.lease()
    child = driver.run(granted.process_id, "import subprocess; value = subprocess.Popen(['sleep', '1000']).pid")
    driver.start(granted.process_id, "import os; os._exit(1)")
    driver.expect(wire.PeerGone)
    wait_gone(child)


def test_an_owner_can_kill_the_worker_that_it_leases(driver: Driver) -> None:
    granted = driver.lease()
    driver.start(granted.process_id, "import time; time.sleep(1000)")
    driver.send(wire.KillWorker(granted.process_id, "cancelled"))
    gone = driver.expect(wire.PeerGone)
    assert (gone.exit_code, gone.reason) == (-signal.SIGKILL, "cancelled")


def test_a_worker_is_killed_if_it_is_in_a_task_that_was_given_up(driver: Driver) -> None:
    granted = driver.lease()
    task = driver.start(granted.process_id, "import time; time.sleep(1000)")
    wait_for(lambda: any(worker["running"] == task for worker in driver.ask("workers")), WITHIN_S, "the task to run")
    driver.send(wire.GiveUpLease(granted.lease, granted.process_id, "given up", [b"o" * 20, task]))
    gone = driver.expect(wire.PeerGone)
    assert (gone.exit_code, gone.reason) == (-signal.SIGKILL, "given up")


def test_a_worker_that_is_in_no_task_that_was_given_up_is_asked_to_leave_and_lent_no_more(
    new_driver: Callable[..., Driver],
) -> None:
    driver = new_driver(num_cpus=1)
    granted = driver.lease()
    assert driver.run(granted.process_id, "value = 1") == 1
    driver.send(wire.GiveUpLease(granted.lease + 1, granted.process_id, "of another lease", [b"o" * 20]))
    assert driver.run(granted.process_id, "value = 2") == 2
    driver.send(wire.GiveUpLease(granted.lease, granted.process_id, "given up", [b"o" * 20]))
    assert driver.lease(key=2).pid != granted.pid, "its resources are free, and it is not lent again"
    assert driver.expect(wire.PeerGone).exit_code == 0, "it leaves by itself"


def test_nobody_kills_a_worker_of_others(driver: Driver) -> None:
    granted = driver.lease()
    driver.send(wire.LeaseReturn(granted.lease))
    driver.send(wire.KillWorker(granted.process_id, "just so"))
    assert granted.pid in [worker["pid"] for worker in driver.ask("workers")]
    assert psutil.pid_exists(granted.pid)


def test_a_worker_that_sends_rubbish_is_killed_and_the_node_goes_on(driver: Driver) -> None:
    granted = driver.lease()
    driver.start(granted.process_id, "import time; daemon.sock.sendall(b'\\xff' * 1000); time.sleep(1000)")
    gone = driver.expect(wire.PeerGone)
    assert "protocol" in gone.reason
    assert driver.run(driver.lease().process_id, "value = 1") == 1


def test_a_worker_that_leaves_its_channel_and_stays_is_killed(driver: Driver) -> None:
    granted = driver.lease()
    driver.start(granted.process_id, "import time; daemon.sock.close(); time.sleep(1000)")
    assert "connection" in driver.expect(wire.PeerGone).reason


def test_workers_of_a_dead_owner_are_killed(driver: Driver) -> None:
    """A worker asks for a worker, gets it, and dies."""
    outer = driver.lease()
    driver.run(outer.process_id, "daemon.send(wire.LeaseDemand(1, {'CPU': 1.0}, {}, 1, 1))")

    def inner() -> list[int]:
        return [worker["pid"] for worker in driver.ask("workers") if worker["owner_pid"] == outer.pid]

    (pid,) = wait_for(inner, TIMEOUT_S, "the inner lease")
    driver.start(outer.process_id, "import os; os._exit(1)")
    driver.expect(wire.PeerGone)
    wait_gone(pid)


def test_the_newest_worker_is_killed_when_memory_is_short(new_driver: Callable[..., Driver]) -> None:
    """Any use of memory is too much for this node."""
    driver = new_driver(memory_threshold=0.0)
    granted = driver.lease()
    gone = driver.expect(wire.PeerGone)
    assert gone.process_id == granted.process_id
    assert gone.reason.startswith("memory: ")
    assert f"pid {granted.pid}" in gone.reason


# -- the end ---------------------------------------------------------------------------------------------------------


def processes_of(driver: Driver) -> list[int]:
    return [process.pid for process in psutil.Process(driver.process.pid).children(recursive=True)]


def test_shutdown_leaves_nothing(driver: Driver) -> None:
    granted = driver.lease()
    started = driver.run(granted.process_id, "import subprocess; value = subprocess.Popen(['sleep', '1000']).pid")
    other = driver.lease(key=2, env={"SKATE_TEST_COLOUR": "red"})
    pids = processes_of(driver)
    assert {granted.pid, started, other.pid} < set(pids)
    driver.send(wire.Shutdown())
    driver.expect(wire.Goodbye)
    wait_gone(driver.process.pid, *pids)


def test_stopped_workers_do_not_hold_up_the_end(driver: Driver) -> None:
    granted = driver.lease()
    pids = processes_of(driver)
    os.kill(granted.pid, signal.SIGSTOP)
    driver.send(wire.Shutdown())
    driver.expect(wire.Goodbye)
    wait_gone(driver.process.pid, *pids)


def test_the_end_of_the_drivers_channel_ends_the_node(driver: Driver) -> None:
    driver.lease()
    pids = processes_of(driver)
    driver.control.close()
    wait_gone(driver.process.pid, *pids)


DRIVER_WITH_CHILD = """
import os, socket, subprocess, sys, time
import msgspec
from skate._node.main import NodeConfig
from skate._wire import messages as wire
from skate._wire.channel import Channel
ours, theirs = socket.socketpair()
config = NodeConfig(
    control_fd=theirs.fileno(), num_cpus=1, object_store_memory=64 << 20, worker_entry="fake_worker:run"
)
node = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1], msgspec.json.encode(config).decode(), sys.argv[2]],
    pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL,
)
theirs.close()
channel = Channel(ours, carries_fds=True)
channel.send(wire.Hello(os.getpid(), "driver"))
time.sleep(0) if os.fork() else time.sleep(1000)
print(node.pid, flush=True)
time.sleep(1000)
"""


def test_a_driver_killed_while_its_child_lives_takes_its_node_along() -> None:
    """The child inherited the driver's end of the channel, so the channel does not end with the driver."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER_WITH_CHILD, PROGRAM, ":".join([str(HERE), *sys.path])],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert driver.stdout is not None
    node = psutil.Process(int(driver.stdout.readline()))
    wait_for(lambda: len(node.children(recursive=True)) >= 2, TIMEOUT_S, "zygote and worker")
    pids = [node.pid, *(process.pid for process in node.children(recursive=True))]
    driver.kill()
    driver.wait()
    driver.stdout.close()
    wait_gone(*pids)
    os.killpg(driver.pid, signal.SIGKILL)


def test_a_driver_that_has_ended_before_its_hello_is_read_takes_its_node_along() -> None:
    """A child of it holds its end of the channel: here this process does."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    driver = Driver(pid=dead.pid)
    assert driver.process.wait(TIMEOUT_S) == 0
    assert driver.close() == ""


def test_a_killed_daemon_leaves_nothing_not_even_what_tasks_started(driver: Driver) -> None:
    granted = driver.lease()
    started = driver.run(granted.process_id, "import subprocess; value = subprocess.Popen(['sleep', '1000']).pid")
    pids = processes_of(driver)
    assert {granted.pid, started} < set(pids)
    driver.process.kill()
    wait_gone(*pids)


def test_a_killed_zygote_is_replaced(driver: Driver) -> None:
    granted = driver.lease()
    (zygote,) = psutil.Process(driver.process.pid).children()
    zygote.kill()
    gone = driver.expect(wire.PeerGone)
    assert gone.process_id == granted.process_id
    wait_gone(granted.pid)
    second = driver.lease()
    assert driver.run(second.process_id, "value = 1") == 1


# -- questions -------------------------------------------------------------------------------------------------------


def test_resources_are_told(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(num_cpus=3, num_gpus=1, resources={"wheels": 4.0}, memory=1000)
    driver.lease(resources={"CPU": 1.5, "wheels": 1.0})
    answer = driver.ask("resources")
    store_bytes = answer["total"].pop("object_store_memory")
    assert 63 << 20 < store_bytes <= 64 << 20
    marks = {"node:127.0.0.1": 1.0, "node:__internal_head__": 1.0}
    assert answer["total"] == {"CPU": 3.0, "GPU": 1.0, "wheels": 4.0, "memory": 1000.0, **marks}
    assert answer["available"]["object_store_memory"] == store_bytes
    assert answer["available"]["CPU"] == 1.5
    assert answer["available"]["wheels"] == 3.0


def test_the_node_is_told(driver: Driver) -> None:
    (node,) = driver.ask("nodes")
    assert node["Alive"]
    assert node["NodeID"] == driver.welcome.node_id.hex()
    assert node["Resources"]["CPU"] == 2.0


def test_workers_are_told(driver: Driver) -> None:
    granted = driver.lease()
    workers = {worker["pid"]: worker for worker in driver.ask("workers")}
    assert workers[granted.pid]["state"] == "leased"
    assert workers[granted.pid]["owner_pid"] == os.getpid()
    assert workers[granted.pid]["rss_bytes"] > 0


def test_what_demands_wait_for_is_told(new_driver: Callable[..., Driver]) -> None:
    driver = new_driver(num_cpus=1)
    driver.lease()
    driver.send(wire.LeaseDemand(2, {"CPU": 1.0}, {}, 3, 0))
    answer = driver.ask("demands")
    (demand,) = answer["demands"]
    assert (demand["count"], demand["waits_for"], demand["pid"]) == (3, "resources that others hold", os.getpid())
    (lease,) = answer["leases"]
    assert lease["owner_pid"] == os.getpid()


def test_events_are_gathered_and_those_of_the_dead_kept(driver: Driver) -> None:
    granted = driver.lease()
    wait_for(
        lambda: len([w for w in driver.ask("workers") if w["state"] != "starting"]) == 2, TIMEOUT_S, "both workers"
    )
    task = b"t" * 20
    text = (
        "import os; events = wire.encode_events([('last', b'l' * 20, 5.0, 6.0)]); "
        "daemon.send(wire.Events(0, 1, events)); os._exit(0)"
    )
    driver.start(granted.process_id, text)
    driver.expect(wire.PeerGone)
    events = driver.ask("events")
    assert ["last", b"l" * 20, granted.pid, 5.0, 6.0, 0] in events
    assert any(event[:2] == ["step", task] for event in events)


def test_a_worker_that_does_not_answer_is_left_out(driver: Driver) -> None:
    granted = driver.lease()
    wait_for(
        lambda: len([w for w in driver.ask("workers") if w["state"] != "starting"]) == 2, TIMEOUT_S, "both workers"
    )
    os.kill(granted.pid, signal.SIGSTOP)
    events = driver.ask("events")
    assert granted.pid not in [event[2] for event in events]
    assert events


def test_statistics_and_store_are_told(driver: Driver) -> None:
    driver.lease()
    statistics = driver.ask("statistics")
    assert statistics["scheduler"]["leases"] == 1
    assert isinstance(driver.ask("store"), str)
