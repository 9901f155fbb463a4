"""Which libraries are tried: a few with `make test`, all of them with `make compat`.

`make compat` sets SKATE_COMPAT and makes an environment that has every library. A library that is missing there is a
failure and not a skipped test.
"""

from __future__ import annotations

import os

#: These need gigabytes of other packages, or must be installed without their dependency on Ray.
LARGE = ["test_evotorch.py", "test_flower.py", "test_modin.py", "test_tianshou.py", "test_xgboost_ray.py"]

collect_ignore = [] if os.environ.get("SKATE_COMPAT") else LARGE
collect_ignore_glob = ["written_for_ray/*"]
