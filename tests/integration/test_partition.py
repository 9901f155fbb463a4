"""Two nodes that cannot reach each other while both reach the control service.

    head: control service, node ──┬── second: node, driver
                                  └── third: node                second and third are cut off from each other

What waits for the path is named by `skate.why`, goes on soon after healing, and is decided on after the grace.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from host_cluster import LARGE_BYTES, Driver, DriverError, HostCluster
from netns import Network, Unavailable
from netns_programs import digest, noise
from waiting import WITHIN_S, wait_for

#: So large that it takes a while over a slow cable.
SLOW_BYTES = 60_000_000
#: Everything goes on within 5 s of healing, and a busy machine may add as much again.
HEALED_WITHIN_S = 10.0
#: The grace of those tests that wait for its end; a cut is declared after 4 s.
SHORT_GRACE_S = 6.0
#: A packet that was lost at its beginning is sent again by TCP after 12.6 s, and then after 25.4 s.
LONG_CUT_S = 13.5


@pytest.fixture
def cluster(host_cluster: HostCluster) -> HostCluster:
    return host_cluster


@pytest.fixture(params=["plain", "tls"])
def either(request: pytest.FixtureRequest, network: Network, tmp_path: Path) -> Iterator[HostCluster]:
    """Connections as they are, or encrypted: then threads of the daemons carry the bytes of all channels."""
    if request.param == "tls":
        pytest.importorskip("cryptography")
    cluster = HostCluster(network, tmp_path, tls=request.param == "tls")
    yield cluster
    cluster.end()


@pytest.fixture
def impatient(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCluster]:
    monkeypatch.setenv("SKATE_PARTITION_GRACE_S", str(SHORT_GRACE_S))
    cluster = HostCluster(network, tmp_path)
    yield cluster
    cluster.end()


class Story:
    """A driver on the second host that has to do with the third."""

    def __init__(self, cluster: HostCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.driver: Driver = cluster.driver(cluster.second)
        self.third = cluster.ids[cluster.third]
        self.driver.do(f"hard = dict(scheduling_strategy=at({self.third!r}), num_cpus=0)")

    def file(self, name: str) -> Path:
        return self.folder / name

    def held(self, name: str) -> str:
        """The arguments of something that is held until it is released, and counts its runs."""
        return f"{str(self.file(f'{name}.runs'))!r}, {str(self.file(f'{name}.release'))!r}"

    def release(self, name: str) -> None:
        self.file(f"{name}.release").touch()

    def runs(self, name: str) -> int:
        file = self.file(f"{name}.runs")
        return len(file.read_text().split()) if file.exists() else 0

    def pids(self, name: str) -> list[int]:
        return [int(pid) for pid in self.file(f"{name}.runs").read_text().split()]

    def wait_begun(self, name: str) -> None:
        wait_for(lambda: self.runs(name) == 1, WITHIN_S, f"{name} to run")

    def cut(self) -> None:
        self.cluster.second.cut_from(self.cluster.third)

    def heal(self) -> None:
        self.cluster.second.rejoin(self.cluster.third)

    def wait_named(self, ref: str) -> None:
        """Until `why` names the two nodes and that they cannot reach each other."""
        ids = [self.cluster.ids[host][:12] for host in (self.cluster.second, self.cluster.third)]

        def is_named() -> bool:
            told: str = self.driver.do(f"skate.why({ref})")
            return all(word in told for word in [*ids, "cannot reach each other", "(second", "(third"])

        wait_for(is_named, WITHIN_S, f"why({ref}) to name the cut")

    def error_of(self, code: str, timeout_s: float = WITHIN_S) -> tuple[str, str]:
        with pytest.raises(DriverError) as raised:
            self.driver.do(code, timeout_s)
        return raised.value.kind, raised.value.args[1]

    def fails(self, code: str, kind: str) -> str:
        """With that kind of error, which names the two nodes."""
        found, text = self.error_of(code, 2 * SHORT_GRACE_S + WITHIN_S)
        assert found == kind, text
        for host in (self.cluster.second, self.cluster.third):
            assert self.cluster.ids[host][:12] in text, text
        return text


def test_a_cut_between_two_nodes_is_named_and_loses_and_repeats_nothing(either: HostCluster, tmp_path: Path) -> None:
    cluster = either
    story = Story(cluster, tmp_path)
    driver = story.driver
    driver.do(f"""
