"""Bytes of any size in `skate.kv`, whose values have at most a megabyte: in pieces, under the digest of the whole."""

from __future__ import annotations

import msgspec

import skate
from skate.serve.records import NAMESPACE

__all__ = ["digests", "forget", "keep", "load"]

PIECE_BYTES = 1 << 20


class Head(msgspec.Struct):
    """How many pieces there are. It is written when all of them are."""

    pieces: int
    size: int


def keep(digest: str, data: bytes) -> None:
    """Write a blob, unless it is there."""
    if skate.kv.get(_head(digest), namespace=NAMESPACE) is not None:
        return
    pieces = -(-len(data) // PIECE_BYTES)
    for index in range(pieces):
        piece = data[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
        skate.kv.put(_piece(digest, index), bytes(piece), namespace=NAMESPACE)
    skate.kv.put(_head(digest), msgspec.msgpack.encode(Head(pieces, len(data))), namespace=NAMESPACE)


def load(digest: str) -> bytes:
    """The bytes of a blob. Raises KeyError if it is not there, or not whole."""
    head = skate.kv.get(_head(digest), namespace=NAMESPACE)
    if head is None:
        raise KeyError(digest)
    found = msgspec.msgpack.decode(head, type=Head)
    pieces = [skate.kv.get(_piece(digest, index), namespace=NAMESPACE) for index in range(found.pieces)]
    data = b"".join(piece for piece in pieces if piece is not None)
    if len(data) != found.size:
        raise KeyError(digest)
    return data


def forget(digest: str) -> None:
    """Remove a blob: first what says that it is whole."""
    head = skate.kv.get(_head(digest), namespace=NAMESPACE)
    skate.kv.delete(_head(digest), namespace=NAMESPACE)
    pieces = 0 if head is None else msgspec.msgpack.decode(head, type=Head).pieces
    for index in range(pieces):
        skate.kv.delete(_piece(digest, index), namespace=NAMESPACE)


def digests() -> list[str]:
    """All blobs that are whole."""
    return [key.decode().partition("/")[2] for key in skate.kv.keys("blob/", namespace=NAMESPACE)]


def _head(digest: str) -> str:
    return f"blob/{digest}"


def _piece(digest: str, index: int) -> str:
    return f"piece/{digest}/{index:04}"
