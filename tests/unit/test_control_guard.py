"""The control service outlives what its peers say wrongly, and its own mistakes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_messages import values_of

from control_town import Town
from skate._control.state import control
from skate._control.state.control import FROM_VISITORS, HANDLERS
from skate._core.task import Job
from skate._node.daemon import TO_CONTROL
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.channel import HEADER, ChannelClosed
from skate._wire.guard import DEFECTS_VARIABLE, ProtocolError


@pytest.fixture
def town() -> Iterator[Town]:
    made = Town()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def made_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEFECTS_VARIABLE, raising=False)


def errors_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == logging.ERROR]


BEFORE_JOIN = sorted((kind for kind in HANDLERS if kind not in FROM_VISITORS), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", BEFORE_JOIN, ids=lambda kind: kind.__name__)
def test_what_only_a_node_may_say_cuts_the_link_of_another(town: Town, kind: type[Any]) -> None:
    stranger, node = town.peer(), town.peer()
    node.join()
    message = next(iter(_examples(kind)))
    stranger.say(message)
    assert stranger.is_cut
    assert [each["number"] for each in node.ask()] == [1], "the others are served"


def _examples(kind: type[Any]) -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=1, database=None, suppress_health_check=list(HealthCheck))
    @given(values_of(kind))
    def draw(message: Any) -> None:
        found.append(message)

    draw()
    return found


OF_PROCESSES = sorted({*TO_CONTROL, wire.Query, wire.PeerGone}, key=lambda kind: kind.__name__)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_nothing_that_a_node_says_ends_the_service_or_is_a_mistake_of_ours(data: st.DataObject) -> None:
    """Ids that are not known, numbers that cannot be: it is left alone, answered, or the end of that node's link."""
    town = Town()
    defects: list[str] = []

    def note(error: Exception, doing: str) -> None:
        if isinstance(error, ProtocolError | ChannelClosed):
            raise error
        defects.append(f"{doing}: {error!r}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skate._wire.link.survive", note)
        patch.setattr("skate._control.host.survive", note)
        patch.setattr("skate._wire.loop.survive", note)
        try:
            observer, node = town.peer(), town.peer()
            node_id = node.join()
            kinds = [kind for kind in HANDLERS if kind is not cluster.End]
            for _ in range(4):
                if node.is_cut:
                    node = town.peer()
                    node_id = node.join()
                if data.draw(st.booleans()):
                    node.say(data.draw(values_of(data.draw(st.sampled_from(kinds)))))
                else:
                    id = data.draw(st.sampled_from([node_id, b"", bytes(16)]))
                    node.say(cluster.Acquaint(id, 1, data.draw(values_of(Job))))
                    inner = data.draw(values_of(data.draw(st.sampled_from(OF_PROCESSES))))
                    node.say(cluster.FromProcess(id, inner))
                assert isinstance(observer.ask(), list)
            assert not defects
            assert not town.ends
        finally:
            town.close()


def test_a_mistake_of_ours_is_logged_with_its_story_and_the_link_goes_on(
    town: Town, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("an entry that should be there")

    node = town.peer()
    node.join()
    monkeypatch.setenv(DEFECTS_VARIABLE, str(tmp_path / "defects"))
    monkeypatch.setitem(control.HANDLERS, cluster.Freed, fail)
    with caplog.at_level(logging.ERROR, logger="skate"):
        node.say(cluster.Freed([b"x"]))
    (record,) = errors_in(caplog)
    assert "handling Freed failed. This is a bug of Skate" in record.getMessage()
    assert record.exc_info is not None
    assert "an entry that should be there" in (tmp_path / "defects").read_text()
    assert not node.is_cut
    assert [each["number"] for each in node.ask()] == [1]


def test_a_mistake_in_a_timer_does_not_stop_the_others(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    now, done = time.monotonic(), []

    def fail() -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR, logger="skate"):
        town.loop.call_at(now, fail)
        town.loop.call_at(now, lambda: done.append(1))
        town.run_until(lambda: done, "the second timer")
    assert [record.getMessage()[:14] for record in errors_in(caplog)] == ["a timer failed"]


def test_a_limit_of_the_system_goes_through(town: Town) -> None:
    def fail() -> None:
        raise OSError(24, "Too many open files")

    town.loop.call_at(time.monotonic(), fail)
    with pytest.raises(OSError, match="Too many open files"):
        town.settle()


def test_garbage_is_the_end_of_its_link_alone(town: Town) -> None:
    stranger, node = town.peer(), town.peer()
    node.join()
    stranger.channel.sock.send(HEADER.pack(3) + b"\xc1\xc1\xc1")
    town.run_until(lambda: stranger.is_cut, "the end")
    assert len(node.ask()) == 1
    with pytest.raises(ProtocolError):
        town.service._on_message(town.service.new_link(), wire.Goodbye())