actor = Keeper.options(**hard).remote()
counter = Counter.options(**hard).remote()
made = make.options(**hard).remote(1, {LARGE_BYTES})
skate.wait([made]), skate.get(counter.add.remote())
task = hold.options(**hard, max_retries=0).remote({story.held("task")})
call = actor.hold.remote({story.held("call")})
""")
    story.wait_begun("task")
    story.wait_begun("call")
    story.cut()
    # What is begun during the cut:
    driver.do(f"""
pinned = hold.options(**hard, max_retries=0).remote({story.held("pinned")})
calls = [counter.add.remote() for _ in range(300)]
reading = later(lambda: digest(skate.get(made)))
""")
    for ref in ("task", "call", "pinned", "calls[0]", "made"):
        story.wait_named(ref)
    assert "cannot reach each other" in story.error_of("skate.get(task, timeout=0.5)")[1]
    assert "cannot be reached" in story.error_of("skate.get(made, timeout=0.5)")[1]
    others = cluster.driver(cluster.head)
    assert len(others.nodes()) == 3, "both reach the control service, and nobody is dead"
    ids = [cluster.ids[host][:12] for host in (cluster.second, cluster.third)]
    for told in (cluster.command("status"), cluster.command("list", "events")):
        assert all(word in told for word in [*ids, "cannot reach each other"]), "both have told the control service"
    reads = "skate.get(where.options(resources={'%s': 1}, num_cpus=0).remote())"
    assert others.do(reads % "second") == cluster.ids[cluster.second]
    assert others.do(reads % "third") == cluster.ids[cluster.third]
    for name in ("task", "call", "pinned"):
        story.release(name)

    story.heal()
    assert driver.do("skate.get(task)", HEALED_WITHIN_S) == story.third
    assert driver.do("skate.get(call)", HEALED_WITHIN_S) == story.third
    assert driver.do("skate.get(pinned)", HEALED_WITHIN_S) == story.third
    assert driver.do("skate.get(calls)", HEALED_WITHIN_S) == list(range(2, 302))
    assert driver.do("reading.result()", HEALED_WITHIN_S) == digest(noise(1, LARGE_BYTES))
    assert [story.runs(name) for name in ("task", "call", "pinned")] == [1, 1, 1]
    assert "cannot reach each other" not in driver.do("skate.why(made)")
    wait_for(
        lambda: "cannot reach each other" not in cluster.command("status"), WITHIN_S, "both to have told of the healing"
    )


def test_after_the_grace_a_task_without_retries_fails_and_never_runs_again(
    impatient: HostCluster, tmp_path: Path
) -> None:
    story = Story(impatient, tmp_path)
    driver = story.driver
    driver.do(f"""
task = hold.options(**hard, max_retries=0).remote({story.held("task")})
bound = hold.options(**hard).remote({story.held("bound")})
""")
    story.wait_begun("task")
    story.wait_begun("bound")
    story.cut()
    driver.do(f"pinned = hold.options(**hard).remote({story.held('pinned')})")
    text = story.fails("skate.get(task)", "NodeUnreachableError")
    assert "may have run" in text
    assert "has not run" in story.fails("skate.get(pinned)", "NodeUnreachableError")
    assert "may have run" in story.fails("skate.get(bound)", "NodeUnreachableError"), "nowhere else may it run"
    (pid,) = story.pids("task")
    assert is_alive(pid), "over there nobody knows"

    story.heal()
    wait_for(lambda: not is_alive(pid), WITHIN_S, "the worker to be ended")
    assert driver.do("skate.get(where.options(**hard).remote())", HEALED_WITHIN_S) == story.third
    wait_for(lambda: driver.do("skate.available_resources()['CPU']") == 5, WITHIN_S, "the leases to be returned")
    assert [story.runs(name) for name in ("task", "bound", "pinned")] == [1, 1, 0]


def test_after_the_grace_a_task_with_retries_runs_elsewhere_and_its_late_result_is_ignored(
    impatient: HostCluster, tmp_path: Path
) -> None:
    story = Story(impatient, tmp_path)
    driver = story.driver
    driver.do(f"""
