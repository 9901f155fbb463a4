"""What is said of an option that a task, an actor or a method does not have. Loaded when that happens."""

from __future__ import annotations

import difflib

from skate._options import KINDS, ActorOptions, MethodOptions, TaskOptions, rules_of

#: For an option that is given to the wrong kind, where another one does what is wanted.
INSTEAD: dict[tuple[type, str], str] = {
    (TaskOptions, "max_restarts"): "max_retries says how often a task is run again when its worker dies",
    (TaskOptions, "max_task_retries"): "max_retries says how often a task is run again when its worker dies",
    (ActorOptions, "max_retries"): (
        "max_task_retries says how often a call is run again when the actor dies during it, and max_restarts how "
        "often the actor is started again"
    ),
    (ActorOptions, "max_calls"): "an actor keeps its process as long as it lives; end the actor and make another",
    (MethodOptions, "max_retries"): "max_task_retries says how often a call is run again when the actor dies during it",
    (MethodOptions, "max_calls"): "an actor keeps its process as long as it lives; end the actor and make another",
}


def refusal(options: type, name: str) -> ValueError:
    """The error for an option that is none of this kind's: it belongs elsewhere, or there is none of that name."""
    return misplaced(options, name) or unknown(options, name)


def misplaced(options: type, name: str) -> ValueError | None:
    homes = [kind for other, kind in KINDS.items() if name in rules_of(other)]
    if not homes:
        return None
    # The last of them is the closest: a method's own options to a class, those of its class to a method.
    instead = INSTEAD.get((options, name)) or f"give it where it belongs: {homes[-1].place.format(name)}"
    return ValueError(
        f"{name!r} is not an option of {_one(options)}.\n"
        f"  why:  it is an option of {' and of '.join(f'{home.noun}s' for home in homes)}.\n"
        f"  next: {instead}."
    )


def unknown(options: type, name: str) -> ValueError:
    rules = rules_of(options)
    close = difflib.get_close_matches(name, rules, n=3)
    return ValueError(
        f"{name!r} is not an option of {_one(options)}.\n"
        + (f"  next: did you mean {' or '.join(close)}?\n" if close else "")
        + f"  there are: {', '.join(rules)}."
    )


def _one(options: type) -> str:
    noun = KINDS[options].noun
    return f"an {noun}" if noun == "actor" else f"a {noun}"
