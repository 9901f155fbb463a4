"""What `train.run` is called with: refused if it cannot be meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skate.train.reduce import checked_reduce
from skate.train.sizing import checked_workers


@dataclass(frozen=True)
class Options:
    """How a training is run."""

    least: int
    most: int
    failures: int | None
    resources: dict[str, float]
    keep: int | None
    #: A metric, and whether the largest or the smallest value of it is the best.
    best: tuple[str, str] | None
    stall_after: float | None
    reduce: Mapping[str, str] | str | None
    callbacks: tuple[Callable[..., Any], ...]


def checked_options(
    fit: Any,
    *,
    workers: Any,
    failures: Any,
    resources: Any,
    keep: Any,
    best: Any,
    stall_after: Any,
    reduce: Any,
    callbacks: Sequence[Any],
) -> Options:
    """The options of a training. Raises ValueError or TypeError for what cannot be meant."""
    if not callable(fit):
        raise TypeError(f"train.run(fit={fit!r}): it takes a function, which every worker calls.")
    if inspect.iscoroutinefunction(fit) or inspect.isgeneratorfunction(fit) or inspect.isasyncgenfunction(fit):
        raise TypeError(
            f"train.run({fit!r}): calling a coroutine or a generator function runs none of it.\n"
            "  next: pass a function that calls asyncio.run(…), or that goes through the generator."
        )
    least, most = checked_workers(workers)
    for name, value, lowest in (("failures", failures, 0), ("keep", keep, 1)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ValueError(f"train.run({name}={value!r}): it may be a whole number from {lowest} on, or None.")
    if stall_after is not None and not (_is_number(stall_after) and stall_after > 0):
        raise ValueError(f"train.run(stall_after={stall_after!r}): it may be a number of seconds, or None.")
    if not isinstance(callbacks, Sequence) or not all(callable(callback) for callback in callbacks):
        raise TypeError(f"train.run(callbacks={callbacks!r}): it may be a list of functions of the result and a row.")
    return Options(
        least=least,
        most=most,
        failures=failures,
        resources=_checked_resources(resources),
        keep=keep,
        best=_checked_best(best),
        stall_after=stall_after,
        reduce=checked_reduce(reduce),
        callbacks=tuple(callbacks),
    )


def _checked_best(best: Any) -> tuple[str, str] | None:
    if best is None:
        return None
    if not (isinstance(best, tuple) and len(best) == 2 and isinstance(best[0], str) and best[1] in ("max", "min")):
        raise ValueError(
            f"train.run(best={best!r}): it may be the name of a metric with 'max' or 'min', like ('loss', 'min')."
        )
    return best


def _checked_resources(resources: Any) -> dict[str, float]:
    if resources is None:
        return {"CPU": 1}
    is_mapping = isinstance(resources, Mapping) and all(
        isinstance(kind, str) and _is_number(amount) and amount >= 0 for kind, amount in resources.items()
    )
    if not is_mapping or not any(resources.values()):
        raise ValueError(f"train.run(resources_per_worker={resources!r}): it may be a dict like {{'CPU': 1}}.")
    return {kind: amount for kind, amount in resources.items() if amount}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def takes_config(fit: Callable[..., Any], config: Any) -> bool:
    """Whether the training function is called with the config. Raises TypeError if it would not see one."""
    try:
        signature = inspect.signature(fit)
    except ValueError:  # a builtin has none
        return config is not None
    needs_none, takes_one = can_bind(signature), can_bind(signature, config)
    if takes_one and (config is not None or not needs_none):
        return True
    if needs_none and config is None:
        return False
    raise TypeError(
        f"train.run({fit!r}, config): the function takes no argument, so it would not see the config."
        if needs_none
        else f"train.run({fit!r}): a training function is called with the config alone, or with nothing, and this one "
        f"has the parameters {signature}."
    )


def can_bind(signature: inspect.Signature, *arguments: Any) -> bool:
    """Whether a function of that signature can be called with these arguments."""
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