soft = dict(scheduling_strategy=at({story.third!r}, soft=True))
again = hold.options(**soft, max_retries=1).remote({story.held("again")})
large = hold_and_make.options(**soft, max_retries=1).remote({story.held("large")}, {LARGE_BYTES})
""")
    story.wait_begun("large")
    story.wait_begun("again")
    story.cut()
    for name in ("again", "large"):
        wait_for(lambda name=name: story.runs(name) == 2, 2 * SHORT_GRACE_S + WITHIN_S, f"{name} to run again")
    assert "was sent" not in driver.do("skate.why(again)") or "cannot reach" not in driver.do("skate.why(again)")
    first, _second = story.pids("again")
    for name in ("again", "large"):
        story.release(name)  # both attempts end: the first has a result that nobody wants
    assert driver.do("digest(skate.get(large))") == digest(noise(0, LARGE_BYTES))
    assert driver.do("skate.get(again)") in {impatient.ids[impatient.head], impatient.ids[impatient.second]}
    story.heal()
    wait_for(lambda: not is_alive(first), WITHIN_S, "the worker of the first attempt to be ended")
    assert driver.do("skate.get(where.options(**hard).remote())", HEALED_WITHIN_S) == story.third
    assert driver.do("skate.get(again)") != story.third
    assert (story.runs("again"), story.runs("large")) == (2, 2)
    driver.do("del again, large")

    def is_empty() -> bool:
        nodes = json.loads(impatient.command("status", "--json"))["nodes"]
        return not any(node["used"]["object_store_memory"] or node["used"]["CPU"] for node in nodes)

    wait_for(is_empty, WITHIN_S, "what the first attempt has stored to be freed")


def test_a_worker_that_has_finished_what_was_given_up_keeps_what_others_need_of_it(
    impatient: HostCluster, tmp_path: Path
) -> None:
    story = Story(impatient, tmp_path)
    driver = story.driver
    driver.do(f"""
alike = dict(**hard, max_retries=0)
pid, owned, actor = skate.get(own_and_create.options(**alike).remote("owned", {impatient.ids[impatient.head]!r}))
given_up = hold_and_own.options(**alike).remote({story.held("given_up")})
""")
    story.wait_begun("given_up")
    (pid,) = story.pids("given_up")
    assert driver.do("pid") == pid, "both ran in one worker"
    story.cut()
    driver.do(f"behind = hold.options(**alike).remote({story.held('behind')})")
    for ref in ("given_up", "behind"):
        story.fails(f"skate.get({ref})", "NodeUnreachableError")
    story.release("given_up")
    story.release("behind")
    assert driver.do("skate.get(actor.add.remote())") == 2
    story.heal()
    here = "attempt(lambda: skate.get(where.options(**hard).remote()))"
    wait_for(lambda: driver.do(here, HEALED_WITHIN_S) == story.third, HEALED_WITHIN_S, "the healing to be heard of")
    time.sleep(0.5)  # the order to end the worker has been heard of by then
    assert driver.do("skate.get(owned)") == "owned"
    assert driver.do("skate.get(actor.add.remote())") == 3
    assert is_alive(pid)
    driver.do("del owned, actor")
    wait_for(lambda: not is_alive(pid), WITHIN_S, "the worker to leave when no process needs what it owns")
    assert (story.runs("given_up"), story.runs("behind")) == (1, 0)


def test_after_healing_a_read_that_had_failed_tells_that_the_owner_has_died(
    impatient: HostCluster, tmp_path: Path
) -> None:
    story = Story(impatient, tmp_path)
    driver = story.driver
    driver.do("""
