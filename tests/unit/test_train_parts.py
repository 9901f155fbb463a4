"""The pure parts of train.run: how many workers, where each stands, how metrics are reduced; its folder and line."""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate.train.arguments import checked_options, takes_config
from skate.train.environment import Place, gpus_in_order, seats
from skate.train.folder import History, locked_folder, read_history
from skate.train.progress import Line
from skate.train.record import Result
from skate.train.reduce import Reducer
from skate.train.sizing import capacity, checked_workers, fitting, size_to_grow_to, sizes_to_try
from skate.train.worker import _kept_port, _waits
from skate.util import callbacks
from skate.util.files import written_beside

# -- how many workers --------------------------------------------------------------------------------------------------


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 5), st.integers(0, 5))
def test_sizes_are_tried_from_the_largest_down_to_the_least_and_never_more_than_fits(
    room: int, free: int, least: int, more: int
) -> None:
    sizes = sizes_to_try(room, free, least, least + more)
    assert sizes == sorted(set(sizes), reverse=True)
    if room < least:
        assert sizes == []
    else:
        assert sizes[0] == min(room, least + more)
        assert sizes[-1] == least
        assert all(size <= max(free, least) for size in sizes[1:])


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9), st.integers(1, 9))
def test_a_group_never_shrinks_in_order_to_grow(workers: int, room: int, free: int, most: int) -> None:
    size = size_to_grow_to(workers, room, free, most)
    assert size == workers or workers < size <= min(most, room, workers + free)


def test_what_fits_is_counted_node_by_node() -> None:
    assert capacity([{"CPU": 3, "GPU": 1}, {"CPU": 1, "GPU": 4}], {"CPU": 1, "GPU": 1}) == 2
    assert fitting({"CPU": 0.3}, {"CPU": 0.1}) == 3
    assert fitting({}, {"CPU": 1}) == 0


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "2", None, (2, 1), (0, 2), (1, 2, 3), (1,)])
def test_numbers_of_workers_that_cannot_be_meant(workers: Any) -> None:
    with pytest.raises(ValueError, match=r"train\.run\(workers="):
        checked_workers(workers)


@pytest.mark.parametrize(
    "wrong",
    [
        {"stall_after": 0},
        {"stall_after": True},
        {"stall_after": "10"},
        {"reduce": "median"},
        {"reduce": 3},
        {"reduce": {"loss": "median"}},
        {"reduce": {"loss": None}},
        {"resources": {"CPU": -1}},
        {"resources": {1: 1}},
        {"resources": ["CPU"]},
    ],
)
def test_options_that_cannot_be_meant(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "workers": 2,
        "failures": 0,
        "resources": None,
        "keep": 2,
        "best": None,
        "stall_after": None,
        "reduce": None,
        "callbacks": (),
    }
    assert checked_options(print, **right).resources == {"CPU": 1}
    with pytest.raises(ValueError, match=r"train\.run\("):
        checked_options(print, **{**right, **wrong})
    for no_list in (print, None, [print, None]):
        with pytest.raises(TypeError, match="list of functions"):
            checked_options(print, **{**right, "callbacks": no_list})


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("fit", [coroutine, generator])
def test_a_function_whose_call_would_run_none_of_it_is_refused(fit: Any) -> None:
    with pytest.raises(TypeError, match="runs none of it"):
        checked_options(
            fit, workers=1, failures=0, resources=None, keep=1, best=None, stall_after=None, reduce=None, callbacks=()
        )


def test_the_config_is_given_to_a_function_that_takes_one() -> None:
    assert takes_config(lambda config: None, {"lr": 1})
    assert takes_config(lambda config: None, None)
    assert takes_config(lambda lr=1: None, 2)
    assert not takes_config(lambda lr=1: None, None)
    assert not takes_config(lambda: None, None)
    with pytest.raises(TypeError, match="would not see the config"):
        takes_config(lambda: None, 1)
    for config in (None, 1):
        with pytest.raises(TypeError, match=r"parameters \(model, config\)"):
            takes_config(lambda model, config: None, config)


