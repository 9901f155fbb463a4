"""The settings of a control service, as they are handed to it."""

from __future__ import annotations

import msgspec


class StoreConfig(msgspec.Struct, kw_only=True):
    """Where the state is kept."""

    #: A directory, or the address of Redis servers, which may have passwords in it.
    address: str = ""
    #: Without an address: the directory in which a store named after the port is made.
    parent: str = ""
    #: "full": what is acknowledged survives power loss; "normal": it survives the death of the service.
    durability: str = "full"
    #: Whatever is there is of another cluster, and goes.
    fresh: bool = False
    #: Nothing leads back to it when its cluster is over: it goes, too.
    passing: bool = False
    #: It has to be there: this service goes on with a cluster, and never begins one.
    must_exist: bool = False
    #: Of which cluster it has to be; empty: of any.
    cluster_id: str = ""

    @property
    def is_redis(self) -> bool:
        return self.address.startswith(("redis://", "rediss://"))


class ControlConfig(msgspec.Struct, kw_only=True):
    host: str
    #: 0: any that is free.
    port: int = 0
    token: str
    #: Encrypt all connections.
    tls: bool = False
    #: End when this process does; 0: outlive it.
    parent: int = 0
    #: None: in memory, and the state ends with the service.
    store: StoreConfig | None = None


class Supervised(msgspec.Struct, kw_only=True):
    """A control service that is started again, whenever it has ended, by the daemon of the head."""

    pid: int
    #: With the port that it really has.
    config: ControlConfig
    #: Where it writes; empty: nowhere.
    log: str = ""
    #: The cluster that it goes on with; its node learns that when it joins.
    cluster_id: str = ""
