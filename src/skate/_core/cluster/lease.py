"""Until when a leader may answer reads from its memory, and from when on its successor may acknowledge writes.

    leader      send renewal n ────────────────▶ acknowledged      may answer until (sending n) + LEASE_S
    successor   sees n first … take-over, seal, reads n again      may answer from (first sight of n) + LEASE_S + margin

A renewal is an ordinary write. The leader counts from the time *before it sent* the last renewal that was acknowledged;
the successor from the time when it first saw that renewal, which is later. What counts is the renewal that the
successor reads *after* it has sealed the members: until then the old leader may have renewed once more. Only durations
on monotonic clocks are compared, so setting a clock changes nothing, and the margin covers clocks whose rates differ.

Writes need no lease: the members refuse those of an old epoch.
"""

from __future__ import annotations

LEASE_S = 2.0
RENEW_PERIOD_S = 0.5
#: How much the rates of two clocks may differ, relative to one another. Quartz is better than 0.0002.
DRIFT_MAX = 0.03


class LeaderLease:
    """The side that answers reads."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self._lease_s = lease_s
        #: When the renewals that are under way were sent.
        self._sent_at: dict[int, float] = {}
        self._until = float("-inf")

    def renewing(self, renewal: int, now: float) -> None:
        """Called before the renewal is sent."""
        self._sent_at[renewal] = now

    def acknowledged(self, renewal: int, now: float) -> None:
        sent_at = self._sent_at.pop(renewal, None)
        if sent_at is not None:
            self._until = max(self._until, self._counts_from(sent_at, now) + self._lease_s)

    def _counts_from(self, sent_at: float, acknowledged_at: float) -> float:
        return sent_at

    def holds(self, now: float) -> bool:
        return now < self._until


class SuccessorLease:
    """The side that waits. `renewal` is whatever the leader wrote; only whether it changed is looked at."""

    def __init__(self, now: float, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self._wait_s = lease_s * (1 + DRIFT_MAX)
        self._renewal: bytes | None = None
        #: When that renewal was seen first; if there was none yet, since when it is looked for.
        self._seen_at = now

    def saw(self, renewal: bytes, now: float) -> None:
        if renewal != self._renewal:
            self._renewal, self._seen_at = renewal, now

    def has_expired(self, now: float) -> bool:
        """Time to try a take-over: nothing new was seen, be it that the leader or that the member asked is gone.

        A mistake costs a change of the leader, no more: it is `sealed` that protects reads.
        """
        return now >= self._seen_at + self._wait_s

    def sealed(self, renewal: bytes | None, now: float) -> float:
        """The renewal that was read after the seal; when the old leader certainly answers no more."""
        if renewal is None:
            return now
        self.saw(renewal, now)
        return self._seen_at + self._wait_s
