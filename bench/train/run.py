"""Measure `skate.train`, `skate.collective` and trials beside their peers: the rows of docs/train-benchmarks.md.

    make bench SUITE=train                        every row, at most 90 minutes
    make bench SUITE=train RESUME=FILE            go on with a result: cells that are there are not measured again
    python bench/train/run.py --rows ddp          only these rows
    python bench/train/run.py --smoke             one run of tiny sizes: shows that every program works
    python bench/train/run.py --show FILE         print a result; --table FILE as Markdown
    python bench/train/run.py --list              what each row measures

`bench/suite.py` says how rows are measured. Each program puts its peer's launcher (torchrun, mpiexec) to work itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from rows import ROWS  # noqa: E402

from suite import Suite  # noqa: E402

if __name__ == "__main__":
    Suite("train", HERE, ROWS).main()
