"""In a real control group: the store and the CPUs are sized by its limits, and short memory is its own."""

from __future__ import annotations

import json
from pathlib import Path

from control_group import control_group

MIB = 1 << 20
HEAD = """
import json, os, sys, time
import numpy as np
import skate
MIB = 1 << 20
"""


def test_the_limits_of_an_outer_group_count_for_a_program_in_an_inner_one() -> None:
    with control_group(600 * MIB, cpus=0.5) as group:
        out, _ = group.run(f"{HEAD}\nskate.init(); print(json.dumps(skate.cluster_resources()))")
    resources = json.loads(out)
    assert resources["object_store_memory"] == 180 * MIB
    assert resources["CPU"] == 1
    assert resources["memory"] < 600 * MIB


def test_a_store_larger_than_the_container_is_said_so() -> None:
    with control_group(600 * MIB) as group:
        _, said = group.run(f"{HEAD}\nskate.init(object_store_memory=1000 * MIB); skate.shutdown()")
    assert "UserWarning" in said
    assert str(1000 * MIB) in said
    assert str(600 * MIB) in said


START = f"""{HEAD}
import subprocess
os.environ.update(HOME=sys.argv[1], XDG_RUNTIME_DIR=sys.argv[1], SKATE_LOG_DIR=os.path.join(sys.argv[1], "logs"))
for name in ("SKATE_TOKEN", "SKATE_TOKEN_FILE", "SKATE_ADDRESS"):
    os.environ.pop(name, None)
command = [sys.executable, "-m", "skate.cli"]
head = [*command, "start", "--head", "--port", "0", "--num-cpus", "1", "--object-store-memory", "1000MiB"]
try:
    print(subprocess.run(head, check=True, stdout=subprocess.PIPE, text=True).stdout)
finally:
    subprocess.run([*command, "stop"], check=True, stdout=subprocess.DEVNULL)
"""


def test_the_command_line_says_so_too(tmp_path: Path) -> None:
    with control_group(600 * MIB) as group:
        said, _ = group.run(START, str(tmp_path))
    assert str(1000 * MIB) in said
    assert str(600 * MIB) in said


GREEDY = f"""{HEAD}
skate.init(num_cpus=1)

@skate.remote(max_retries=0)
def greedy():
    taken = []
    while True:
        taken.append(b"1" * (5 * MIB))
        time.sleep(0.02)

try:
    skate.get(greedy.remote())
except skate.exceptions.OutOfMemoryError as error:
    pids = [pid for _, pid, _ in error.processes]
    with open(f"{{error.group}}/inner/cgroup.procs") as file:
        members = set(map(int, file.read().split())) | {{error.pid}}
    print(json.dumps([error.group, error.total_bytes, pids, sorted(members), os.getpid(), str(error)]))
"""


def test_an_out_of_memory_error_lists_the_processes_of_the_container() -> None:
    with control_group(600 * MIB) as group:
        out, _ = group.run(GREEDY)
        folder, total_bytes, pids, members, driver, text = json.loads(out)
        assert folder == str(group.memory)
    assert total_bytes == 600 * MIB
    assert set(pids) <= set(members), "a process of another group is listed"
    assert driver in pids, "the driver is in the group, too"
    assert "its container was running out of memory" in text


FULL = f"""{HEAD}
skate.init(num_cpus=1, object_store_memory=590 * MIB)

def make(seed):
    return np.random.default_rng(seed).integers(0, 2**63, 10 * MIB // 8, dtype=np.int64)
"""


def test_a_store_as_large_as_the_container_spills_before_the_kernel_kills() -> None:
    """The arena is never full: it is memory that is short."""
    with control_group(600 * MIB) as group:
        out, _ = group.run(f"""{FULL}
refs = [skate.put(make(seed)) for seed in range(100)]
assert all(np.array_equal(skate.get(ref), make(seed)) for seed, ref in enumerate(refs))
print("read back")
""")
    assert out == "read back\n"


def test_the_store_gives_memory_to_a_task_that_needs_it_before_a_worker_is_ended() -> None:
    with control_group(600 * MIB) as group:
        out, _ = group.run(f"""{FULL}
refs = [skate.put(make(seed)) for seed in range(35)]

@skate.remote(max_retries=0)
def large():
    taken = []
    for _ in range(60):
        taken.append(b"1" * (5 * MIB))
        time.sleep(0.1)  # 50 MB/s: what the store gives back has to be written to a disk that other tests use, too
    return len(taken)

assert skate.get(large.remote()) == 60
assert all(np.array_equal(skate.get(ref), make(seed)) for seed, ref in enumerate(refs))
print("both")
""")
    assert out == "both\n"
