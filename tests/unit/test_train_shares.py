"""Blocks of a stream: every worker gets its share, all get as many, and few are held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skate.train.shares import Shares


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 20))
def test_in_any_order_every_worker_gets_its_share_and_few_blocks_are_held(
    data: st.DataObject, workers: int, ahead: int, blocks: int
) -> None:
    shares: Shares[int] = Shares(workers, ahead)
    got: list[list[int]] = [[] for _ in range(workers)]
    made, reading = 0, set(range(workers))
    while reading:
        ready = sorted(rank for rank in reading if shares.is_ready(rank))
        moves = [*ready, *(["make"] if shares.wants_block() else [])]
        assert moves, "neither can a block be made, nor can a worker take one"
        move = data.draw(st.sampled_from(moves))
        if move == "make":
            if made == blocks:
                shares.ended()
            else:
                shares.made(made)
                made += 1
        elif (block := shares.take(int(move))) is None:
            reading.remove(int(move))
        else:
            got[int(move)].append(block[0])
        shares.validate()
        assert made - sum(map(len, got)) <= ahead * workers
    rounds = blocks // workers
    assert got == [[rank + workers * number for number in range(rounds)] for rank in range(workers)]


def test_a_slow_worker_stops_the_making_and_not_the_blocks_that_wait_for_it() -> None:
    shares: Shares[str] = Shares(2, 1)
    shares.made("a")
    assert not shares.is_ready(0)  # its round is not whole: it may be the last one
    shares.made("b")
    assert shares.take(0) == ("a",)
    assert not shares.wants_block()
    assert shares.take(1) == ("b",)
    assert shares.wants_block()
