"""Measure `skate.rl` beside its peers: the rows of docs/rl-benchmarks.md, resumable.

    make bench SUITE=rl                          every row, at most 90 minutes
    python bench/rl/run.py --rows ppo_cartpole   only these rows
    python bench/rl/run.py --resume FILE         go on with a result: cells that are there are not measured again
    python bench/rl/run.py --show FILE           print a result
    python bench/rl/run.py --smoke               one run of tiny sizes: shows that every program works
    python bench/rl/run.py --list                what each row measures

`bench/suite.py` says how rows are measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from rows import ROWS  # noqa: E402

from suite import Suite  # noqa: E402

if __name__ == "__main__":
    Suite("rl", HERE, ROWS).main()