owner = Counter.options(**hard).remote()
pid, owned = skate.get(owner.pid.remote()), skate.get(owner.own.remote("small"))
""")
    story.cut()
    story.fails("skate.get(owned)", "ObjectFetchTimedOutError")
    os.kill(driver.do("pid"), signal.SIGKILL)
    story.heal()
    read = "attempt(lambda: skate.get(owned))"
    wait_for(lambda: driver.do(read, HEALED_WITHIN_S) == "OwnerDiedError", HEALED_WITHIN_S, "the death to be told")


def test_a_driver_outside_the_cluster_that_cannot_reach_a_node_goes_on_after_healing(cluster: HostCluster) -> None:
    """It listens nowhere: whoever wants to talk to it asks it to connect."""
    driver = cluster.remote_driver()
    driver.do(f"hard = dict(scheduling_strategy=at({cluster.ids[cluster.third]!r}), num_cpus=0)")
    driver.do(f"counter, made = Counter.options(**hard).remote(), make.options(**hard).remote(1, {LARGE_BYTES})")
    driver.do("_ = skate.get(counter.add.remote()), skate.wait([made])")
    cluster.outside.cut_from(cluster.third)
    driver.do("call, reading = counter.add.remote(), later(lambda: digest(skate.get(made)))")
    for ref in ("call", "made"):
        wait_for(lambda ref=ref: "cannot reach each other" in driver.do(f"skate.why({ref})"), WITHIN_S, f"why of {ref}")
    cluster.outside.rejoin(cluster.third)
    assert driver.do("skate.get(call)", HEALED_WITHIN_S) == 2
    assert driver.do("reading.result()", HEALED_WITHIN_S) == digest(noise(1, LARGE_BYTES))


def test_after_the_grace_calls_of_an_actor_fail_unless_they_may_be_retried(
    impatient: HostCluster, tmp_path: Path
) -> None:
    story = Story(impatient, tmp_path)
    driver = story.driver
    driver.do(f"""
once, patient = Keeper.options(**hard).remote(), Keeper.options(**hard, max_task_retries=-1).remote()
idle = Keeper.options(**hard).remote()
skate.get(idle.own.remote(1))
running, retried = once.hold.remote({story.held("running")}), patient.hold.remote({story.held("retried")})
""")
    story.wait_begun("running")
    story.wait_begun("retried")
    story.cut()
    driver.do(f"unsent = idle.hold.remote({story.held('unsent')})")
    for call in ("running", "unsent"):
        story.fails(f"skate.get({call})", "ActorUnavailableError")
    assert driver.do("skate.wait([retried], timeout=0)[0] == []")
    for name in ("running", "retried", "unsent"):
        story.release(name)
    story.heal()
    assert driver.do("skate.get(retried)", HEALED_WITHIN_S) == story.third
    for actor in ("idle", "once"):
        # Until its node has heard that the path has healed, it may refuse a call without retries once more.
        own = f"attempt(lambda: len(skate.get({actor}.own.remote(1))))"
        wait_for(lambda own=own: driver.do(own) == 2, HEALED_WITHIN_S, f"{actor} to answer")
    runs = [story.runs(name) for name in ("running", "retried", "unsent")]
    assert runs == [1, 1, 0], "a call that failed before it began does not begin after healing"


def test_after_the_grace_calls_to_a_life_of_an_actor_that_ended_during_the_cut_are_decided_on(
    impatient: HostCluster, tmp_path: Path
) -> None:
    """The caller hears from the control service that the actor lives on, and cannot hear the end of its last life."""
    story = Story(impatient, tmp_path)
    driver = story.driver
    driver.do(f"""
actor = Keeper.options(**hard, max_restarts=-1).remote()
once = actor.hold.remote({story.held("once")})
again = actor.hold.options(max_task_retries=-1).remote({story.held("again")})
""")
    story.wait_begun("once")
    story.cut()
    story.wait_named("once")
    os.kill(story.pids("once")[0], signal.SIGKILL)
    assert story.error_of("skate.get(once)", 2 * SHORT_GRACE_S + WITHIN_S)[0] == "ActorUnavailableError"
    assert driver.do("skate.wait([again], timeout=0)[0] == []")
    story.heal()
    story.release("again")
    assert driver.do("skate.get(again)", HEALED_WITHIN_S) == story.third
    assert (story.runs("once"), story.runs("again")) == (1, 1)


def test_after_the_grace_reads_fail_unless_there_is_another_copy_and_succeed_after_healing(
    impatient: HostCluster, tmp_path: Path
) -> None:
    story = Story(impatient, tmp_path)
    driver = story.driver
    driver.do(f"""
