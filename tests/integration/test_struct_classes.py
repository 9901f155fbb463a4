"""Classes of msgspec, and dataclasses, that a program defines itself arrive whole in its workers."""

from __future__ import annotations

from programs import run_program

PROGRAM = """
from __future__ import annotations
import dataclasses
import json
from typing import ClassVar, Generic, Optional, TypeVar
import msgspec
import skate

T = TypeVar("T")

class Order(msgspec.Struct):
    item: str
    count: int = 1
    tags: list[str] = []
    more: dict[str, int] = msgspec.field(default_factory=dict)
    kinds: ClassVar[int] = 3

    def total(self) -> int:
        return self.count * len(self.item)

class Rush(Order, frozen=False, kw_only=True, rename="camel", forbid_unknown_fields=True):
    "An order in a hurry."
    until_day: int
    paid: bool = False

    def __post_init__(self) -> None:
        if self.until_day < 0:
            raise ValueError("it is over")

    @classmethod
    def today(cls) -> Rush:
        return cls("tea", until_day=0)

class Node(msgspec.Struct, frozen=True, tag="node", omit_defaults=True):
    value: int
    next: Optional[Node] = None

class Leaf(msgspec.Struct, tag="leaf"):
    name: str

class Box(msgspec.Struct, Generic[T]):
    inside: T

@dataclasses.dataclass
class Place:
    city: str
    streets: list[str] = dataclasses.field(default_factory=list)

@skate.remote
def look(order, rush, node):
    assert type(order) is Order and type(rush) is Rush and isinstance(rush, Order)
    found = [order.total(), order.tags, order.more, rush.total(), rush.until_day]
    found += [Rush.today().paid, Order.kinds, Rush.__doc__]
    decoded = msgspec.json.decode(b'{"item":"x","untilDay":2}', type=Rush)
    found.append([decoded.until_day, decoded.count, msgspec.json.encode(decoded).decode()])
    for wrong in (
        b'{"item":"x"}',
        b'{"item":"x","untilDay":-1}',
        b'{"item":"x","untilDay":1,"a":1}',
        b'{"item":1,"untilDay":1}',
    ):
        try:
            msgspec.json.decode(wrong, type=Rush)
        except msgspec.ValidationError as error:
            found.append(str(error))
    found.append(msgspec.json.decode(msgspec.json.encode(node), type=Node | Leaf) == node)
    found.append(msgspec.json.decode(b'{"type":"leaf","name":"a"}', type=Leaf).name)
    found.append(msgspec.json.decode(b'{"inside":[1]}', type=Box[list[int]]).inside)
    assert dataclasses.fields(Place)[0].default is dataclasses.MISSING
    found.append(msgspec.json.decode(b'{"city":"Ulm"}', type=Place).streets)
    try:
        msgspec.json.decode(b'{}', type=Place)
    except msgspec.ValidationError as error:
        found.append(str(error))
    return found, rush

order, rush, node = Order("tea", 2), Rush("milk", until_day=1), Node(1, Node(2))
skate.init(num_cpus=1)
found, back = skate.get(look.remote(order, rush, node))
assert type(back) is Rush and back == rush
again, _ = skate.get(look.remote(order, rush, node))
assert again == found
print(json.dumps(found))
"""


def test_a_class_of_the_program_itself_keeps_fields_types_settings_and_methods() -> None:
    import json

    printed, errors = run_program(PROGRAM)
    assert errors == ""
    assert json.loads(printed) == [
        6,
        [],
        {},
        4,
        1,
        False,
        3,
        "An order in a hurry.",
        [2, 1, '{"item":"x","count":1,"tags":[],"more":{},"untilDay":2,"paid":false}'],
        "Object missing required field `untilDay`",
        "it is over",
        "Object contains unknown field `a`",
        "Expected `str`, got `int` - at `$.item`",
        True,
        "a",
        [1],
        [],
        "Object missing required field `city`",
    ]
