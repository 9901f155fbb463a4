"""The worker that is killed when memory is short, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skate._core.policy_memory import (
    FIRST_PAUSE_S,
    FORGIVEN_MAX,
    KILL_SETTLE_S,
    PAUSE_S_MAX,
    PERIOD_S,
    PERIOD_S_MIN,
    STORE_FIRST_S,
    Candidate,
    MemoryKill,
    MemoryUse,
    choose_victim,
    explain,
    format_bytes,
    is_largest,
    kill_settles,
    next_attempt,
    next_look_s,
    store_goes_first,
    store_limit,
)
from skate._node.memory_monitor import MemoryMonitor
from skate._node.memory_watch import KILL_PAUSE_S

GIB = 1 << 30


def test_memory_is_looked_at_more_often_when_little_is_left() -> None:
    def pause(used_mib: int, total_mib: int) -> float:
        return next_look_s(MemoryUse(used_mib << 20, total_mib << 20), 0.95)

    assert pause(1_000, 64_000) == PERIOD_S
    assert pause(450, 600) == pytest.approx(120 / 1024), "what a process could take meanwhile is there"
    assert pause(569, 600) == pause(600, 600) == PERIOD_S_MIN


def test_the_store_may_take_up_what_is_left() -> None:
    assert store_limit(MemoryUse(50 * GIB, 64 * GIB), 0.5, 20 * GIB) == 2 * GIB
    assert store_limit(MemoryUse(10 * GIB, 64 * GIB), 0.5, 2 * GIB) == 24 * GIB
    assert store_limit(MemoryUse(64 * GIB, 64 * GIB), 0.5, GIB) == 0


def test_the_store_goes_first_but_not_for_ever_and_not_at_the_brink() -> None:
    assert store_goes_first(MemoryUse(96, 100), 0.95, 0.0)
    assert store_goes_first(MemoryUse(96, 100), 0.95, STORE_FIRST_S - 0.1)
    assert not store_goes_first(MemoryUse(96, 100), 0.95, STORE_FIRST_S)
    assert not store_goes_first(MemoryUse(995, 1000), 0.95, 0.0)


def worker(pid: int, leased_at: float, rss: int = 0, *, blocked: bool = False) -> Candidate:
    return Candidate(b"%d" % pid, pid, leased_at, rss, blocked)


def test_the_newest_lease_goes_first() -> None:
    """Not the largest: the older ones get to their end, so there is progress."""
    chosen = choose_victim([worker(1, 10.0, 9 * GIB), worker(2, 12.0, 1 * GIB), worker(3, 11.0, 2 * GIB)])
    assert chosen is not None
    assert chosen.pid == 2


def test_a_worker_that_waits_for_others_goes_last() -> None:
    chosen = choose_victim([worker(1, 10.0), worker(2, 12.0, blocked=True)])
    assert chosen is not None
    assert chosen.pid == 1


def test_what_may_not_be_run_again_is_spared_while_there_is_something_else() -> None:
    once = Candidate(b"2", 2, 12.0, 0, retriable=False)
    chosen = choose_victim([worker(1, 10.0), once])
    assert chosen is not None
    assert chosen.pid == 1
    assert choose_victim([once]) is once


def test_nobody_to_kill() -> None:
    assert choose_victim([]) is None


def killed(*, was_largest: bool) -> MemoryKill:
    return MemoryKill(MemoryUse(63 * GIB, 64 * GIB), 0.95, [], was_largest)


def test_who_holds_most_is_to_blame() -> None:
    small, large = worker(1, 1.0, GIB), worker(2, 2.0, 2 * GIB)
    assert is_largest(large, [small, large])
    assert not is_largest(small, [small, large])
    assert is_largest(small, [small])


def test_an_attempt_counts_if_its_worker_held_most() -> None:
    assert all(next_attempt(killed(was_largest=True), kills)[0] for kills in range(20))


def test_one_that_was_ended_for_the_memory_of_others_is_forgiven_but_not_for_ever() -> None:
    counts = [next_attempt(killed(was_largest=False), kills)[0] for kills in range(20)]
    assert counts == [False] * FORGIVEN_MAX + [True] * (20 - FORGIVEN_MAX)


def test_the_pause_before_the_next_attempt_grows_up_to_a_bound() -> None:
    pauses = [next_attempt(killed(was_largest=True), kills)[1] for kills in [*range(8), 5000]]
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert pauses[-1] == PAUSE_S_MAX
    assert FIRST_PAUSE_S > KILL_PAUSE_S, "the monitor looks at those that are left before the task is back"


def test_the_explanation_names_use_limit_victim_and_largest_processes() -> None:
    text = explain(
        worker(4123, 1.0, 31 * GIB),
        MemoryUse(63 * GIB, 64 * GIB),
        0.95,
        [(1, "driver", GIB), (4123, "worker", 31 * GIB)],
    )
    assert text.startswith("memory: 63.0 GiB of 64.0 GiB were in use (98%; the limit is 95%)")
    assert "pid 4123, held 31.0 GiB" in text
    assert text.index("worker pid 4123: 31.0 GiB") < text.index("driver pid 1: 1.0 GiB")


def test_bytes_read_well() -> None:
    assert [format_bytes(n) for n in (5, 2048, 3 << 20, 5 << 40)] == ["5 bytes", "2.0 KiB", "3.0 MiB", "5.0 TiB"]


def machine(folder: Path, *, total_kb: int, available_kb: int, cgroup: str) -> None:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text(f"MemTotal: {total_kb} kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n")
    (folder / "proc/self/cgroup").write_text(cgroup)


def test_a_machine_without_limits_counts_what_is_not_available(tmp_path: Path) -> None:
    machine(tmp_path, total_kb=1000, available_kb=250, cgroup="0::/\n")
    use = MemoryMonitor(str(tmp_path)).read()
    assert use == MemoryUse(750 * 1024, 1000 * 1024)


def test_a_container_that_is_closer_to_its_limit_is_what_counts(tmp_path: Path) -> None:
    """cgroup v2; cached files do not count as used."""
    machine(tmp_path, total_kb=1000, available_kb=500, cgroup="0::/box\n")
    box = tmp_path / "sys/fs/cgroup/box"
    box.mkdir(parents=True)
    (box / "memory.max").write_text("100000\n")
    (box / "memory.current").write_text("95000\n")
    (box / "memory.stat").write_text("anon 5\ninactive_file 5000\n")
    monitor = MemoryMonitor(str(tmp_path))
    assert monitor.read() == MemoryUse(90_000, 100_000, str(box))
    assert monitor.available_bytes() == 10_000
    (box / "memory.current").write_text("10000\n")
    assert monitor.read() == MemoryUse(500 * 1024, 1000 * 1024)


def test_older_containers_are_understood(tmp_path: Path) -> None:
    """cgroup v1, seen from inside, where the path of the host does not exist."""
    machine(tmp_path, total_kb=1000, available_kb=500, cgroup="5:memory:/docker/abc\n")
    root = tmp_path / "sys/fs/cgroup/memory"
    root.mkdir(parents=True)
    (root / "memory.limit_in_bytes").write_text("200000\n")
    (root / "memory.usage_in_bytes").write_text("150000\n")
    (root / "memory.stat").write_text("cache 1\ntotal_inactive_file 0\n")
    assert MemoryMonitor(str(tmp_path)).read() == MemoryUse(150_000, 200_000, str(root))


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    machine(tmp_path, total_kb=1000, available_kb=500, cgroup="0::/\n")
    root = tmp_path / "sys/fs/cgroup"
    root.mkdir(parents=True)
    (root / "memory.max").write_text("max\n")
    (root / "memory.current").write_text("1\n")
    (root / "memory.stat").write_text("")
    assert MemoryMonitor(str(tmp_path)).read().total_bytes == 1000 * 1024


def test_a_kill_is_given_time_to_show_while_memory_does_not_grow() -> None:
    def settles(used: int, since_s: float) -> bool:
        return kill_settles(MemoryUse(used, 1000), 0.5, used_at_kill=520, since_s=since_s)

    assert settles(520, 1.0)
    assert settles(510, KILL_SETTLE_S - 0.1)
    assert not settles(521, 1.0), "it grows"
    assert not settles(510, KILL_SETTLE_S), "it does not show"
    assert not kill_settles(MemoryUse(910, 1000), 0.5, used_at_kill=950, since_s=1.0), "little is left"
