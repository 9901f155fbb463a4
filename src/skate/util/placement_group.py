"""Placement groups, where programs written for Ray look for them: this module, and a function of the same name.

>>> from skate.util.placement_group import placement_group, remove_placement_group
>>> skate.util.placement_group([{"CPU": 1}])
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from skate.groups import (
    STRATEGIES,
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

VALID_PLACEMENT_GROUP_STRATEGIES = frozenset(STRATEGIES)

__all__ = [
    "VALID_PLACEMENT_GROUP_STRATEGIES",
    "PlacementGroup",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> PlacementGroup:
        return placement_group(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
