"""Who leads the cluster, and which servers keep its state.

One record, changed only by compare-and-set. Where it lies is the business of the authority: a file of the head node,
or a register among a majority of voters (`register.py`).

    Configuration(epoch=7, leader=A, shards=[ShardChain(epoch=7, members=(r1, r2)), ShardChain(epoch=5, …)])

`Configuration.epoch` rises by one with every change. A chain carries the epoch of the last change that concerned it:
a change of another chain, by the same leader, does not disturb it. A take-over concerns all chains.

Invariant: (1) of the proof. An epoch has one leader, because a compare-and-set names the whole record that it replaces.
           Each life of a control service uses a leader id of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NewType

import msgspec

MemberID = NewType("MemberID", str)
LeaderID = NewType("LeaderID", str)
VoterID = NewType("VoterID", str)


class ShardChain(msgspec.Struct, frozen=True):
    """One chain, from head to tail."""

    epoch: int
    members: tuple[MemberID, ...]


class Configuration(msgspec.Struct, frozen=True):
    #: Names the cluster for ever. A server that holds another name belongs to someone else.
    cluster: str
    epoch: int
    leader: LeaderID
    #: Where the leader can be reached.
    address: str
    shards: tuple[ShardChain, ...]
    #: The voters and the admission token of each; empty if the authority is a file.
    voters: tuple[tuple[VoterID, str], ...] = ()
    #: The shard of each slot, one byte a slot. Empty: all are those of the first shard.
    slots: bytes = b""

    def taken_over(self, leader: LeaderID, address: str) -> Configuration:
        epoch = self.epoch + 1
        shards = tuple(ShardChain(epoch, shard.members) for shard in self.shards)
        return msgspec.structs.replace(self, epoch=epoch, leader=leader, address=address, shards=shards)

    def with_members(self, shard: int, members: tuple[MemberID, ...]) -> Configuration:
        epoch = self.epoch + 1
        shards = (*self.shards[:shard], ShardChain(epoch, members), *self.shards[shard + 1 :])
        return msgspec.structs.replace(self, epoch=epoch, shards=shards)

    def with_voter(self, voter: VoterID, token: str) -> Configuration:
        """The voter lost its memory and is admitted again, under another token."""
        voters = tuple((name, token if name == voter else old) for name, old in self.voters)
        return msgspec.structs.replace(self, epoch=self.epoch + 1, voters=voters)


class Changed(msgspec.Struct, frozen=True):
    configuration: Configuration


class Refused(msgspec.Struct, frozen=True):
    """The record was not the expected one. `configuration` is the present record."""

    configuration: Configuration


def compare_and_set(current: Configuration, expected: Configuration, new: Configuration) -> Changed | Refused:
    """The whole decision of an authority that is a file.

    `current == new` happens when the answer to an earlier attempt was lost; the change was made.
    """
    assert new.epoch == expected.epoch + 1, (expected, new)
    if current in (expected, new):
        return Changed(new)
    return Refused(current)


class Stamp(msgspec.Struct, frozen=True):
    """What a seal leaves on a server: the chain that the server belonged to."""

    cluster: str
    epoch: int
    members: tuple[MemberID, ...]


class AdoptionRefused(Exception):
    """A store cannot be adopted without its authority: servers are missing, or belong to different clusters."""


def adopt(stamps: Mapping[MemberID, Stamp | None]) -> Stamp:
    """The chain to go on with after the file of the authority was lost.

    Several configurations may be found, because removed servers keep the one that they were sealed with last. The
    newest counts, and *all* its members must have answered: one that is missing might hold a stamp that is newer still.
    """
    found = {member: stamp for member, stamp in stamps.items() if stamp is not None}
    if not found:
        raise AdoptionRefused(f"none of {listed(stamps)} holds the data of a cluster.")
    clusters = {stamp.cluster for stamp in found.values()}
    if len(clusters) > 1:
        raise AdoptionRefused(f"the servers hold the data of {len(clusters)} clusters: {listed(clusters)}.")
    newest = max(found.values(), key=lambda stamp: stamp.epoch)
    if missing := [member for member in newest.members if member not in found]:
        raise AdoptionRefused(f"the newest configuration also has {listed(missing)}, which did not answer with data.")
    return newest


def listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
