"""What a program can ask about itself and the machine, and what it sees of its tasks' output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import skate
from programs import run_program
from skate.groups import placement_group, remove_placement_group
from skate.strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from waiting import wait_for


@skate.remote
def facts() -> dict[str, Any]:
    context = skate.get_runtime_context()
    return {
        "job": context.get_job_id(),
        "node": context.get_node_id(),
        "worker": context.get_worker_id(),
        "task": context.get_task_id(),
        "name": context.get_task_name(),
        "actor": context.get_actor_id(),
        "resources": context.get_assigned_resources(),
        "pid": os.getpid(),
    }


@skate.remote(num_cpus=0)
def when(gate: Path, value: Any = None) -> Any:
    wait_for(gate.exists, 40, f"{gate.name} to open")
    return value


# --- the runtime context ----------------------------------------------------------------------------------------------


def test_ids_in_the_driver_and_in_tasks() -> None:
    skate.init(num_cpus=1)
    here = skate.get_runtime_context()
    first, second = skate.get([facts.remote(), facts.remote()])
    for there in (first, second):
        assert there["job"] == here.get_job_id()
        assert there["node"] == here.get_node_id()
        assert there["worker"] != here.get_worker_id()
        assert there["actor"] is None
        assert re.fullmatch(r"[0-9a-f]+", there["task"])
    assert first["worker"] == second["worker"], "there is one CPU"
    assert first["task"] != second["task"]
    assert here.get_task_id() is None


def test_where_a_task_runs() -> None:
    skate.init(num_cpus=1, labels={"zone": "a"})
    here = skate.get_runtime_context()
    group = placement_group([{"CPU": 1}])

    @skate.remote
    def where() -> tuple[dict[str, str], str | None]:
        context = skate.get_runtime_context()
        return context.get_node_labels(), context.get_placement_group_id()

    there = where.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()
    assert skate.get(there) == ({"zone": "a"}, group.id.hex())
    remove_placement_group(group)
    assert skate.get(where.remote()) == ({"zone": "a"}, None)
    assert (here.get_node_labels(), here.get_placement_group_id()) == ({"zone": "a"}, None)


def test_the_task_of_a_reference_is_the_task_that_ran() -> None:
    skate.init(num_cpus=1)
    ref = facts.remote()
    assert skate.get(ref)["task"] == ref.task_id().hex()


def test_names_of_tasks() -> None:
    skate.init(num_cpus=1)
    assert skate.get(facts.remote())["name"] == "facts"
    assert skate.get(facts.options(name="other").remote())["name"] == "other"


def test_resources_of_a_task() -> None:
    skate.init(num_cpus=2, num_gpus=1, resources={"licence": 2})
    assert skate.get(facts.remote())["resources"] == {"CPU": 1}
    given = {"num_cpus": 0.5, "num_gpus": 1, "memory": 1000, "resources": {"licence": 2}}
    found = skate.get(facts.options(**given).remote())["resources"]
    assert found == {"CPU": 0.5, "GPU": 1, "memory": 1000, "licence": 2}
    assert not skate.get(facts.options(num_cpus=0).remote())["resources"]


def test_the_context_as_a_dict() -> None:
    skate.init(num_cpus=1)
    context = skate.get_runtime_context()
    assert context.get() == {
        "job_id": context.job_id,
        "node_id": context.node_id,
        "worker_id": context.worker.worker_id,
        "namespace": context.namespace,
    }
    assert context.get()["node_id"].hex() == context.get_node_id()

    @skate.remote
    class Asker:
        def ask(self) -> tuple[dict[str, Any], list[str | None]]:
            context = skate.get_runtime_context()
            return context.get(), [context.get_task_id(), context.get_actor_id(), context.get_worker_id()]

    told, digits = skate.get(Asker.remote().ask.remote())
    assert [told[name].hex() for name in ("task_id", "actor_id", "worker_id")] == digits
    assert isinstance(told["task_id"], skate.TaskID)
    assert isinstance(told["actor_id"], skate.ActorID)


def test_accelerators() -> None:
    skate.init(num_cpus=1, num_gpus=1)
    look = skate.remote(num_gpus=1)(lambda: skate.get_runtime_context().get_accelerator_ids())
    assert skate.get(look.remote())["GPU"] == ["0"]


# --- resources and nodes ----------------------------------------------------------------------------------------------


def test_available_resources_follow_what_runs(tmp_path: Path) -> None:
    skate.init(num_cpus=2, resources={"licence": 3})
    total = skate.cluster_resources()
    assert (total["CPU"], total["licence"]) == (2, 3)
    assert total["memory"] > 0
    gate = tmp_path / "gate"
    ref = when.options(num_cpus=1.5, resources={"licence": 2}).remote(gate)
    wait_for(lambda: skate.available_resources().get("CPU", 0) == 0.5, 30, "the task to run")
    assert skate.available_resources()["licence"] == 1
    assert skate.cluster_resources() == total
    gate.touch()
    skate.get(ref)
    wait_for(lambda: skate.available_resources().get("CPU", 0) == 2, 30, "the resources to be free again")
    assert skate.available_resources()["licence"] == 3


def test_there_is_one_node() -> None:
    skate.init(num_cpus=2, resources={"licence": 3})
    (node,) = skate.nodes()
    assert node["Alive"] is True
    assert node["NodeID"] == skate.get_runtime_context().get_node_id()
    assert node["Resources"]["CPU"] == 2
    assert node["Resources"]["licence"] == 3
    assert node["NodeManagerAddress"]


def test_a_lone_node_has_its_address_and_that_of_the_head_as_resources() -> None:
    skate.init(num_cpus=2)
    (node,) = skate.nodes()
    marks = {f"node:{skate.util.get_node_ip_address()}": 1.0, "node:__internal_head__": 1.0}
    for amounts in (node["Resources"], skate.cluster_resources(), skate.available_resources()):
        assert {name: amount for name, amount in amounts.items() if name.startswith("node:")} == marks
    for name in marks:
        held = skate.get(facts.options(resources={name: 0.001}).remote())["resources"]
        assert held == {"CPU": 1.0, name: 0.001}


def test_tasks_may_ask_the_same() -> None:
    skate.init(num_cpus=2)
    ask = skate.remote(lambda: (skate.cluster_resources()["CPU"], len(skate.nodes()), skate.available_resources()))
    total, nodes, available = skate.get(ask.remote())
    assert (total, nodes) == (2, 1)
    assert available["CPU"] == 1


# --- timeline ---------------------------------------------------------------------------------------------------------


def test_a_timeline_goes_to_a_path_and_to_no_descriptor() -> None:
    """A number once meant one: what Skate had open there was overwritten and closed."""
    program = """
