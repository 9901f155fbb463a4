"""Metrics of a program: counters, gauges and histograms, as programs written for Ray make them.

    requests = Counter("requests", description="answered", tag_keys=("route",))
    requests.inc(tags={"route": "/predict"})

What is recorded is checked, and goes nowhere: Skate shows no metrics yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

__all__ = ["Counter", "Gauge", "Histogram", "Metric"]

AnyMetric = TypeVar("AnyMetric", bound="Metric")


class Metric:
    """What all metrics have in common: a name, a description, and the keys of the tags that records have."""

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] | None = None) -> None:
        kind = type(self).__name__
        if not isinstance(name, str) or not name:
            raise ValueError(f"{kind}({name!r}): the name may be a string that is not empty.")
        if tag_keys is not None and not isinstance(tag_keys, tuple):
            raise TypeError(f"{kind}({name!r}, tag_keys={tag_keys!r}): it may be a tuple of strings.")
        for key in tag_keys or ():
            if not isinstance(key, str):
                raise TypeError(f"{kind}({name!r}, tag_keys=…): {key!r} is not a string.")
        self._name = name
        self._description = description
        self._tag_keys = tag_keys or ()
        self._default_tags: dict[str, str] = {}

    def set_default_tags(self: AnyMetric, default_tags: dict[str, str]) -> AnyMetric:
        """Tags of records that say nothing else; returns the metric itself."""
        for key, value in default_tags.items():
            if key not in self._tag_keys:
                raise ValueError(f"{self}: {key!r} is none of its tag_keys, {self._tag_keys}.")
            self._check_tag(key, value)
        self._default_tags = dict(default_tags)
        return self

    @property
    def info(self) -> dict[str, Any]:
        return {
            "name": self._name,
            "description": self._description,
            "tag_keys": self._tag_keys,
            "default_tags": self._default_tags,
        }

    def _check_tag(self, key: str, value: object) -> None:
        if not isinstance(value, str):
            raise TypeError(f"{self}: the tag {key!r} is {value!r}; it may be a string.")

    def _record(self, value: object, tags: dict[str, str] | None) -> None:
        if not isinstance(value, (int, float)):
            raise TypeError(f"{self}: {value!r} is not a number.")
        for key, text in (tags or {}).items():
            self._check_tag(key, text)
        missing = [key for key in self._tag_keys if key not in self._default_tags and key not in (tags or {})]
        if missing:
            raise ValueError(f"{self}: there is no value for the tag key(s) {', '.join(missing)}.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self._arguments(), self._default_tags)

    def _arguments(self) -> tuple[Any, ...]:
        return self._name, self._description, self._tag_keys


class Counter(Metric):
    """A number that only grows."""

    def inc(self, value: float = 1.0, tags: dict[str, str] | None = None) -> None:
        """Add to it."""
        self._record(value, tags)
        if value <= 0:
            raise ValueError(f"{self}.inc({value!r}): it may be a number above 0.")


class Gauge(Metric):
    """A number that goes up and down."""

    def set(self, value: float | None, tags: dict[str, str] | None = None) -> None:
        """Say what it is now; None is passed over."""
        if value is not None:
            self._record(value, tags)


class Histogram(Metric):
    """How often values fell between boundaries."""

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: Sequence[float] | None = None,
        tag_keys: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(name, description, tag_keys)
        if not boundaries or any(boundary <= 0 for boundary in boundaries):
            raise ValueError(
                f"{self}: boundaries={boundaries!r}; it may be a list of numbers above 0, such as [0.1, 1]."
            )
        self.boundaries = list(boundaries)

    def observe(self, value: float, tags: dict[str, str] | None = None) -> None:
        """Add a value."""
        self._record(value, tags)

    @property
    def info(self) -> dict[str, Any]:
        return {**super().info, "boundaries": self.boundaries}

    def _arguments(self) -> tuple[Any, ...]:
        return self._name, self._description, self.boundaries, self._tag_keys


def _again(kind: type[Metric], arguments: tuple[Any, ...], default_tags: dict[str, str]) -> Metric:
    return kind(*arguments).set_default_tags(default_tags)
