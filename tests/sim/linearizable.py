"""Is there an order of the operations on one key that explains what each of them returned? (Wing and Gong, 1993)

An operation takes effect at one moment between its invocation and its return. One that did not return took effect at
some moment after its invocation, or never.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

Value = str | None


@dataclass
class Operation:
    kind: str  # "read", or as in `redis_member`
    key: str
    arguments: tuple[object, ...]
    invoked_at: float
    returned_at: float = inf
    #: The value that was read, or whether there was a row to delete, or whether a conditional operation was done.
    result: object = None


def step(operation: Operation, value: Value) -> tuple[bool, Value]:
    """Whether the result fits if the key has this value, and the value afterwards."""
    is_unknown = operation.returned_at == inf
    match operation.kind:
        case "read":
            return operation.result == value, value
        case "put":
            return True, str(operation.arguments[0])
        case "delete":
            done = value is not None
            after = None
        case "add":
            done = value is None
            after = str(operation.arguments[0]) if done else value
        case "remove":
            done, after = value is not None, None
        case "cas":
            done = value == operation.arguments[0]
            after = str(operation.arguments[1]) if done else value
        case _:
            done = len(value or "") == operation.arguments[0]
            after = (value or "") + str(operation.arguments[1]) if done else value
    return is_unknown or operation.result == int(done), after


def is_linearizable(operations: list[Operation]) -> bool:
    """Depth first, and no state twice."""
    todo = [op for op in operations if op.kind != "read" or op.returned_at < inf]
    known = sum(1 << i for i, op in enumerate(todo) if op.returned_at < inf)
    seen: set[tuple[int, Value]] = set()
    stack: list[tuple[int, Value]] = [((1 << len(todo)) - 1, None)]
    while stack:
        left, value = stack.pop()
        if not left & known:
            return True
        if (left, value) in seen:
            continue
        seen.add((left, value))
        candidates = [i for i in range(len(todo)) if left >> i & 1]
        first_return = min(todo[i].returned_at for i in candidates)
        for i in reversed(candidates):  # the earliest is tried first: it is mostly right
            if todo[i].invoked_at <= first_return:
                fits, after = step(todo[i], value)
                if fits:
                    stack.append((left & ~(1 << i), after))
    return False
