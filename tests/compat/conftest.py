"""Which libraries are tried: a few with `make test`, all of them with `make compat`.

`make compat` sets SKATE_COMPAT and makes an environment that has every library. A library that is missing there is a
failure and not a skipped test.
"""

from __future__ import annotations

import os
from pathlib import Path

#: What `make test` has. The others need gigabytes of packages, or must be installed without their dependency on Ray.
SMALL = {
    "test_dask.py", "test_pymoo.py", "test_ray_serve.py", "test_ray_train.py", "test_scikit_learn.py",
    "test_versions.py",
}  # fmt: skip
LARGE = [each.name for each in Path(__file__).parent.glob("test_*.py") if each.name not in SMALL]

collect_ignore = [] if os.environ.get("SKATE_COMPAT") else LARGE
collect_ignore_glob = ["written_for_ray/*"]
