"""The pieces that the texts of errors are composed of (`exceptions.py`).

An error's text is a headline with up to four facts below it: what happened, why, what to do next, and the last lines
that the process printed. This module imports nothing of Skate, so that every part may import it.
"""

from __future__ import annotations

from collections.abc import Mapping

#: What to do next, where several errors say the same.
ASK_FOR_LESS = "ask for less in @remote(...) or .options(...), or give init() more num_cpus, num_gpus or resources."
ASK_ANOTHER_NODE = "ask for what a node has (skate.nodes() lists it), or start a node that has what it asks for."
MORE_WORKERS = (
    "end actors that are not needed (drop their handles, or skate.kill), let one actor do the work of several "
    "(max_concurrency), let fewer tasks wait for tasks, raise that limit and start the node again, or add a node."
)
USE_LESS = "raise that limit, or let this program and others of this user use less; then begin again."


def compose(headline: str, *, what: str = "", why: str = "", next: str = "", log: str = "") -> str:
    """A headline and the lines below it; a line of which nothing is known is left out."""
    lines = [headline]
    for label, text in (("what:", what), ("why: ", why), ("next:", next)):
        if text:
            # Continuation lines are set under the first one, so that a label always starts a new fact.
            lines.append(f"  {label} " + text.strip().replace("\n", "\n        "))
    if log:
        printed = log.split("\n")  # not `splitlines`, which also splits at characters inside a line
        lines.append(f"  log:  the last {count(len(printed), 'line')} that it printed:")
        lines.extend(f"        {line}" for line in printed)
    return "\n".join(lines)


def task(name: str) -> str:
    return f"task {name}" if name else "a task"


def actor(name: str, actor_id: str) -> str:
    return f"actor {name or actor_id}" if name or actor_id else "an actor"


def process(pid: int, node: str) -> str:
    return ("its worker" if not pid else f"worker pid {pid}") + (f" on node {node}" if node else "")


def kind_of(value: object) -> str:
    """What the value is an instance of, with its article: "an int"."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def size(size_bytes: int) -> str:
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def amounts(resources: Mapping[str, float], asked: Mapping[str, float] | None = None) -> str:
    """Resources in words. Given what was asked for, the marks of nodes are left out unless it was one of a node."""
    if asked is not None:
        from skate._core.resources import NODE, without_marks  # only needed when something has already gone wrong

        resources = resources if any(name.startswith(NODE) for name in asked) else without_marks(resources)
    return ", ".join(
        f"{name} {size(int(amount)) if name.endswith('memory') else f'{amount:g}'}"
        for name, amount in resources.items()
    )


def ending(exit_code: int | None, signal_number: int | None) -> str:
    """How a process ended, in words."""
    if signal_number is not None:
        import signal  # Only needed when something has already gone wrong.

        try:
            return f"was ended by signal {signal_number} ({signal.Signals(signal_number).name})"
        except ValueError:
            return f"was ended by signal {signal_number}"
    if exit_code is not None:
        return f"exited with code {exit_code}"
    return "ended, and it is not known how"


def likely_cause(exit_code: int | None, signal_number: int | None) -> str:
    if signal_number == 9:
        return "not known; likely the kernel's out-of-memory killer (see dmesg), or somebody's kill -9."
    if signal_number in (4, 6, 7, 8, 11):
        return "not known; likely a fault in native code: an extension module, or a library it calls."
    if signal_number == 15:
        return "somebody asked the process to end (kill, a job scheduler, a container that stops)."
    if exit_code is not None:
        return "not known; likely a call of os._exit(), or of exit() in native code."
    return ""


def retries(used: int, allowed: int) -> str:
    if allowed == 0:
        return "allow retries with max_retries=3 (it had 0)."
    if used:
        return f"it was retried {count(used, 'time')} and ended each time: run the function by itself to see why."
    return ""


def error_of_ray(name: str) -> type:
    """The class of an error that only Ray raises; `skate.exceptions` finds it by name, when a program asks."""
    if not name.startswith("_"):
        from skate import _ray_exceptions

        if name in _ray_exceptions.NAMES:
            found: type = getattr(_ray_exceptions, name)
            return found
    raise AttributeError(f"module 'skate.exceptions' has no attribute {name!r}")
