"""Measure `skate.serve` beside its peers: the rows of docs/serve-benchmarks.md.

    make bench SUITE=serve                        every row, at most 90 minutes
    make bench SUITE=serve RESUME=FILE            go on with a result: cells that are there are not measured again
    python bench/serve/run.py --rows http         only these rows
    python bench/serve/run.py --smoke             one run of tiny sizes: shows that every program works
    python bench/serve/run.py --show FILE         print a result; --table FILE as Markdown
    python bench/serve/run.py --list              what each row measures

`bench/suite.py` says how rows are measured. Each program starts its peer's servers itself, and the
load in another process.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from rows import ROWS  # noqa: E402

from suite import Suite  # noqa: E402

if __name__ == "__main__":
    Suite("serve", HERE, ROWS).main()
