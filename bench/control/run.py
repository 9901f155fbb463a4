"""Measure the control store: the rows of docs/control-benchmarks.md.

    make bench SUITE=control                      every row, at most 90 minutes
    make bench SUITE=control RESUME=FILE          go on with a result: cells that are there are not measured again
    make bench SUITE=control SMOKE=1              one run of tiny sizes: shows that every program works
    python bench/control/run.py --rows sqlite     only these rows
    python bench/control/run.py --show FILE       print a result; --table FILE as Markdown
    python bench/control/run.py --list            what each row measures
    python bench/control/page.py FILE             write the tables into docs/control-benchmarks.md
    python bench/control/plots.py FILE            draw its pictures

`bench/suite.py` says how rows are measured. Each program starts its servers and services itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from rows import ROWS  # noqa: E402

from suite import Suite  # noqa: E402

if __name__ == "__main__":
    Suite("control", HERE, ROWS).main()