import os, skate
skate.init(num_cpus=1)
for descriptor in sorted(int(name) for name in os.listdir("/proc/self/fd"))[3:]:
    try:
        skate.timeline(descriptor)
    except TypeError as error:
        assert str(error) == f"timeline(filename={descriptor}): it may be None or a path, not an int.", error
print(skate.get(skate.remote(lambda: "well").remote()))
"""
    assert run_program(program)[0] == "well\n"


def test_the_timeline_shows_every_task_with_its_process(tmp_path: Path) -> None:
    skate.init(num_cpus=2)
    pids = set(skate.get([skate.remote(os.getpid).options(name=f"job-{i}").remote() for i in range(20)]))
    skate.get(facts.options(name="parent").remote())
    trace = tmp_path / "trace.json"
    assert skate.timeline(str(trace)) is None
    events = json.loads(trace.read_text())
    tasks = {event["name"]: event for event in events if event.get("ph") == "X"}
    assert {f"job-{i}" for i in range(20)} <= tasks.keys()
    assert "parent" in tasks
    assert {tasks[f"job-{i}"]["pid"] for i in range(20)} | {tasks[f"job-{i}"]["tid"] for i in range(20)} >= pids
    assert all(event["dur"] >= 0 and event["ts"] > 0 for event in tasks.values())


def test_the_timeline_as_a_value() -> None:
    skate.init(num_cpus=1)
    skate.get([facts.remote() for _ in range(5)])
    events = [event for event in skate.timeline() if event.get("name") == "facts"]
    assert len(events) == 5


def test_the_timeline_shows_tasks_of_workers_that_are_gone() -> None:
    skate.init(num_cpus=1)
    skate.get([facts.options(max_calls=1, name="short-lived").remote() for _ in range(3)])
    assert str(skate.timeline()).count("short-lived") >= 3


# --- why --------------------------------------------------------------------------------------------------------------


def test_why_a_reference_is_not_ready(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    gate = tmp_path / "gate"
    running = when.options(name="runner", num_cpus=1).remote(gate)
    queued = facts.options(name="patient").remote()
    dependent = skate.remote(lambda value: value).options(name="dependent").remote(running)
    wait_for(lambda: "running" in skate.why(running), 30, "why to say that the first task runs")
    assert "runner" in skate.why(running)
    assert re.search(r"pid \d+", skate.why(running))
    assert "patient" in skate.why(queued)
    assert re.search(r"(?i)waits|queue", skate.why(queued))
    assert "dependent" in skate.why(dependent)
    assert "runner" in skate.why(dependent), "it names what it waits for"
    gate.touch()
    skate.get([running, queued, dependent])
    assert "ready" in skate.why(running)


def test_why_says_what_the_machine_lacks() -> None:
    skate.init(num_cpus=1)
    ref = facts.options(num_cpus=64).remote()
    text = skate.why(ref)
    assert "64 CPU" in text
    assert "1 CPU" in text


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"label_selector": {"zone": "in(b, c)"}}, "label zone is b or c"),
        ({"label_selector": {"zone": "!a"}}, "label zone is not a"),
        ({"scheduling_strategy": NodeAffinitySchedulingStrategy("ff" * 16, soft=False)}, "on node ffff"),
    ],
)
def test_why_says_which_node_is_wanted(options: dict[str, Any], wanted: str) -> None:
    """It would seem that there is room: a CPU is free."""
    skate.init(num_cpus=1, labels={"zone": "a"})
    assert wanted in skate.why(facts.options(**options).remote())


def test_why_of_a_value_and_of_an_error() -> None:
    skate.init(num_cpus=1)
    failed = skate.remote(lambda: 1 / 0).remote()
    skate.wait([failed])
    assert "ready" in skate.why(skate.put(1))
    assert "error" in skate.why(failed)


def test_why_of_a_task_that_waits_for_another(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    gate = tmp_path / "gate"
    parent = skate.remote(lambda: skate.get(when.remote(gate))).options(name="parent").remote()
    wait_for(lambda: "waits for other tasks" in skate.why(parent), 30, "why to say that the task is blocked")
    gate.touch()
    skate.get(parent)


def test_a_timeout_tells_why(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    gate = tmp_path / "gate"
    ref = when.options(name="slowpoke").remote(gate)
    with pytest.raises(skate.exceptions.GetTimeoutError, match="slowpoke"):
        skate.get(ref, timeout=0.5)
    gate.touch()
    skate.get(ref)


# --- output of tasks --------------------------------------------------------------------------------------------------


def outputs_of(path: Path, source: str, **environment: str) -> tuple[str, str]:
    """Standard output and error of a script that ends well."""
    path.write_text("import skate\n" + source)
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=50,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_print_appears_at_the_driver_with_a_short_prefix(tmp_path: Path) -> None:
    output, errors = outputs_of(
        tmp_path / "script.py",
        """