def test_a_rank_that_imports_a_module_of_torch_waits_for_nobody() -> None:
    program = "import sys\nfound.append(waits(sys._getframe()))\ndef join():\n    found.append(waits(sys._getframe()))"
    found: list[bool] = []
    names = {"found": found, "waits": _waits}
    exec(compile(program, "/x/torch/distributed/fsdp.py", "exec"), names)
    names["join"]()  # type: ignore[operator]
    assert found == [False, True]


# -- where each one stands ---------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8))
def test_ranks_of_a_node_follow_each_other_and_are_counted_as_torchrun_does(nodes: list[str]) -> None:
    places = [Place(node, f"10.0.0.{ord(node)}", 1000 + index, 8) for index, node in enumerate(nodes)]
    found = seats(places, run_id="x")
    assert [seat.rank for seat in found] == list(range(len(nodes)))
    assert sorted(seat.index for seat in found) == list(range(len(nodes)))
    for node_rank, node in enumerate(dict.fromkeys(nodes)):
        here = [seat for seat in found if places[seat.index].node == node]
        assert [seat.local_rank for seat in here] == list(range(len(here)))
        assert {(seat.node_rank, seat.local_world_size) for seat in here} == {(node_rank, len(here))}
        assert {seat.defaults["OMP_NUM_THREADS"] for seat in here} == {str(max(1, 8 // len(here)))}
    ports = {seat.environment["MASTER_PORT"] for seat in found}
    assert ports == {str(places[found[0].index].port)}  # rank 0 is the one that keeps it free


@given(st.integers(1, 4), st.integers(1, 3))
def test_the_first_gpu_of_a_worker_has_the_number_of_its_local_rank(workers: int, each: int) -> None:
    gpus = [tuple(str(worker * each + turn) for turn in range(each)) for worker in range(workers)]
    found = seats([Place("a", "x", 1, 1, own) for own in gpus], run_id="x")
    visible = found[0].environment["CUDA_VISIBLE_DEVICES"].split(",")
    assert sorted(visible) == sorted(gpu for own in gpus for gpu in own)
    for seat in found:
        assert seat.devices[0] == seat.local_rank
        assert tuple(visible[device] for device in seat.devices) == gpus[seat.index]


def test_a_gpu_that_workers_share_is_named_once() -> None:
    assert gpus_in_order([["3"], ["3"]]) == ["3"]
    assert [seat.devices for seat in seats([Place("a", "x", 1, 1, ("3",))] * 2, run_id="x")] == [(0,), (0,)]


def test_without_gpus_nothing_is_said_of_them() -> None:
    (seat,) = seats([Place("a", "x", 1, 1)], run_id="x")
    assert "CUDA_VISIBLE_DEVICES" not in seat.environment
    assert seat.devices == ()


def test_the_port_of_rank_0_is_given_to_no_other_program_and_a_server_may_listen_there() -> None:
    kept = _kept_port()
    port = kept.getsockname()[1]
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    for _ in range(2):  # one process group after the other
        with socket.create_server(("", port)) as server, socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
    kept.close()


# -- metrics of all ranks ----------------------------------------------------------------------------------------------


@given(st.data(), st.integers(1, 4))
def test_in_any_order_of_arrival_every_step_becomes_one_row_in_order(data: st.DataObject, workers: int) -> None:
    reducer = Reducer("sum", workers)
    steps = {rank: data.draw(st.sets(st.integers(0, 5))) for rank in range(workers)}
    left = {rank: sorted(own) for rank, own in steps.items()}
    rows = []
    while left:
        rank = data.draw(st.sampled_from(sorted(left)))
        if left[rank]:
            step = left[rank].pop(0)
            rows += reducer.reported(rank, step, {"count": 1, "name": str(rank)})
        else:
            del left[rank]
            rows += reducer.finished(rank)
    assert [row["step"] for row in rows] == sorted(set().union(*steps.values()))
    for row in rows:
        ranks = [rank for rank in range(workers) if row["step"] in steps[rank]]
        assert row == {"step": row["step"], "workers": workers, "count": len(ranks), "name": str(ranks[0])}
    assert reducer.rest() == []


def test_a_step_waits_for_ranks_that_are_behind_but_not_for_those_that_skip_it() -> None:
    reducer = Reducer({"loss": "mean"}, 2)
    assert reducer.reported(0, 0, {"loss": 1.0}) == []
    assert reducer.reported(0, 1, {"loss": 3.0}) == []
    assert reducer.reported(1, 1, {"loss": 4.0}) == [
        {"step": 0, "workers": 2, "loss": 1.0},
        {"step": 1, "workers": 2, "loss": 3.5},
    ]
    reducer.reported(0, 2, {"loss": 1.0})
    assert reducer.rest() == [{"step": 2, "workers": 2, "loss": 1.0}]


def test_adapters_log_the_rows_of_rank_0_or_of_all_ranks_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []

    class Writer:
        """Stands for TensorBoard's, which the tests do not install: notes what is called."""

        def __init__(self, folder: str) -> None:
            said.append(folder)

        def add_scalar(self, *arguments: Any) -> None:
            said.append(arguments)

        def close(self) -> None:
            said.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    adapter = callbacks.tensorboard()
    result = Result(tmp_path)
    adapter(result, {"step": 1, "rank": 0, "loss": 0.5, "name": "x"})
    adapter(result, {"step": 1, "rank": 1, "loss": 0.7})
    adapter(result, {"step": 2, "loss": 0.25})
    adapter.close()
    assert (said[0], said[-1]) == (str(tmp_path), "closed")
    assert [call for call in said if call[0] == "loss"] == [("loss", 0.5, 1), ("loss", 0.25, 2)]


# -- on disk and on the terminal ---------------------------------------------------------------------------------------


def test_a_history_goes_on_after_its_checkpoint_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    history = History(tmp_path, [], -1)
    for step in range(3):
        history.append({"step": step, "rank": 0})
    history.close()
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"step": 3, "ra')
    rows = read_history(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2]
    History(tmp_path, rows, 1).close()
    assert [json.loads(line)["step"] for line in (tmp_path / "history.jsonl").read_text().splitlines()] == [0, 1]


def test_a_file_stays_as_it_was_when_writing_another_one_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")

    def fail(new: Path) -> None:
        new.write_text("new")
        raise LookupError

    with pytest.raises(LookupError), written_beside(file) as new:
        fail(new)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_on_a_terminal_is_one_line_that_ends_with_the_last_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    line = Line("mnist", None)
    line.show({"step": 0, "rank": 0, "workers": 2, "loss": 0.5, "name": "x"}, 2)
    line.say("rank 1 failed")
    line.show({"step": 1, "rank": 0, "workers": 2, "loss": 0.25}, 2)
    line.close()
    drawn = terminal.getvalue().split("\r\033[K")
    assert drawn[1] == "mnist: step 0 · 2 workers · loss 0.5"
    assert drawn[2] == "rank 1 failed\n"
    assert drawn[-1].startswith("mnist: step 1 · ")
    assert drawn[-1].endswith("\n")
    assert all(len(text.rstrip("\n")) < 40 for text in drawn)


def test_where_there_is_no_terminal_nothing_is_shown_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for shown, expected in ((None, ""), (False, ""), (True, "mnist: step 7 · 1 worker · loss 0.5\n")):
        monkeypatch.setattr(sys, "stderr", file := io.StringIO())
        line = Line("mnist", shown)
        line.show({"step": 7, "loss": 0.5}, 1)
        line.close()
        assert file.getvalue() == expected


@pytest.mark.parametrize("below", ["", "run"])
def test_a_folder_that_is_a_file_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("")
    path = tmp_path / "taken" / below
    with pytest.raises(ValueError, match=rf"path='{path}'.* is a file"), locked_folder(lambda: None, path):
        pass
