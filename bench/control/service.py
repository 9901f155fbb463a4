"""The control service as the product starts it, with one difference: its store may be on Redis servers.

`skate._control.main` opens SQLite. The address of servers is given to `open_storage` here, which is the product's too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skate._control import opening
from skate._control.main import main
from skate._control.storage.opening import open_storage
from skate._control.storage.redis.connection.address import is_redis

if TYPE_CHECKING:
    from skate._control.config import StoreConfig
    from skate._control.storage.interface import Storage

_of_the_product = opening.open_store


def open_store(config: StoreConfig, port: int) -> Storage:
    """`parent` is where the authority of a chain has its file."""
    if is_redis(config.address):
        return open_storage(config.address, directory=config.parent)
    return _of_the_product(config, port)


if __name__ == "__main__":
    opening.open_store = open_store
    main()