made, copied = (make.options(**hard).remote(seed, {LARGE_BYTES}) for seed in (1, 2))
skate.wait([made, copied], num_returns=2)
skate.get(read.options(resources={{"head": 1}}, num_cpus=0).remote([copied]))
owner = Keeper.options(**hard).remote()
owned, pending = skate.get(owner.own.remote("small"))
""")
    story.cut()
    story.driver.do("reading = later(lambda: digest(skate.get(made)))")
    story.wait_named("made")
    assert driver.do("digest(skate.get(copied))") == digest(noise(2, LARGE_BYTES)), "there is a copy on the head"
    story.wait_named("owned")
    for code in ("reading.result()", "skate.get(owned)", "skate.get(pending)"):
        story.fails(code, "ObjectFetchTimedOutError")
    story.heal()
    large = digest(noise(1, LARGE_BYTES))
    wait_for(lambda: driver.do("attempt(lambda: digest(skate.get(made)))") == large, HEALED_WITHIN_S, "the large one")
    wait_for(lambda: driver.do("attempt(lambda: skate.get(owned))") == "small", HEALED_WITHIN_S, "its owner to answer")
    driver.do("skate.kill(owner)")


def test_after_the_grace_a_task_whose_argument_is_out_of_reach_fails_or_is_tried_again(
    impatient: HostCluster, tmp_path: Path
) -> None:
    """The driver reaches both nodes; the node of the task does not reach the one that has its argument. The two nodes
    had nothing to do with each other before."""
    story = Story(impatient, tmp_path)
    driver = impatient.driver(impatient.head)
    driver.do(f"""
made = make.options(resources={{"second": 1}}, num_cpus=0).remote(1, {LARGE_BYTES})
there = dict(scheduling_strategy=at({story.third!r}), num_cpus=0)
skate.wait([made]), skate.get(where.options(**there).remote())
""")
    story.cut()
    driver.do("""
once = digest_of.options(**there, max_retries=0).remote(made)
again = digest_of.options(**there, max_retries=-1).remote(made)
""")
    with pytest.raises(DriverError) as raised:
        driver.do("skate.get(once)", 2 * SHORT_GRACE_S + WITHIN_S)
    kind, text = raised.value.args
    assert "ObjectFetchTimedOutError" in kind
    for host in (impatient.second, impatient.third):
        assert impatient.ids[host][:12] in text, text
    assert driver.do("skate.wait([again], timeout=0)[0] == []"), "it is tried again"
    story.heal()
    assert driver.do("skate.get(again)", HEALED_WITHIN_S) == digest(noise(1, LARGE_BYTES))


def test_what_asks_for_the_path_after_the_grace_has_no_grace_of_its_own(impatient: HostCluster, tmp_path: Path) -> None:
    story = Story(impatient, tmp_path)
    driver = story.driver
    driver.do(f"""
made = make.options(**hard).remote(1, {LARGE_BYTES})
actor, owner = Keeper.options(**hard).remote(), Keeper.options(**hard).remote()
owned, _ = skate.get(owner.own.remote("small"))
skate.wait([made]), skate.get(actor.own.remote(1))
first = actor.own.remote(2)
second_grace = owner.hold.options(max_task_retries=1).remote({story.held("clock")})
""")
    story.wait_begun("clock")
    story.cut()
    driver.do("first = actor.own.remote(2)")
    story.fails("skate.get(first)", "ActorUnavailableError")
    driver.do(f"""
patient = actor.own.options(max_task_retries=-1).remote(3)
asked = [
    later(lambda: skate.get(made)),
    later(lambda: skate.get(owned)),
    later(lambda: skate.get(actor.own.remote(4))),
    later(lambda: skate.get(hold.options(**hard).remote({story.held("pinned")}))),
]
""")
    kinds = ["ObjectFetchTimedOutError", "ObjectFetchTimedOutError", "ActorUnavailableError", "NodeUnreachableError"]
    for index, kind in enumerate(kinds):
        story.fails(f"asked[{index}].result()", kind)
    assert driver.do("skate.wait([second_grace], timeout=0)[0] == []"), "its retry lets it wait until the next one"
    told = driver.do("skate.why(patient)")
    assert f"That is longer than partition_grace_s ({SHORT_GRACE_S:g} s), so that only what has retries" in told, told
    story.fails("skate.get(second_grace)", "ActorUnavailableError")
    assert driver.do("skate.wait([patient], timeout=0)[0] == []")
    story.release("clock")
    story.heal()
    assert len(driver.do("[str(ref) for ref in skate.get(patient)]", HEALED_WITHIN_S)) == 2
    assert story.runs("pinned") == 0


def test_work_goes_on_soon_after_a_long_cut(cluster: HostCluster, tmp_path: Path) -> None:
    """By then TCP tries every 13 s: what was lost on old connections has to go over new ones."""
    story = Story(cluster, tmp_path)
    driver = story.driver
    driver.do(f"""
