"""A collective group on hosts of their own, when one of them falls silent for a moment, and for good."""

from __future__ import annotations

import time

from host_cluster import HostCluster
from waiting import WITHIN_S, wait_for

#: All ranks that are left raise within this time: that is promised.
KNOWN_WITHIN_S = 5.0
#: What a busy machine may add until a test sees it.
SLACK_S = 5.0

RANKS = """
from skate import collective
import numpy as np, os

@skate.remote(num_cpus=0, max_restarts=0)
class Rank:
    def join(self, world, rank):
        collective.init_collective_group(world, rank, group_name="g")

    def reduce(self, times, size):
        for _ in range(times):
            array = np.full(size, 1.0)
            collective.allreduce(array, "g")
        return float(array[0])

    def reduce_for_ever(self, size):
        try:
            while True:
                collective.allreduce(np.zeros(size), "g")
        except collective.CollectiveError as error:
            return type(error).__name__, getattr(error, "rank", None)

ranks = [Rank.options(resources={name: 0.1}).remote() for name in ("head", "head", "second", "third")]
skate.get([each.join.remote(4, number) for number, each in enumerate(ranks)])
"""


def test_a_short_silence_delays_an_allreduce_and_the_loss_of_a_host_is_an_error_in_all_that_are_left(
    host_cluster: HostCluster,
) -> None:
    """Ranks 0 and 1 are on the head, 2 on the second host, 3 on the third."""
    driver = host_cluster.driver(host_cluster.head)
    driver.do(RANKS)
    driver.do("loops = [each.reduce.remote(20, 1_000_000) for each in ranks]")
    host_cluster.third.cut()
    time.sleep(0.5)  # how long the cable is out
    host_cluster.third.restore()
    assert driver.do("skate.get(loops)") == [4.0] * 4

    driver.do("loops = [each.reduce_for_ever.remote(1_000_000) for each in ranks]")
    cut_at = time.monotonic()
    host_cluster.third.cut()
    wait_for(
        lambda: driver.do("len(skate.wait(loops[:3], num_returns=3, timeout=0)[0])") == 3,
        KNOWN_WITHIN_S + SLACK_S,
        "all ranks that are left to raise",
    )
    assert time.monotonic() - cut_at < KNOWN_WITHIN_S + SLACK_S
    assert driver.do("skate.get(loops[:3])") == [["RankDiedError", 3]] * 3
    host_cluster.third.restore()
    wait_for(lambda: len(driver.nodes()) == 3, 2 * WITHIN_S, "the host to join again")
