"""Corners of Ray's API, as programs written for it use them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import skate

pytestmark = pytest.mark.usefixtures("runtime")


class Connection:
    """Cannot be pickled, because of its lock."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lock = threading.Lock()


# --- serialisers of users ---------------------------------------------------------------------------------------------


@skate.remote
def address_of(connection: Any) -> str:
    return str(connection.address)


def test_a_registered_serializer_serves_put_and_arguments() -> None:
    with pytest.raises(skate.exceptions.SerializationError):
        skate.put(Connection("a"))
    skate.util.register_serializer(Connection, serializer=lambda it: it.address, deserializer=Connection)
    try:
        assert skate.get(skate.put(Connection("a"))).address == "a"
        assert skate.get(address_of.remote(Connection("b"))) == "b", "a reader needs no registration"
    finally:
        skate.util.deregister_serializer(Connection)
    with pytest.raises(skate.exceptions.SerializationError):
        skate.put(Connection("a"))
