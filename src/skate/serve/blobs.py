"""Bytes of any size in `skate.kv`, whose values have at most a megabyte: in pieces, under the digest of the whole."""

from __future__ import annotations

import msgspec

import skate
from skate.serve.records import NAMESPACE

__all__ = ["digests", "forget", "keep", "keep_only", "load"]

PIECE_BYTES = 1 << 20
#: How keys begin.
HEAD, PIECE = "blob/", "piece/"


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
    skate.kv.delete(_head(digest), namespace=NAMESPACE)
    for key in skate.kv.keys(f"{PIECE}{digest}/", namespace=NAMESPACE):
        skate.kv.delete(key, namespace=NAMESPACE)


def keep_only(needed: set[str]) -> None:
    """Remove all other blobs."""
    for digest in digests() - needed:
        forget(digest)


def digests() -> set[str]:
    """All blobs, also those of which there is only a part: who wrote or removed them may have been killed."""
    heads = skate.kv.keys(HEAD, namespace=NAMESPACE)
    pieces = skate.kv.keys(PIECE, namespace=NAMESPACE)
    return {key.decode().split("/")[1] for key in [*heads, *pieces]}


def _head(digest: str) -> str:
    return f"{HEAD}{digest}"


def _piece(digest: str, index: int) -> str:
    return f"{PIECE}{digest}/{index:04}"
