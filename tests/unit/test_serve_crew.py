"""What the controller says of replicas that have ended."""

from __future__ import annotations

from skate.exceptions import ActorDiedError
from skate.serve.crew import _told


def test_a_replica_that_died_is_spoken_of_with_its_last_words_and_without_advice_for_actors() -> None:
    error = ActorDiedError(reason="its process, pid 7, exited with code 3.", last_output="no model\nI give up")
    assert _told(error) == (
        "a replica died: its process, pid 7, exited with code 3.\nIt printed last:\nno model\nI give up"
    )
    error.__cause__ = ValueError("no model")
    assert _told(error) == "no model"