@skate.remote
def speak(text):
    print(text)

skate.get(speak.remote("hello"))
""",
    )
    assert re.fullmatch(r"\(speak pid=\d+\) hello\n", output)
    assert errors == ""


def test_logging_and_stderr_appear_at_the_drivers_stderr(tmp_path: Path) -> None:
    output, errors = outputs_of(
        tmp_path / "script.py",
        """
import logging, sys

@skate.remote
def speak():
    logging.getLogger("mine").warning("careful")
    print("oops", file=sys.stderr)

skate.get(speak.remote())
""",
    )
    assert output == ""
    assert re.search(r"^\(speak pid=\d+\) .*careful$", errors, re.MULTILINE)
    assert re.search(r"^\(speak pid=\d+\) oops$", errors, re.MULTILINE)


def test_output_of_the_last_moment_is_not_lost(tmp_path: Path) -> None:
    output, _ = outputs_of(
        tmp_path / "script.py",
        """
@skate.remote
def speak(i):
    print("line", i)

skate.get([speak.remote(i) for i in range(200)])
""",
    )
    assert sorted(int(number) for number in re.findall(r"line (\d+)", output)) == list(range(200))


def test_lines_keep_their_order_and_stay_whole(tmp_path: Path) -> None:
    output, _ = outputs_of(
        tmp_path / "script.py",
        """
@skate.remote
def speak(who):
    for i in range(100):
        print(who, i, "x" * 200)

