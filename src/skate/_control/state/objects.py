"""Where copies of objects are. Nothing of it is stored: nodes say again what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skate._core.ids import node_at, node_of
from skate._core.locations import Locations
from skate._wire import cluster

if TYPE_CHECKING:
    from skate._control.state.control import Control


class Objects:
    def __init__(self, control: Control) -> None:
        self._control = control
        self._nodes = control.nodes
        self.locations = Locations()
        #: Objects whose makers were asked for their owners since the service was started again, until all is settled.
        self._asked: set[bytes] = set()
        #: The same of makers that have not come back, and are asked when they do.
        self._to_ask: dict[bytes, bytes] = {}

    def on_locate(self, link: int, message: cluster.Locate) -> None:
        asker = self._nodes.by_link[link]
        maker = self._nodes.by_number.get(node_at(message.place))
        if maker is not None and not self.locations.has_all(message.object, maker):
            self.locations.stored(message.object, maker)
            if maker in self._nodes.links:
                self._ask_for_owner(message.object, maker)
            else:
                self._to_ask[message.object] = maker
        if self.locations.has_all(message.object, asker):  # it would not ask
            self.locations.dropped(message.object, asker)
        source = self.locations.source_for(message.object, asker, self._nodes.cuts.of(asker))
        located = cluster.Located(message.object, node_of(source) if source is not None else 0)
        self._control.say(link, located, at_once=True)

    def _ask_for_owner(self, object: bytes, maker: bytes) -> None:
        if self._control.recovery.is_under_way:
            self._asked.add(object)
        self._control.send_to_node(maker, cluster.Tracked(object))

    def node_came_back(self, node: bytes) -> None:
        for object in [object for object, maker in self._to_ask.items() if maker == node]:
            del self._to_ask[object]
            self._ask_for_owner(object, node)

    def on_copy_stored(self, link: int, message: cluster.CopyStored) -> None:
        if self.locations.is_known(message.object):
            self.locations.stored(message.object, self._nodes.by_link[link])
        elif not self._control.recovery.is_under_way:  # it was freed meanwhile
            self._control.say(link, cluster.DropCopies([message.object]))

    def on_copy_dropped(self, link: int, message: cluster.CopyDropped) -> None:
        self.locations.dropped(message.object, self._nodes.by_link[link])

    def on_owned(self, link: int, message: cluster.Owned) -> None:
        self.locations.owned(message.object, message.owner, self._nodes.by_link[link])
        if node_of(message.owner) not in self._nodes.by_number:
            self.drop([message.object])

    def on_freed(self, link: int, message: cluster.Freed) -> None:
        self.drop(message.objects)

    def process_died(self, process_id: bytes) -> None:
        self.drop(self.locations.owned_by(process_id))

    def node_died(self, node: bytes) -> None:
        """What its processes owned goes. What was made there for others stays, if there are copies."""
        self.drop(self.locations.owned_at(node))
        # The dead node would have told of the ends of these owners. Now they are asked after (Introduce).
        for owner in self.locations.owners_at(node):
            if not self._control.lives(owner):
                self.drop(self.locations.owned_by(owner))
        self.locations.node_died(node)

    def drop(self, objects: list[bytes]) -> None:
        """Wherever there is something of them."""
        drops: dict[bytes, list[bytes]] = {}
        for object in objects:
            self._asked.discard(object)
            self._to_ask.pop(object, None)
            for node in self.locations.freed(object):
                drops.setdefault(node, []).append(object)
        for node, dropped in drops.items():
            self._control.send_to_node(node, cluster.DropCopies(dropped))

    def drop_of_strangers(self) -> None:
        """All nodes have said what they have: what belongs to a process whose node is gone goes, and what belongs to no
        process that was named, because the node that made it is gone, too. Of processes that have not had to do with
        the control state their nodes are asked."""
        owned = self.locations.owners()
        dead = {owner for owner in sorted(set(owned.values())) if not self._control.lives(owner)}
        self.drop([object for object, owner in owned.items() if owner in dead])
        asked, self._asked = self._asked, set()
        self._to_ask.clear()
        self.drop([object for object in self.locations.objects() if object not in owned and object not in asked])
