"""What async actors import is there once for all of them."""

from __future__ import annotations

import os
import sys

import pytest

import skate
from waiting import WITHIN_S, value_of, wait_for


@pytest.mark.usefixtures("anywhere")
def test_workers_after_the_first_async_actor_share_what_it_has_imported() -> None:
    """7 MB that each of them would have for itself."""
    there = skate.remote(num_cpus=0, resources={"second": 0.01})

    @there
    class Async:
        async def pid(self) -> int:
            return os.getpid()

    @there
    class Plain:
        def has_asyncio(self) -> bool:
            return "asyncio" in sys.modules

    actor = Async.remote()
    value_of(actor.pid.remote())

    def shares() -> bool:
        plain = Plain.remote()
        found: bool = value_of(plain.has_asyncio.remote())
        skate.kill(plain)
        return found

    wait_for(shares, WITHIN_S, "a worker that was forked with asyncio")
