"""What the control service has acknowledged is there when it starts again, and it acknowledges nothing before that."""

from __future__ import annotations

from pathlib import Path

from test_ledger import Held

from control_town import Process, Town
from skate._control.storage.sqlite import SqliteStorage


def test_an_answer_waits_until_what_it_says_is_durable() -> None:
    storage = Held()
    storage.let = 1000
    town = Town(storage)
    first, second = Process(town), Process(town)
    storage.let = storage.reported
    request = first.key_value("put", b"k", b"v")
    reading = second.key_value("get", b"k")
    town.settle()
    assert (first.answers(), second.answers()) == ({}, {}), "a crash could take back what the second has seen"
    storage.let += 1
    town.service.ledger.collect()
    assert first.answer(request) is True
    assert second.answer(reading) == b"v"
    town.close()
    storage.close()


def test_keys_and_values_are_there_when_it_starts_again(tmp_path: Path) -> None:
    for start in range(3):
        storage = SqliteStorage(tmp_path)
        town = Town(storage)
        process = Process(town)
        for number in range(start):
            assert process.answer(process.key_value("get", str(number).encode())) == b"v"
        assert process.answer(process.key_value("get", b"deleted")) is None
        for key in (str(start).encode(), b"deleted"):
            assert process.answer(process.key_value("put", key, b"v", overwrite=False)) is True
        assert process.answer(process.key_value("put", b"0", b"other", overwrite=False)) is False
        assert process.answer(process.key_value("delete", b"deleted")) is True
        town.close()
        storage.close()
