"""What a call with `num_returns` returns is known only while the program runs, so checkers take it for anything."""

from __future__ import annotations

import skate


@skate.remote(num_returns=2)
def divide(a: int, b: int) -> tuple[int, int]:
    return divmod(a, b)


@skate.remote
def spell(number: int) -> str:
    return str(number)


reveal_type(divide.remote(7, 2))  # reveals: Any
quotient, remainder = divide.remote(7, 2)
reveal_type(divide.options(num_returns=1).remote(7, 2))  # reveals: Any
reveal_type(spell.options(num_returns=0).remote(1))  # reveals: Any
reveal_type(spell.options(num_returns=None).remote(1))  # reveals: ObjectRef[str]
divide.remote("a", 2)  # error: "remote" of "RemoteFunction"
spell.options(num_returns=0).remote("a")  # error: "remote" of "RemoteFunction"