skate.get([speak.remote("a"), speak.remote("b")])
""",
    )
    lines = output.splitlines()
    assert len(lines) == 200
    assert all(re.fullmatch(r"\(speak pid=\d+\) [ab] \d+ x{200}", line) for line in lines)
    for who in "ab":
        numbers = [int(number) for number in re.findall(rf"\) {who} (\d+)", output)]
        assert numbers == list(range(100))


def test_repeated_lines_are_folded(tmp_path: Path) -> None:
    output, _ = outputs_of(
        tmp_path / "script.py",
        """
@skate.remote
def speak():
    print("always the same")

skate.get([speak.remote() for _ in range(50)])
""",
    )
    lines = output.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("always the same")
    assert re.search(r"always the same.*49", lines[1])


def test_folding_can_be_switched_off(tmp_path: Path) -> None:
    output, _ = outputs_of(
        tmp_path / "script.py",
        """
@skate.remote
def speak():
    print("always the same")

skate.get([speak.remote() for _ in range(10)])
""",
        SKATE_DEDUP_LOGS="0",
    )
    assert len(output.splitlines()) == 10


def test_log_to_driver_false_shows_nothing(tmp_path: Path) -> None:
    output, errors = outputs_of(
        tmp_path / "script.py",
        """
import sys
skate.init(num_cpus=1, log_to_driver=False)

@skate.remote
def speak():
    print("hidden")
    print("hidden too", file=sys.stderr)
    return "value"

print(skate.get(speak.remote()))
""",
    )
    assert (output, errors) == ("value\n", "")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('print("grüße 🛼")', "grüße 🛼"),
        ('sys.stdout.write("no newline")', "no newline"),
        ('os.write(1, b"from below\\n")', "from below"),
        ('subprocess.run(["echo", "from a child"])', "from a child"),
        ('t = threading.Thread(target=print, args=("from a thread",)); t.start(); t.join()', "from a thread"),
        ('os.write(1, b"\\xff\\xfe bytes\\n")', " bytes"),
    ],
    ids=lambda text: text[:30],
)
def test_output_of_every_kind(code: str, expected: str, tmp_path: Path) -> None:
    output, errors = outputs_of(
        tmp_path / "script.py",
        f"""
import os, subprocess, sys, threading

@skate.remote
def speak():
    {code}

skate.get(speak.remote())
""",
    )
    assert expected in output
    assert errors == ""


def test_a_very_long_line_is_cut_and_says_so(tmp_path: Path) -> None:
    output, _ = outputs_of(
        tmp_path / "script.py",
        """
@skate.remote
def speak():
    print("y" * 300_000)

skate.get(speak.remote())
""",
    )
    assert output.count("\n") == 1
    assert output.count("y") >= 10_000
    assert "cut here" in output


def test_empty_lines_are_lines(tmp_path: Path) -> None:
    output, _ = outputs_of(
        tmp_path / "script.py",
        """
@skate.remote
def speak():
    print("above\\n\\nbelow")

skate.get(speak.remote())
""",
    )
    texts = [re.sub(r"^\(speak pid=\d+\) ?", "", line) for line in output.splitlines()]
    assert texts == ["above", "", "below"]


def test_a_closed_output_does_not_disturb(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("""
import os, sys
import skate
from skate.groups import placement_group, remove_placement_group
from skate.strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

@skate.remote
def speak(i):
    print("line", i)
    return i

values = skate.get([speak.remote(i) for i in range(100)])
os._exit(0 if values == list(range(100)) else 1)
""")
    program = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    program.stdout.close()  # type: ignore[union-attr]
    assert program.wait(50) == 0


def test_the_last_words_of_a_worker_that_died_are_shown(tmp_path: Path) -> None:
    output, _ = outputs_of(
        tmp_path / "script.py",
        """
import os

@skate.remote(max_retries=0)
def crash():
    print("last words", flush=True)
    os._exit(1)

try:
    skate.get(crash.remote())
except skate.exceptions.WorkerCrashedError:
    print("caught")
""",
    )
    assert "last words" in output
    assert "caught" in output


def test_output_of_tasks_of_tasks(tmp_path: Path) -> None:
    output, _ = outputs_of(
        tmp_path / "script.py",
        """
@skate.remote
def child():
    print("from below")

@skate.remote
def parent():
    skate.get(child.remote())

skate.get(parent.remote())
""",
    )
    assert re.fullmatch(r"\(child pid=\d+\) from below\n", output)
