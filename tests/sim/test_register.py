"""The register of the authority has one history, whoever proposes and whichever voter forgets."""

from __future__ import annotations

import os

import pytest
from register_world import RegisterWorld

SEEDS = int(os.environ.get("SKATE_SIM_SEEDS", "300")) // 3


def test_every_epoch_has_one_value() -> None:
    for seed in range(SEEDS):
        try:
            RegisterWorld(seed).run()
        except AssertionError as error:
            pytest.fail(f"{error!r}\nreplay: python tests/sim/hunt.py none --from {seed} --seeds 1")
