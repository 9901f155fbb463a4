"""Longer runs that show what the algorithms learn. `make learn` sets SKATE_LEARN; without it none is collected."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("SKATE_LEARN") else ["*"]
