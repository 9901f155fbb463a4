"""Which ranks of a training make no progress, and which of them are the cause. Pure.

A rank is *silent* when it has reported nothing for `stall_after` seconds. One that never reports (in many programs rank
0 alone does) is silent only when all the others are. When a rank is silent the driver looks where the main thread of
every rank is, and `blame` says who holds up the others:

    silent ranks that do not answer   stopped by a signal, or in native code that holds the interpreter lock
    else silent ranks                 that are not in a collective
    else any ranks                    that do not answer, or are not in a collective: the silent ones wait for them
    else all silent ranks             they are in collectives that do not match each other
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """Where the main thread of a rank is."""

    answered: bool
    #: Whether it is in a collective, which waits for other ranks.
    waits: bool = False
    #: Its innermost frames.
    stack: str = ""
    #: For people: where the process is, and what the machine says of it.
    process: str = ""


class StalledError(RuntimeError):
    """Ranks of a training have made no progress for `stall_after` seconds.

    ranks: those that hold up the others. looks: where every rank that had not finished was, by rank.
    """

    def __init__(self, ranks: tuple[int, ...], looks: Mapping[int, Look], stall_after: float) -> None:
        super().__init__(ranks, looks, stall_after)
        self.ranks, self.looks, self.stall_after = tuple(ranks), dict(looks), stall_after

    def __str__(self) -> str:
        waiting = tuple(rank for rank, look in sorted(self.looks.items()) if look.waits and rank not in self.ranks)
        what = f"the training made no progress for {self.stall_after:g} s: {_named(self.ranks)} "
        if waiting:
            have = "has" if len(self.ranks) == 1 else "have"
            what += f"{have} not reached the collective that {_named(waiting)} {_are(waiting)} in."
        elif all(look.waits for look in self.looks.values()):
            what += f"{_are(self.ranks)} in collectives that do not match."
        elif not any(self.looks[rank].answered for rank in self.ranks):
            what += f"{'does' if len(self.ranks) == 1 else 'do'} not answer."
        else:
            what += f"{_are(self.ranks)} in no collective and reported nothing."
        lines = [what]
        for rank in (*self.ranks, *waiting[:1]):
            look = self.looks[rank]
            state = "does not answer" if not look.answered else "is in"
            lines.append(f"  why:  rank {rank} ({look.process}) {state}{':' if look.stack else '.'}")
            lines += [f"        {line}" for line in look.stack.rstrip().splitlines()]
        lines.append("  next: if nothing was stuck, report more often or give a longer stall_after=.")
        return "\n".join(lines)


class Progress:
    """When each rank of an attempt was last heard of."""

    def __init__(self, workers: int, stall_after: float | None, now: float) -> None:
        self._stall_after = stall_after
        self._running = set(range(workers))
        #: When a rank has reported last; only ranks that have.
        self._reported: dict[int, float] = {}
        #: When any rank has reported or finished last.
        self._last = now
        #: Nobody looks again before this.
        self._quiet_until = now

    def reported(self, rank: int, now: float) -> None:
        self._reported[rank] = self._last = now

    def finished(self, rank: int, now: float) -> None:
        self._running.discard(rank)
        self._reported.pop(rank, None)
        self._last = now

    def look_at(self) -> float | None:
        """When to look at the ranks, if nothing is heard until then."""
        if self._stall_after is None or not self._running:
            return None
        return max(min([self._last, *self._reported.values()]) + self._stall_after, self._quiet_until)

    def looked(self, now: float) -> None:
        """A look has found nothing: there is another one later."""
        if self._stall_after is not None:
            self._quiet_until = now + self._stall_after / 4

    def silent(self, now: float) -> set[int]:
        """The ranks that have made no progress for too long."""
        if self._stall_after is None:
            return set()
        if now - self._last >= self._stall_after:
            return set(self._running)
        return {rank for rank, last in self._reported.items() if now - last >= self._stall_after}

    def blame(self, looks: Mapping[int, Look], now: float) -> tuple[int, ...]:
        """The ranks that hold up the others, by where all ranks are; none if they make progress after all."""
        silent = self.silent(now)
        seen = {rank: look for rank, look in looks.items() if rank in self._running}
        if not silent or not seen:
            return ()
        mute = {rank for rank, look in seen.items() if not look.answered}
        elsewhere = {rank for rank, look in seen.items() if not look.waits}
        causes = (mute & silent, elsewhere & silent, mute, elsewhere, silent & seen.keys())
        return tuple(sorted(next((ranks for ranks in causes if ranks), ())))


def _named(ranks: tuple[int, ...]) -> str:
    """Ranks in words: `ranks 0, 1 and 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _are(ranks: tuple[int, ...]) -> str:
    return "is" if len(ranks) == 1 else "are"
