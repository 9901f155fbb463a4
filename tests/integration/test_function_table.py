"""Functions and classes are known to the whole cluster for as long as somebody needs them."""

from __future__ import annotations

import gc
import importlib
import pathlib
import sys
from typing import Any

import pytest

import skate
from skate._worker.current import get_runtime
from waiting import wait_for

WITHIN_S = 10.0


def known() -> dict[str, dict[str, Any]]:
    """By name."""
    return {row["name"].rpartition(".")[2]: row for row in get_runtime().query("functions")}


def is_known(*names: str) -> dict[str, dict[str, Any]]:
    """What is known, if those are."""
    found = known()
    return found if set(names) <= set(found) else {}


def test_functions_are_known_until_nobody_can_call_them(anywhere: None) -> None:
    @skate.remote
    def inner() -> int:
        return 1

    @skate.remote(resources={"second": 1})
    class Caller:
        def __init__(self, function: Any) -> None:
            self.function = function

        def call(self) -> int:
            result: int = skate.get(self.function.remote())
            return result

    caller = Caller.remote(inner)
    assert skate.get([caller.call.remote(), inner.remote()]) == [1, 1]
    wait_for(lambda: known().get("inner", {"processes": 0})["processes"] == 2, WITHIN_S, "both who call it to tell")
    assert known()["inner"]["bytes"] > 0
    del inner
    gc.collect()
    wait_for(lambda: known()["inner"]["processes"] == 1, WITHIN_S, "one of them not to need it")
    del caller, Caller
    gc.collect()
    wait_for(lambda: not known(), WITHIN_S, "all to be forgotten")


def test_the_class_of_many_actors_is_there_once(anywhere: None) -> None:
    @skate.remote(num_cpus=0)
    class Counter:
        def add(self, number: int) -> int:
            return number + 1

    counters = [Counter.remote() for _ in range(5)]
    assert skate.get([counter.add.remote(1) for counter in counters]) == [2] * 5
    assert known()["Counter"]["actors"] == 5
    skate.kill(counters.pop())
    wait_for(lambda: known()["Counter"]["actors"] == 4, WITHIN_S, "the killed one to need it no more")
    del Counter, counters
    gc.collect()
    wait_for(lambda: not known(), WITHIN_S, "the class to be forgotten")


def test_an_actor_starts_again_when_only_the_table_knows_its_class(anywhere: None) -> None:
    @skate.remote
    class Maker:
        def make(self) -> None:
            @skate.remote(max_restarts=1, max_task_retries=1, lifetime="detached", name="fragile")
            class Fragile:
                def life(self, *, die: bool) -> bool:
                    again = bool(skate.get_runtime_context().was_current_actor_reconstructed)
                    if die and not again:
                        import os

                        os._exit(1)
                    return again

            skate.get(Fragile.remote().life.remote(die=False))

    maker = Maker.remote()
    skate.get(maker.make.remote())
    fragile = skate.get_actor("fragile")
    skate.kill(maker)
    wait_for(lambda: known()["Fragile"]["processes"] == 0, WITHIN_S, "its maker to be gone")
    assert known()["Fragile"]["actors"] == 1
    assert skate.get(fragile.life.remote(die=True))
    skate.kill(fragile)
    wait_for(lambda: "Fragile" not in known(), WITHIN_S, "the class to be forgotten")


def test_what_captured_data_stays_with_its_owner_unless_actors_need_it(anywhere: None) -> None:
    data = bytes(2 << 20)

    @skate.remote
    def length() -> int:
        return len(data)

    @skate.remote
    class Holder:
        def length(self) -> int:
            return len(data)

    @skate.remote
    def small() -> None: ...

    with pytest.warns(UserWarning, match="captures"):
        assert skate.get(length.remote()) == len(data)
    with pytest.warns(UserWarning, match="captures"):
        holder = Holder.remote()
    assert skate.get(holder.length.remote()) == len(data)
    skate.get(small.remote())
    found = wait_for(lambda: is_known("small"), WITHIN_S, "what came last to be known")
    assert set(found) == {"Holder", "small"}
    assert found["Holder"]["bytes"] > len(data)


def test_paths_that_nobody_can_use_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ignores what is no string; a name that is no text cannot be sent."""

    @skate.remote
    def f() -> int:
        return 1

    monkeypatch.setattr(sys, "path", [*sys.path, pathlib.Path("/nowhere"), "/tmp/\udcff"])
    with skate.init(num_cpus=1):
        monkeypatch.setattr(sys, "path", [*sys.path, pathlib.Path("/nowhere/else"), "/tmp/\udcfe"])
        assert skate.get(f.remote()) == 1


def test_the_working_directory_may_be_gone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @skate.remote
    def f() -> int:
        return 1

    @skate.remote
    def g() -> int:
        return 2

    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for sooner in (True, False):
        folder = tmp_path / "folder"
        folder.mkdir()
        monkeypatch.chdir(folder)
        if sooner:
            folder.rmdir()
        with skate.init(num_cpus=1):
            assert skate.get(f.remote()) == 1
            if not sooner:
                folder.rmdir()
            assert skate.get(g.remote()) == 2
        monkeypatch.chdir(tmp_path)


def test_a_path_of_the_runtime_before_is_not_taken_for_known(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_late.py").write_text("def f(): return 1")
    path = list(sys.path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *path])
    with skate.init(num_cpus=1):
        pass
    monkeypatch.setattr(sys, "path", path)
    with skate.init(num_cpus=1):
        monkeypatch.setattr(sys, "path", [str(tmp_path), *path])
        function = importlib.import_module("found_late").f
        assert skate.get(skate.remote(function).remote()) == 1
    del sys.modules["found_late"]
