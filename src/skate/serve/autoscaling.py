"""How many replicas a deployment is to have, by the requests in it: decisions over samples and a clock. Pure.

    load     requests that replicas work on, that wait in them, and that wait in handles
    wanted   load / target_ongoing_requests, rounded up, between min_replicas and max_replicas

A change is made when the load has asked for it, without a break, for the delay of its direction. It goes only as far as
the load has asked for all that time, less its beginning, when the mean still holds what was before.
The first request of a deployment without replicas starts one at once.
"""

from __future__ import annotations

import math
from collections import deque

from skate.serve.config import AutoscalingConfig

__all__ = ["Autoscaler"]


class Autoscaler:
    """Decides for one deployment."""

    def __init__(self, config: AutoscalingConfig, replicas: int) -> None:
        self._config = config
        self._wanted = replicas
        self._samples: deque[tuple[float, float]] = deque()
        #: Since when the load asks for more, or for fewer; the number nearest to the present one that it has asked for.
        self._since: float | None = None
        self._direction = 0
        self._modest = replicas

    @property
    def wanted(self) -> int:
        """The number of replicas."""
        return self._wanted

    def look(self, load: float, now: float) -> int:
        """The number of replicas, after another sample of the load."""
        config = self._config
        if load > 0 and self._wanted == 0:
            self._forget()
            self._wanted = 1
        self._samples.append((now, load))
        while self._samples and self._samples[0][0] < now - config.look_back_period_s:
            self._samples.popleft()
        asked = self._asked()
        direction = (asked > self._wanted) - (asked < self._wanted)
        if direction != self._direction or self._since is None:
            self._direction, self._since, self._modest = direction, now, asked
        delay = self._delay(direction)
        if now - self._since <= min(config.look_back_period_s, delay / 2):
            self._modest = asked
        self._modest = min(self._modest, asked) if direction > 0 else max(self._modest, asked)
        if direction and now - self._since >= delay:
            self._wanted = self._modest
            self._since = None
        return self._wanted

    def _asked(self) -> int:
        config = self._config
        mean = sum(load for _, load in self._samples) / len(self._samples)
        asked = math.ceil(mean / config.target_ongoing_requests - 1e-9)
        more = asked - self._wanted
        factor = config.upscaling_factor if more > 0 else config.downscaling_factor
        if factor is not None:  # rounded away from zero: a part of one replica is one, or the number would never arrive
            asked = self._wanted + (math.ceil(more * factor) if more > 0 else math.floor(more * factor))
        if self._wanted > 1 and config.downscale_to_zero_delay_s is not None:
            asked = max(1, asked)
        return min(config.max_replicas, max(config.min_replicas, asked))

    def _delay(self, direction: int) -> float:
        config = self._config
        if direction > 0:
            return config.upscale_delay_s
        if self._wanted == 1 and config.downscale_to_zero_delay_s is not None:
            return config.downscale_to_zero_delay_s
        return config.downscale_delay_s

    def _forget(self) -> None:
        self._samples.clear()
        self._since, self._direction = None, 0
