"""What the processes of an environment know of it."""

from __future__ import annotations

#: Holds the variables of a worker's environment as JSON, for its children to inherit.
ENVIRONMENT_VARIABLE = "SKATE_RUNTIME_ENV"
