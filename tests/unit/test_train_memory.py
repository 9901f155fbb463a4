"""A training keeps the memory that it frees: the kernel need not clear it again in every step."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

STEPS, ARRAYS, MB = 8, 4, 12
PROGRAM = f"""
import resource
from skate.train import keep_memory

def step():
    [b"x" * ({MB} << 20) for _ in range({ARRAYS})]

keep_memory()
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = STEPS * ARRAYS * (MB << 20) // os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("variable", ["", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"])
def test_arrays_of_the_next_step_take_the_memory_of_the_last_one_unless_the_user_decides(variable: str) -> None:
    environment = {**os.environ, **({variable: ""} if variable else {})}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, stdout=subprocess.PIPE)
    assert (int(done.stdout) < PAGES // 10) == (not variable)