counter = Counter.options(**hard).remote()
made = make.options(**hard).remote(1, {LARGE_BYTES})
skate.wait([made]), skate.get(counter.add.remote())
task = hold.options(**hard, max_retries=0).remote({story.held("task")})
""")
    story.wait_begun("task")
    driver.do("reading = later(lambda: digest(skate.get(made)))")
    cut_at = time.monotonic()
    story.cut()
    story.release("task")
    driver.do("call = counter.add.remote()")
    story.wait_named("call")
    time.sleep(max(0.0, cut_at + LONG_CUT_S - time.monotonic()))
    story.heal()
    for code, value in (
        ("skate.get(call)", 2),
        ("skate.get(task)", story.third),
        ("reading.result()", digest(noise(1, LARGE_BYTES))),
    ):
        assert driver.do(code, HEALED_WITHIN_S) == value
    assert story.runs("task") == 1


def test_an_object_that_was_on_its_way_over_the_cut_comes_from_another_copy(
    cluster: HostCluster, tmp_path: Path
) -> None:
    story = Story(cluster, tmp_path)
    driver = story.driver
    driver.do(f"made = make.options(**hard).remote(1, {SLOW_BYTES}); skate.wait([made])")
    try:
        cluster.third.delay(20)
    except Unavailable as missing:
        pytest.skip(str(missing))
    driver.do("reading = later(lambda: digest(skate.get(made)))")
    wait_for(lambda: is_coming(driver, "made"), WITHIN_S, "some of it to be on its way")
    story.cut()
    driver.do("copying = read.options(resources={'head': 1}, num_cpus=0).remote([made])")
    assert driver.do("skate.get(copying)", 2 * WITHIN_S) == digest(noise(1, SLOW_BYTES))
    assert driver.do("reading.result()", 2 * WITHIN_S) == digest(noise(1, SLOW_BYTES))
    story.heal()


def is_coming(driver: Driver, ref: str) -> bool:
    try:
        return bool(driver.do(f"len(skate.get({ref}, timeout=0.02))"))
    except DriverError as error:
        here = re.search(r"is on its way from node \w+: ([0-9.]+) ", error.args[1])
        return here is not None and float(here[1]) > 0


def test_tasks_that_may_run_anywhere_avoid_a_node_that_cannot_be_reached(cluster: HostCluster, tmp_path: Path) -> None:
    story = Story(cluster, tmp_path)
    driver = story.driver
    driver.do(f"task = hold.options(**hard).remote({story.held('task')})")
    story.wait_begun("task")
    story.cut()
    story.wait_named("task")
    rest = {cluster.ids[cluster.head], cluster.ids[cluster.second]}
    assert set(driver.do("skate.get([where.remote(0.2) for _ in range(12)])")) == rest
    driver.do("spread = where.options(scheduling_strategy='SPREAD')")
    assert set(driver.do("skate.get([spread.remote(0.1) for _ in range(6)])")) <= rest
    # Of another shape each time: a task like the last one runs on the worker that is leased already.
    driver.do(f"liked = dict(scheduling_strategy=at({story.third!r}, soft=True)); shapes = iter(range(1, 1000))")
    liked = "skate.get(where.options(**liked, num_cpus=next(shapes) / 1000).remote())"
    assert driver.do(liked) in rest
    story.release("task")
    story.heal()
    assert driver.do("skate.get(task)", HEALED_WITHIN_S) == story.third
    wait_for(lambda: driver.do(liked) == story.third, HEALED_WITHIN_S, "it to be used again")


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("ref", ["task", "call", "pinned", "made"])
def test_a_get_that_waits_for_a_node_that_cannot_be_reached_says_so(
    cluster: HostCluster, tmp_path: Path, ref: str
) -> None:
    story = Story(cluster, tmp_path)
    driver = story.driver
    driver.do(f"""
