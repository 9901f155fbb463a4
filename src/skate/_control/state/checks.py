"""What a process says is looked at where it comes in, so that nothing behind that has to."""

from __future__ import annotations

from skate._core.resources import Amounts, to_units
from skate._wire.protocol_error import ProtocolError


def checked_units(resources: dict[str, float]) -> Amounts:
    """Resources in whole units. Processes check theirs before they send them, so a mistake breaks the protocol."""
    try:
        return to_units(resources)
    except ValueError as error:
        raise ProtocolError(str(error)) from error
