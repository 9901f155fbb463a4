"""Who has a copy of an object, and from whom the next one gets its own.

    the first node ──▶ b ──▶ d            each has at most FANOUT others that it serves at a time;
                   │     └─▶ e            who is still receiving serves on what it has: a broadcast is
                   └─▶ c ──▶ f            a tree through which chunks flow, and not N copies from one place

Whoever pulls is given one source. If that dies, or has dropped the object, it asks again and goes on where it was. It
is never sent to one that depends on itself, so every chain of sources ends at a whole copy.

An object ends when its owner frees it, or dies. The node where it was made tells of both; but that node may be dead by
then, and its copies elsewhere would stay for ever. So the owner is known here, too.

Owns:      for each object the nodes that have it or receive it, who serves whom, and whose it is.
Knows not: bytes, chunks, sockets. Who pulls how much at a time is decided where the bytes arrive.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from skate._core.ids import node_of

#: Nodes that one node serves the same object to at a time.
FANOUT = 2


class Copy(msgspec.Struct):
    #: All of it is there; otherwise it is on its way.
    is_whole: bool
    #: From whom it comes, while it does.
    source: bytes = b""
    #: Who gets it from here.
    served: set[bytes] = msgspec.field(default_factory=set)


class Locations:
    def __init__(self) -> None:
        self._copies: dict[bytes, dict[bytes, Copy]] = {}
        #: The processes that own them, once they are known: of objects in `_copies` only.
        self._owners: dict[bytes, bytes] = {}

    def stored(self, object: bytes, node: bytes) -> None:
        """All of it is on that node: it was made there, or has arrived."""
        copies = self._copies.setdefault(object, {})
        copy = copies.get(node)
        if copy is None:
            copies[node] = Copy(True)
        else:
            self._let_go(copies, node, copy)
            copy.is_whole = True

    def is_known(self, object: bytes) -> bool:
        return object in self._copies

    def has_all(self, object: bytes, node: bytes) -> bool:
        copy = self._copies.get(object, {}).get(node)
        return copy is not None and copy.is_whole

    def owned(self, object: bytes, owner: bytes, maker: bytes) -> None:
        """That process owns it: the node where it was made says so, and has all of it.

        This can be the first that is heard of the object, because a node that pulls does not always wait for an answer
        before it asks the maker. So it counts as a copy. Otherwise the owner of the copies that are heard of later
        would stay unknown if the maker dies now.
        """
        if not self.has_all(object, maker):
            self.stored(object, maker)
        self._owners[object] = owner

    def owned_by(self, owner: bytes) -> list[bytes]:
        """What goes with that process."""
        return [object for object, other in self._owners.items() if other == owner]

    def owners(self) -> dict[bytes, bytes]:
        """By object, where the owner is known."""
        return dict(self._owners)

    def objects(self) -> list[bytes]:
        return list(self._copies)

    def owned_at(self, node: bytes) -> list[bytes]:
        """What goes with all processes of that node."""
        return [object for object, owner in self._owners.items() if node_of(owner) == node_of(node)]

    def owners_at(self, node: bytes) -> list[bytes]:
        """Who owns something of which that node has a copy."""
        return sorted({owner for object, owner in self._owners.items() if node in self._copies[object]})

    def source_for(self, object: bytes, node: bytes, beyond: Collection[bytes] = ()) -> bytes | None:
        """From whom that node should get it; None if no node has it. Asked again: another source than before, if any.

        `beyond`: nodes that it cannot reach now. One of them is the answer only if there is no other source.
        """
        copies = self._copies.get(object, {})
        copy = copies.get(node)
        if copy is not None and copy.is_whole:
            return node
        before = copy.source if copy is not None else b""
        if copy is not None:
            self._let_go(copies, node, copy)
        behind = self._behind(copies, node)
        able = [(id, other) for id, other in copies.items() if id not in behind and self._leads_to_whole(copies, id)]
        if not able:
            return None
        source, serving = min(
            able,
            key=lambda pair: (
                pair[0] in beyond,
                pair[0] == before,
                len(pair[1].served) >= FANOUT,
                self._depth(copies, pair[0]) if len(pair[1].served) < FANOUT else len(pair[1].served),
                len(pair[1].served),
                pair[0],
            ),
        )
        serving.served.add(node)
        if copy is None:
            copies[node] = Copy(False, source)
        else:
            copy.source = source
        return source

    def dropped(self, object: bytes, node: bytes) -> list[bytes]:
        """The node has it no more, or gave up getting it. Who has to ask for another source?"""
        copies = self._copies.get(object, {})
        copy = copies.pop(node, None)
        if copy is None:
            return []
        self._let_go(copies, node, copy)
        for child in copy.served:
            copies[child].source = b""
        if not copies:
            del self._copies[object]
            self._owners.pop(object, None)
        return sorted(copy.served)

    def node_died(self, node: bytes) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Which nodes need another source for which objects; and objects of which it had the last whole copy."""
        orphans: list[tuple[bytes, bytes]] = []
        lost: list[bytes] = []
        for object, was_whole in [
            (object, copies[node].is_whole) for object, copies in self._copies.items() if node in copies
        ]:
            orphans += [(object, child) for child in self.dropped(object, node)]
            if was_whole and not any(copy.is_whole for copy in self._copies.get(object, {}).values()):
                lost.append(object)
        return orphans, lost

    def freed(self, object: bytes) -> list[bytes]:
        """Nobody refers to it any more; the nodes that have something of it."""
        self._owners.pop(object, None)
        return sorted(self._copies.pop(object, {}))

    def holders(self, object: bytes) -> list[bytes]:
        """Nodes that have all of it."""
        return sorted(node for node, copy in self._copies.get(object, {}).items() if copy.is_whole)

    # -- within --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _let_go(copies: dict[bytes, Copy], node: bytes, copy: Copy) -> None:
        if copy.source in copies:
            copies[copy.source].served.discard(node)
        copy.source = b""

    @staticmethod
    def _behind(copies: dict[bytes, Copy], node: bytes) -> set[bytes]:
        """That node and all that depend on it."""
        found = {node}
        ahead = [node]
        while ahead:
            copy = copies.get(ahead.pop())
            new = copy.served - found if copy is not None else set()
            found |= new
            ahead += new
        return found

    @staticmethod
    def _leads_to_whole(copies: dict[bytes, Copy], node: bytes) -> bool:
        while not copies[node].is_whole:
            node = copies[node].source
            if not node:
                return False
        return True

    @staticmethod
    def _depth(copies: dict[bytes, Copy], node: bytes) -> int:
        depth = 0
        while not copies[node].is_whole:
            node = copies[node].source
            depth += 1
        return depth

    def validate(self) -> None:
        assert self._owners.keys() <= self._copies.keys()
        for copies in self._copies.values():
            for node, copy in copies.items():
                for child in copy.served:
                    assert copies[child].source == node
                if copy.source:
                    assert not copy.is_whole
                    assert node in copies[copy.source].served
                assert len(self._behind(copies, node) - {node}) <= len(copies) - 1
                if copy.source:
                    assert copy.source not in self._behind(copies, node), "two that wait for each other"