actor = Keeper.options(**hard).remote()
made = make.options(**hard).remote(1, {LARGE_BYTES})
skate.wait([made])
task = hold.options(**hard).remote({story.held("task")})
call = actor.hold.remote({story.held("call")})
""")
    story.wait_begun("task")
    story.wait_begun("call")
    story.cut()
    driver.do(f"""
import io, sys
from skate._worker import current
runtime = current.get_runtime()
runtime.notice_s, runtime.first_look_s = 9.0, 7.5  # a cut is declared after 4 s
sys.stderr = said = io.StringIO()
pinned = make.options(**hard).remote(2, 10)
waiting = threading.Thread(target=skate.get, args=[{ref}])
waiting.start()
""")
    wait_for(lambda: "has waited" in driver.do("said.getvalue()"), 2 * WITHIN_S, "the line")
    line = driver.do("said.getvalue()")
    assert "cannot reach each other" in line or "cannot be reached" in line, line
    assert line.count("\n") == 1, line
    assert ".." not in line, line
    assert ". (SKATE_WAIT_NOTICE=0 switches such lines off.)" in line, line
    for name in ("task", "call"):
        story.release(name)
    story.heal()
    driver.do("waiting.join()")


@pytest.mark.parametrize("host", ["head", "second"])
def test_a_task_that_waits_for_a_value_beyond_a_cut_says_so(cluster: HostCluster, host: str) -> None:
    """The driver may reach both nodes. The two had nothing to do with each other before, if it is on the head."""
    driver = cluster.driver(cluster.by_name(host))
    driver.do(f"""
near, far = dict(resources={{"second": 0.1}}, num_cpus=0), dict(resources={{"third": 0.1}}, num_cpus=0)
made, owner = make.options(**far).remote(1, {LARGE_BYTES}), Counter.options(**far).remote()
skate.wait([made], fetch_local=False)
owned = skate.get(owner.own.remote(noise(2, {LARGE_BYTES})))
""")
    cluster.second.cut_from(cluster.third)
    driver.do("""
argument, borrowed = digest_of.options(**near).remote(made), digest_of.options(**near).remote(owned)
inside, inside_borrowed = read.options(**near).remote([made]), read.options(**near).remote([owned])
""")
    ids = {name: cluster.ids[cluster.by_name(name)] for name in ("second", "third")}
    names = [f"node {id[:12]} ({name}" for name, id in ids.items()]

    def is_named(told: str) -> bool:
        return all(word in told for word in [*names, "cannot reach each other"])

    for ref in ("argument", "borrowed", "inside", "inside_borrowed"):
        wait_for(lambda ref=ref: is_named(driver.do(f"skate.why({ref})")), WITHIN_S, f"why({ref}) to name the cut")
    told = driver.do("skate.why(argument)")
    assert "which fetches its arguments and has not begun it" in told, told
    assert f"is on node {ids['third']}" in told, told
    for ref in ("inside", "inside_borrowed"):
        assert "is running in worker pid" in (told := driver.do(f"skate.why({ref})")), told
    for ref in ("argument", "borrowed"):
        with pytest.raises(DriverError) as raised:
            driver.do(f"skate.get({ref}, timeout=0.5)")
        assert raised.value.kind == "GetTimeoutError"
        assert is_named(raised.value.args[1]), raised.value.args[1]
    driver.do("""
import io, sys
from skate._worker import current
runtime = current.get_runtime()
runtime.notice_s, runtime.first_look_s = 2.0, 1.5
sys.stderr = said = io.StringIO()
waiting = threading.Thread(target=skate.get, args=[argument])
waiting.start()
""")
    wait_for(lambda: "has waited" in driver.do("said.getvalue()"), 2 * WITHIN_S, "the line")
    line = driver.do("said.getvalue()")
    assert is_named(line), line
    assert line.count("cannot reach each other") == 1, line
    cluster.second.rejoin(cluster.third)
    for ref, seed in (("argument", 1), ("borrowed", 2), ("inside", 1), ("inside_borrowed", 2)):
        assert driver.do(f"skate.get({ref})", HEALED_WITHIN_S) == digest(noise(seed, LARGE_BYTES))
    driver.do("waiting.join()")
