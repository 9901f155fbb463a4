"""Ids as objects: what can be done with one, and which are equal."""

from __future__ import annotations

import copy
import pickle

import pytest

import skate
from skate import ids
from skate._core.ids import new_job_id, new_node_id, new_process_id, pack_id

KINDS = [
    ids.ActorClassID,
    ids.ActorID,
    ids.ClusterID,
    ids.FunctionID,
    ids.JobID,
    ids.NodeID,
    ids.PlacementGroupID,
    ids.TaskID,
    ids.UniqueID,
    ids.WorkerID,
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_can_be_written_read_copied_and_pickled(kind: type[ids.BaseID]) -> None:
    id = kind.from_random()
    assert len(id.binary()) == kind.size()
    assert id == kind(id.binary()) == kind.from_binary(id.binary()) == kind.from_hex(id.hex())
    assert id == pickle.loads(pickle.dumps(id)) == copy.deepcopy(id)
    assert type(pickle.loads(pickle.dumps(id))) is kind
    assert hash(id) == hash(kind.from_hex(id.hex()))
    assert repr(id) == str(id) == f"{kind.__name__}({id.hex()})"
    assert id != kind.from_random()
    assert not id.is_nil()
    assert getattr(skate, kind.__name__) is kind


@pytest.mark.parametrize("kind", KINDS)
def test_nil_is_one_id_of_each_kind(kind: type[ids.BaseID]) -> None:
    assert kind.nil().is_nil()
    assert kind.nil() == kind.nil()
    assert all(kind.nil() != other.nil() for other in KINDS if other is not kind)


def test_ids_of_two_kinds_differ_even_if_they_have_the_same_bytes() -> None:
    node, function = ids.NodeID(bytes(16)), ids.FunctionID(bytes(16))
    assert node != function
    assert len({node, function}) == 2
    assert issubclass(ids.NodeID, ids.UniqueID)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_id_is_refused(kind: type[ids.BaseID]) -> None:
    with pytest.raises(ValueError, match=f"it must have {kind.size()} bytes, and has 1"):
        kind(b"x")
    with pytest.raises(TypeError, match="made of bytes"):
        kind("ab" * kind.size())  # type: ignore[arg-type]
    for digits in ("zz", "ab", "zz" * kind.size()):
        with pytest.raises(ValueError, match=f"{2 * kind.size()} hexadecimal digits"):
            kind.from_hex(digits)
    with pytest.raises(TypeError, match="takes a string"):
        kind.from_hex(7)  # type: ignore[arg-type]


def test_what_skate_makes_has_the_size_of_these_classes() -> None:
    assert len(ids.NodeID(new_node_id())) == 16
    assert len(ids.WorkerID(new_process_id())) == 12
    assert len(ids.JobID(new_job_id())) == 4


def test_a_job_id_is_a_number_in_little_endian_order() -> None:
    assert ids.JobID.from_int(1).hex() == "01000000"
    assert ids.JobID.from_int(77).int() == 77


def test_a_reference_is_the_id_of_its_object() -> None:
    assert skate.ObjectID is skate.ids.ObjectID is skate.ObjectRef
    id = pack_id(bytes(12), 7, bytes(4))
    ref = skate.ObjectRef.from_hex(id.hex())
    assert ref == skate.ObjectRef.from_binary(id)
    assert (ref.binary(), ref.size(), ref.is_nil()) == (id, len(id), False)
    assert ref.task_id() == ids.TaskID(id[:16])
    assert isinstance(ref.task_id(), ids.TaskID)
    assert skate.ObjectRef.from_random() != skate.ObjectRef.from_random()
    for wrong in ("zz", "ab"):
        with pytest.raises(ValueError, match="ObjectRef"):
            skate.ObjectRef.from_hex(wrong)


def test_the_nil_reference_is_equal_to_itself_alone() -> None:
    nil = skate.ObjectRef.nil()
    assert nil.is_nil()
    assert repr(nil) == "ObjectRef(nil)"
    assert nil == skate.ObjectRef.nil() == skate.ObjectRef.from_hex(nil.hex())
    assert nil != skate.ObjectRef.from_random()
    assert not skate.is_initialized(), "an id alone starts nothing"


def test_the_job_of_a_reference_starts_nothing() -> None:
    assert skate.ObjectRef.nil().job_id().is_nil()
    assert skate.ObjectRef.from_random().job_id().is_nil()
    assert not skate.is_initialized()
