"""Runs of `skate.rl`: a folder that is never half written, and from which a training goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from skate.rl import callbacks, progress
from skate.rl.dqn import DQNOptions
from skate.rl.es import ESOptions
from skate.rl.impala import IMPALAOptions
from skate.rl.options import choose, from_json, parse, setting
from skate.rl.policy import Policy
from skate.rl.ppo import PPOOptions
from skate.rl.run import NEXT_POLICY, Run
from skate.rl.sac import SACOptions
from skate.rl.simulate import Score
from waiting import wait_for


@dataclass(frozen=True)
class Options:
    """Of an algorithm that learns nothing."""

    learning_rate: float = setting(3e-4, "step size")
    batch: int = setting(64, "steps a minibatch")
    hidden: tuple[int, ...] = setting((64, 64), "sizes of the hidden layers")
    normalise: bool = setting(False, "normalise observations")
    head: Literal["a", "b"] = setting("a", "which head")
    clip: float | None = setting(None, "limit of gradients")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    monkeypatch.chdir(tmp_path)
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(Run, "plot", lambda *_: None)  # half a second each
    return tmp_path


@pytest.fixture
def drawn() -> None:
    """For tests that look at curves."""


def policy(version: int = 0) -> Policy:
    from gymnasium import spaces

    made = Policy.create(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), hidden=(8,), seed=3)
    return made.with_weights({**made.weights, "head.bias": np.full(2, version, np.float32)})


def score(mean: float = 200.0, episodes: int = 100) -> Score:
    return Score(mean, 18.0, np.full(episodes, mean), np.full(episodes, 7))


def begin(env: Any = "CartPole-v1", **arguments: Any) -> Run:
    return Run.begin("ppo", env, Options(), **{"steps": 1000, "seed": 1, "progress": False, **arguments})


def train(made: Run, stop_after: int | None = None, every: int = 99) -> Run:
    """An algorithm as all are: each iteration is 100 steps; its state is one number, the sum of the iterations."""
    with made as r:
        total = 0 if r.state is None else int(r.state["tensors"]["total"])
        assert r.state is None or r.state["meta"] == {"iteration": r.steps // 100}
        while r.more():
            iteration = r.steps // 100 + 1
            total += iteration
            r.log(r.steps + 100, returns=[float(iteration)], loss=np.float32(0.5), policy=policy(iteration))
            if r.due() or iteration % every == 0:
                r.checkpoint(policy(iteration), {"total": np.array(total)}, {"iteration": iteration})
            if iteration == stop_after:
                raise RuntimeError("the lane is dead")
        r.finish(policy(r.steps // 100), score(float(total)))
    return r


# -- folders -----------------------------------------------------------------------------------------------------------


def test_a_run_leaves_a_folder_with_everything(drawn: None) -> None:
    made = train(begin())
    assert made.path == Path("runs/ppo-CartPole-v1-1")
    assert sorted(os.listdir(made.path)) == [
        "checkpoint.safetensors",
        "curve.png",
        "options.json",
        "policy.safetensors",
        "progress.jsonl",
        "summary.json",
    ]
    about = json.loads((made.path / "options.json").read_text())
    assert (about["algorithm"], about["env"]) == ("ppo", "CartPole-v1")
    assert about["seed"] == 1
    assert about["options"]["hidden"] == [64, 64]
    assert {"python", "skate", "numpy", "torch", "gymnasium"} <= set(about["versions"])
    assert from_json(Options, about["options"]) == Options()
    assert made.repeatable


def test_a_run_is_never_overwritten() -> None:
    assert [train(begin()).path.name for _ in range(3)] == [f"ppo-CartPole-v1-{n}" for n in (1, 2, 3)]
    train(begin(path="mine"))
    with pytest.raises(FileExistsError, match=r"never overwritten\.\n  next: resume='mine'"):
        begin(path="mine")


def test_names_of_environments_are_names_of_folders() -> None:
    assert Run.begin("es", "ALE/Pong-v5", Options(), steps=1).path == Path("runs/es-ALE-Pong-v5-1")
    assert Run.begin("es", lambda: None, Options(), steps=1).path.parent == Path("runs")


def test_two_processes_do_not_train_in_one_folder() -> None:
    with begin(path="mine") as made, pytest.raises(RuntimeError, match="mine is in use"):
        train(begin(resume=made.path))
    train(begin(resume="mine"))


def test_a_run_that_never_began_leaves_no_folder() -> None:
    with pytest.raises(KeyError, match="typo"), begin(path="mine"):
        raise KeyError("typo")
    assert not Path("mine").exists()
    Path("mine").mkdir()
    Path("mine", "notes.txt").touch()
    with pytest.raises(KeyError, match="typo"), begin(path="mine"):
        raise KeyError("typo")
    assert os.listdir("mine") == ["notes.txt"]
    with pytest.raises(KeyError, match="typo"), begin(path="mine") as made:
        made.log(100)
        raise KeyError("typo")
    assert Run.load("mine").steps == 100


# -- history -----------------------------------------------------------------------------------------------------------


def test_history_is_what_progress_jsonl_has() -> None:
    made = train(begin())
    assert [json.loads(line) for line in (made.path / "progress.jsonl").read_text().splitlines()] == made.history
    row = made.history[-1]
    assert (row["iteration"], row["steps"], row["mean_return"], row["loss"]) == (10, 1000, 5.5, 0.5)
    assert row["seconds"] >= made.history[0]["seconds"]
    assert row["steps_per_second"] > 0


def test_numbers_that_json_has_not_are_null() -> None:
    with begin() as made:
        made.log(1, bad=float("nan"), worse=np.float32("inf"), whole=np.int64(3))
    (row,) = made.history
    assert row["mean_return"] is row["bad"] is row["worse"] is None
    assert row["whole"] == 3
    assert "NaN" not in (made.path / "progress.jsonl").read_text()


def test_a_torn_line_is_dropped_when_it_is_read() -> None:
    made = train(begin())
    with (made.path / "progress.jsonl").open("a") as file:
        file.write('{"iteration": 11, "ste')
    assert Run.load(made.path).history == made.history


def test_callbacks_get_run_and_row_and_may_stop_the_run() -> None:
    seen = []

    class Stop:
        closed = False

        def __call__(self, r: Run, row: dict[str, Any]) -> None:
            seen.append((r.steps, row["iteration"]))
            if len(seen) == 3:
                r.stop()

        def close(self) -> None:
            self.closed = True

    stop = Stop()
    made = train(begin(callbacks=[stop]))
    assert seen == [(100, 1), (200, 2), (300, 3)]
    assert stop.closed
    assert made.steps == 300
    assert json.loads(Path(made.path, "summary.json").read_text())["steps"] == 300


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("tensorboard", "torch.utils.tensorboard", "tensorboard"),
        ("wandb", "wandb", "wandb"),
        ("mlflow", "mlflow", "mlflow"),
    ],
)
def test_an_adapter_whose_package_is_missing_says_what_to_install(
    name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {package}(.|\n)*next: pip install {package}"):
        getattr(callbacks, name)()


@pytest.mark.parametrize(
    ("name", "module", "first", "last"),
    [
        ("tensorboard", "torch.utils.tensorboard", "SummaryWriter('runs/ppo-CartPole-v1-1')", ".close()"),
        ("wandb", "wandb", "init(config=", ".finish()"),
        ("mlflow", "mlflow", "set_experiment('skate')", "end_run()"),
    ],
)
def test_an_adapter_carries_every_row(
    name: str, module: str, first: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Recorder:
        """Stands for the package, which the tests do not install: notes what is called."""

        def __init__(self, path: str = "") -> None:
            self._path = path

        def __getattr__(self, name: str) -> Recorder:
            return Recorder(f"{self._path}.{name}" if self._path else name)

        def __call__(self, *words: Any, **named: Any) -> Recorder:
            arguments = [repr(word) for word in words] + [f"{key}={value!r}" for key, value in sorted(named.items())]
            calls.append(f"{self._path}({', '.join(arguments)})")
            return Recorder(f"{self._path}()")

    monkeypatch.setitem(sys.modules, module, Recorder())
    train(begin(callbacks=[getattr(callbacks, name)()]))
    assert calls[0].startswith(first)
    assert calls[-1].endswith(last)
    assert sum("mean_return" in call for call in calls) == 10


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_its_checkpoint() -> None:
    with pytest.raises(RuntimeError, match="lane"):
        train(begin(), stop_after=5, every=2)
    assert len(Run.load("runs/ppo-CartPole-v1-1").history) == 5
    made = train(begin(resume="runs/ppo-CartPole-v1-1", seed=9))
    assert made.score is not None
    assert made.score.mean == sum(range(11))
    assert [row["iteration"] for row in made.history] == list(range(1, 11))
    assert made.history == Run.load(made.path).history
    assert made.seed == 1
    assert not made.repeatable
    assert made.reasons == ["it was resumed at 400 steps"]
    assert str(made).endswith("; not repeatable: it was resumed at 400 steps")


def test_a_finished_run_goes_on_to_more_steps() -> None:
    first = train(begin())
    made = train(begin(resume=first.path, steps=2e3))
    assert (made.steps, len(made.history)) == (2000, 20)
    seconds = [row["seconds"] for row in made.history]
    assert seconds == sorted(seconds)


def test_resumes_are_counted_in_one_reason() -> None:
    made = train(begin())
    for steps in (2e3, 3e3, 4e3):
        made = train(begin(resume=made.path, steps=steps))
    assert made.reasons == ["it was resumed 3 times, the last time at 3,000 steps"]
    assert Run.load(made.path).reasons == made.reasons


def test_a_run_that_was_interrupted_says_why_it_is_not_repeatable() -> None:
    with begin() as run:
        run.not_repeatable("a lane died")
        run.log(100, returns=[1.0])
        run.checkpoint(policy(), {}, {})
    assert Run.load(run.path).reasons == ["a lane died"]


def test_the_first_checkpoint_of_a_run_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with begin(steps=1e9) as made:
        for seconds, due in ((1, False), (2.5, True), (10, False), (25, True)):
            now[0] += seconds
            made.log(made.steps + 100)
            assert made.due() == due
            if due:
                made.checkpoint(policy(), {}, {})


def test_a_run_without_a_checkpoint_begins_again() -> None:
    with pytest.raises(RuntimeError, match="lane"):
        train(begin(), stop_after=3, every=99)
    made = train(begin(resume="runs/ppo-CartPole-v1-1"))
    assert [row["iteration"] for row in made.history] == list(range(1, 11))


def test_what_begins_again_is_seeded_by_the_steps_before() -> None:
    made = train(begin())
    with begin(resume=made.path, steps=2000) as again:
        assert again.fresh_seed not in (again.seed, 0)
    with begin() as new:
        assert new.fresh_seed == new.seed == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"resume": "nowhere"}, "nowhere is not the folder of a run.*\n  next: name a folder"),
        ({"path": "there"}, "leave path= out"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], text: str) -> None:
    made = train(begin())
    with pytest.raises((ValueError, FileNotFoundError), match=text):
        begin(**{"resume": made.path, **arguments})


def test_another_algorithm_cannot_go_on_with_a_run() -> None:
    made = train(begin())
    with pytest.raises(ValueError, match="a run of ppo on CartPole-v1, and cannot go on as dqn on CartPole-v1"):
        Run.begin("dqn", "CartPole-v1", Options(), steps=1, resume=made.path)


def test_the_policy_of_a_resumed_run_is_that_of_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends between the files of a checkpoint: before the state is there, and before the policy is."""

    really = os.replace
    for stop, version in ((f".checkpoint.safetensors.{os.getpid()}.new", 1), (NEXT_POLICY, 2)):

        def dies(source: Path, target: Path, stop: str = stop) -> None:
            if source.name == stop:
                raise SystemExit
            really(source, target)

        with pytest.raises(SystemExit), begin(path=f"run-{version}") as made:
            for n in (1, 2):
                made.log(100 * n)
                if n == 2:
                    monkeypatch.setattr(os, "replace", dies)
                made.checkpoint(replace(policy(n), version=n), {}, {"n": n})
        monkeypatch.setattr(os, "replace", really)
        with begin(resume=made.path) as made:
            assert made.state == {"tensors": {}, "meta": {"n": version}}
            assert made.policy.weights["head.bias"][0] == version
            assert made.steps == 100 * version


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"steps": 0}, "steps is 0, and it must be a whole number, at least 1."),
        ({"steps": "many"}, "steps is 'many', and it must be a whole number, at least 1."),
        ({"steps": float("nan")}, "steps is nan, and it must be a whole number, at least 1."),
        ({"steps": float("inf")}, "steps is inf, and it must be a whole number, at least 1."),
        ({"seed": -1}, "seed is -1, and it must be a whole number, at least 0."),
        ({"seed": None}, "seed is None, and it must be a whole number, at least 0."),
        ({"seed": 1.5}, "seed is 1.5, and it must be a whole number, at least 0."),
        ({"stop_at": "x"}, "stop_at is 'x', and it must be a number: the score at which the run ends."),
        ({"evaluate_every": -5}, "evaluate_every is -5, and it must be a whole number, at least 0."),
    ],
)
def test_arguments_that_cannot_be_make_no_folder(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        begin(**arguments)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"callbacks": print}, "callbacks is <built-in function print>, and it must be a list of functions of the run"),
        (
            {"callbacks": [print, 3]},
            r"callbacks is \[<built-in function print>, 3\], and it must be a list of functions",
        ),
        ({"callbacks": "print"}, "callbacks is 'print', and it must be a list of functions"),
        ({"path": 3}, "path is 3, and it must be a str or a Path: the folder of a run"),
        ({"env": None}, "an environment is given as an id, a gymnasium spec or a factory, and this is NoneType"),
        ({"resume": b"runs"}, "resume is b'runs', and it must be a str or a Path: the folder of a run"),
    ],
)
def test_arguments_of_another_type_are_named_and_make_no_folder(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        begin(**arguments)
    assert not Path("runs").exists()


def test_the_folder_of_a_run_is_a_path() -> None:
    with pytest.raises(TypeError, match="the run is 3, and it must be a str or a Path"):
        Run.load(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [1000, 500])
def test_a_run_that_is_at_its_steps_already_says_so(steps: int) -> None:
    made = train(begin())
    before = {file.name: file.read_bytes() for file in made.path.iterdir()}
    text = f"{made.path} is at 1,000 steps already, and steps={steps:,} says where it ends.\n  next: more steps="
    with pytest.raises(ValueError, match=text):
        train(begin(resume=made.path, steps=steps))
    assert {file.name: file.read_bytes() for file in made.path.iterdir()} == before


def test_a_run_that_was_stopped_beyond_the_steps_says_so() -> None:
    with pytest.raises(RuntimeError, match="lane"):
        train(begin(), stop_after=5, every=1)
    with pytest.raises(ValueError, match="is at 500 steps already, and steps=500 says where it ends"):
        train(begin(resume="runs/ppo-CartPole-v1-1", steps=500))


def test_a_run_that_was_killed_while_it_was_scored_gets_its_score() -> None:
    made = train(begin())
    (made.path / "summary.json").unlink()
    assert train(begin(resume=made.path)).score is not None


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        (
            "options.json",
            b'{"algorithm": "p',
            r"options.json cannot be read: .* Something other than Skate has changed it",
        ),
        ("options.json", b"[]", "options.json does not describe a run: its text is no object"),
        ("options.json", b'{"algorithm": "ppo"}', "options.json does not describe a run: it lacks env, options, seed"),
        (
            "options.json",
            b'{"algorithm": 1, "env": 5}',
            "does not describe a run: it lacks algorithm, env, options, seed",
        ),
        ("checkpoint.safetensors", b"half", "checkpoint.safetensors is not a file of safetensors, or not all of one"),
    ],
)
def test_a_damaged_file_is_named(file: str, content: bytes, text: str) -> None:
    made = train(begin())
    (made.path / file).write_bytes(content)
    with pytest.raises(ValueError, match=text), begin(resume=made.path):
        pass


def test_the_file_of_a_policy_is_no_checkpoint() -> None:
    made = train(begin())
    made.policy.save(made.path / "checkpoint.safetensors")
    with pytest.raises(ValueError, match="is not a checkpoint of a run"), begin(resume=made.path):
        pass


def test_files_of_a_run_can_be_read_by_those_who_may_read_others() -> None:
    made = train(begin())
    modes = {file.name: file.stat().st_mode for file in made.path.iterdir()}
    assert len(set(modes.values())) == 1, modes


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"learning_rate": -1.0}, "learning_rate is -1.0, and it must be above 0 and at most 1000."),
        ({"learning_rate": float("nan")}, "learning_rate is nan, and it must be finite and above 0 and at most 1000."),
        ({"minibatch": 1}, "minibatch is 1, and it must be at least 2."),
        ({"epochs": 0}, "epochs is 0, and it must be at least 1."),
        ({"gamma": 2.0}, "gamma is 2.0, and it must be at least 0 and at most 1."),
        ({"hidden": (64, 0)}, "hidden is (64, 0), and it must be at least 1."),
        ({"log_std": float("nan")}, "log_std is nan, and it must be finite and at least -20 and at most 10."),
        ({"entropy": float("inf")}, "entropy is inf, and it must be finite and at least 0."),
    ],
)
def test_settings_have_limits(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"PPOOptions.{text}")):
        choose(PPOOptions, None, settings)
    with pytest.raises(ValueError, match=re.escape(f"PPOOptions.{text}")):
        choose(PPOOptions, PPOOptions(**settings), {})


@pytest.mark.parametrize("kind", [DQNOptions, SACOptions])
def test_a_replay_holds_a_minibatch_at_least(kind: Any) -> None:
    assert choose(kind, None, {"capacity": 32, "minibatch": 32}).capacity == 32
    name = kind.__name__
    text = f"^{name}.capacity is 31, and it must be at least 32, which is {name}.minibatch.$"
    with pytest.raises(ValueError, match=text):
        choose(kind, None, {"capacity": 31, "minibatch": 32})


def test_options_have_the_types_of_their_settings_however_they_are_given() -> None:
    with pytest.raises(TypeError, match=r"PPOOptions.gamma is 'x', and it must be float"):
        choose(PPOOptions, PPOOptions(gamma="x"), {})  # type: ignore[arg-type]
    listed: Any = [8, 8]
    chosen = choose(PPOOptions, PPOOptions(hidden=listed), {"gamma": np.float32(0.5), "epochs": np.int64(3)})
    assert (chosen.hidden, chosen.gamma, chosen.epochs) == ((8, 8), 0.5, 3)
    assert choose(PPOOptions, None, {"gradient_norm": float("inf")}).gradient_norm == float("inf")


def test_a_run_whose_checkpoint_was_removed_is_not_begun_again() -> None:
    made = train(begin())
    (made.path / "checkpoint.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has a policy and no checkpoint\.safetensors"), begin(resume=made.path):
        pass


def test_weights_that_are_not_finite_are_an_error_and_the_last_checkpoint_stays() -> None:
    made = train(begin())
    before = {file.name: file.read_bytes() for file in made.path.glob("*.safetensors")}
    odd = policy().with_weights({**policy().weights, "head.bias": np.full(2, np.nan, np.float32)})
    with begin(resume=made.path, steps=2_000) as more:
        for save in (lambda: more.checkpoint(odd, {}, {}), lambda: more.finish(odd)):
            with pytest.raises(ValueError, match=r"diverged at 1,000 steps: head\.bias has weights that are not"):
                save()
    assert {file.name: file.read_bytes() for file in made.path.glob("*.safetensors")} == before


def test_rows_that_are_no_rows_end_the_history() -> None:
    made = train(begin())
    with open(made.path / "progress.jsonl", "a") as file:
        file.write("3\n[]\n")
    assert Run.load(made.path).history == made.history


@pytest.mark.parametrize("kind", [PPOOptions, IMPALAOptions, DQNOptions, SACOptions, ESOptions])
def test_defaults_are_within_the_limits(kind: Any) -> None:
    assert choose(kind, None, {}) == kind()


#: A training that writes checkpoints all the time, without torch and this module, whose imports would take most of it.
PROGRAM = """
import sys
from dataclasses import make_dataclass
import numpy as np
from skate.rl import Policy, Run, run
run.CHECKPOINT_EVERY_S = 0
box, choice = {"kind": "box", "shape": [4], "dtype": "float32"}, {"kind": "discrete", "sizes": [2], "start": 0}
policy = Policy.create(box, choice, hidden=(8,))
options = make_dataclass("Options", [])()
with Run.begin("ppo", "CartPole-v1", options, steps=10**9, seed=1, path=sys.argv[1], progress=False) as r:
    big = np.arange(1 << 18)
    while r.more():
        iteration = r.steps // 100 + 1
        policy = policy.with_weights(policy.weights)
        r.log(r.steps + 100, returns=[iteration])
        if r.due():
            r.checkpoint(policy, {"big": big + iteration}, {"iteration": iteration})
"""


def started(path: str) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, path], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: Path(path, "policy.safetensors").exists(), 30, "the first checkpoint")
    return child


def check_whole(path: str) -> None:
    """Go on in that folder: every file can be read, and history ends where the checkpoint is."""
    with begin(resume=path, steps=10**9) as made:
        assert made.state is not None
        iteration = made.state["meta"]["iteration"]
        assert np.array_equal(made.state["tensors"]["big"], np.arange(1 << 18) + iteration)
        assert [row["iteration"] for row in made.history] == list(range(1, iteration + 1))
        assert made.steps == iteration * 100
        made.policy.act(np.zeros(4, np.float32))
        assert not list(Path(path).glob(".*"))


def test_a_folder_is_whole_whenever_the_process_is_killed() -> None:
    for attempt in range(4):
        path = f"killed-{attempt}"
        with started(path) as child:
            time.sleep(0.013 * attempt)  # another moment each time; the outcome must not depend on it
            child.kill()
        check_whole(path)


def test_ctrl_c_leaves_a_checkpoint_of_the_last_iteration() -> None:
    with started("interrupted") as child:
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        text = child.stderr.read()
    assert "KeyboardInterrupt" in text
    rows = len(Run.load("interrupted").history)
    check_whole("interrupted")
    assert len(Run.load("interrupted").history) == rows


def test_ctrl_c_waits_for_the_iteration_and_a_second_one_does_not(capfd: pytest.CaptureFixture[str]) -> None:
    done, handler = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), begin(progress=None) as made:
        made.log(100)
        assert not made.due()
        os.kill(os.getpid(), signal.SIGINT)
        done.append("the iteration")
        assert made.due()
        made.checkpoint(policy(), {}, {})
        done.append("not reached")
    assert done == ["the iteration"]
    assert "Ctrl-C again ends it at once" in (text := capfd.readouterr().err)
    assert "Stopped at 100 steps. To go on: resume='runs/ppo-CartPole-v1-1', or --resume." in text
    with pytest.raises(KeyboardInterrupt), begin(resume=made.path):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        done.append("not reached")
    assert done == ["the iteration"]
    assert signal.getsignal(signal.SIGINT) is handler


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_evaluations_come_when_they_are_due_and_end_the_run() -> None:
    asked = []

    def evaluator(given: Policy, episodes: int, seed: int) -> Score:
        asked.append((int(given.weights["head.bias"][0]), episodes, seed))
        time.sleep(0.05)
        return score(100.0 * len(asked), episodes)

    made = begin(evaluate_every=250, stop_at=200)
    made.evaluator = evaluator
    train(made)
    assert asked == [(3, 20, 1_000_001), (5, 20, 1_000_001)]
    assert [row.get("score") for row in made.history] == [None, None, 100.0, None, 200.0]
    assert made.steps == 500


def test_the_time_of_evaluations_is_not_counted() -> None:
    def evaluator(given: Policy, episodes: int, seed: int) -> Score:
        before = made.seconds
        time.sleep(0.02)
        assert made.seconds == before
        return score()

    made = begin(evaluate_every=100)
    made.evaluator = evaluator
    train(made)


def test_the_final_policy_is_evaluated() -> None:
    with begin() as made:
        made.evaluator = lambda given, episodes, seed: score(243.1, episodes)
        made.log(1000)
        made.checkpoint(policy(), {}, {})
        made.finish(policy(7))
    assert str(made).startswith("PPO on CartPole-v1: 243.1 ± 18 over 100 episodes; 1,000 steps in ")
    again = Run.load(made.path)
    assert str(again.score) == str(made.score)
    assert again.policy.weights["head.bias"][0] == 7
    assert repr(again).startswith("<Run 'runs/ppo-CartPole-v1-1': PPO on")


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_a_run_in_words() -> None:
    made = Run("x", {"algorithm": "ppo", "env": "LunarLander-v3", "options": {}, "seed": 1, "steps": 10**6})
    assert str(made) == "PPO on LunarLander-v3: no episode has ended; 0 steps in 0.0 s (0/s)"
    made.steps, made._seconds, made.score = 500_736, 21.04, score(243.0)
    assert str(made) == "PPO on LunarLander-v3: 243 ± 18 over 100 episodes; 500,736 steps in 21 s (23,800/s)"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10 s"), (119, "119 s"), (130, "2 min"), (7000, "117 min"), (7300, "2 h 2 min")],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(23_824.3, "23,800"), (999.6, "1,000"), (45.67, "45.7"), (0.123, "0.12"), (0.0, "0")]
)
def test_rates_in_words(rate: float, text: str) -> None:
    assert progress.significant(rate) == text


def test_without_a_terminal_progress_is_a_line_now_and_then(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(begin(progress=None))
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    train(begin(progress=None))
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[4].startswith("ppo CartPole-v1: 500 of 1,000 steps, ")
    assert "/s, return 3, " in lines[4]
    train(begin(progress=False))
    assert capfd.readouterr().err == ""


def test_the_curve_has_a_line_and_points(folder: Path, drawn: None) -> None:
    made = begin(evaluate_every=300)
    made.evaluator = lambda given, episodes, seed: score(8.0, episodes)
    figure = train(made).plot("curve.svg")
    (axes,) = figure.axes
    curve, points, final = axes.lines
    assert list(curve.get_xdata()) == list(range(100, 1001, 100))
    assert list(points.get_xdata()) == [300, 600, 900]
    assert final.get_ydata()[0] == 55
    assert (folder / "curve.svg").read_text().startswith("<?xml")
    assert (made.path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules


# -- options -----------------------------------------------------------------------------------------------------------


def test_settings_change_options() -> None:
    assert choose(Options, None, {}) == Options()
    assert choose(Options, Options(batch=8), {"learning_rate": 1}) == Options(learning_rate=1.0, batch=8)
    assert choose(Options, None, {"batch": 1e3, "hidden": [32], "clip": 0.5}) == Options(
        batch=1000, hidden=(32,), clip=0.5
    )


def test_options_of_a_resumed_run_are_its_own() -> None:
    with Run.begin("ppo", "CartPole-v1", Options(batch=8, hidden=(3, 4)), steps=1) as made:
        pass
    assert choose(Options, None, {}, made.path) == Options(batch=8, hidden=(3, 4))
    assert choose(Options, None, {"batch": 9}, made.path) == Options(batch=9, hidden=(3, 4))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"learnin_rate": 1},
            "did you mean 'learning_rate'.*\n  next: its settings are learning_rate, .*clip",
        ),
        ({"batch": 1.5}, r"Options.batch is 1.5, and it must be int\."),
        ({"batch": True}, "Options.batch is True"),
        ({"batch": float("inf")}, "Options.batch is inf"),
        ({"normalise": 1}, "Options.normalise is 1, and it must be bool"),
        ({"hidden": 64}, r"Options.hidden is 64, and it must be a tuple of int, such as \(64,\)"),
        ({"head": "c"}, "Options.head is 'c', and it must be a or b"),
        ({"clip": "x"}, "Options.clip is 'x', and it must be float or none"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        choose(Options, None, settings)


def test_options_of_another_version_are_named() -> None:
    with pytest.raises(ValueError, match=r"settings that Options has not: gone\.\n  why:  another version"):
        from_json(Options, {"gone": 1})


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "1e5", 100_000),
        (float, "3e-4", 3e-4),
        (bool, "true", True),
        (tuple[int, ...], "64,64", (64, 64)),
        (tuple[int, ...], "64", (64,)),
        (float | None, "none", None),
        (float | None, "0.5", 0.5),
        (Literal["a", "b"], "b", "b"),
        (str, "x", "x"),
    ],
)
def test_words_of_the_shell_are_values(hint: Any, text: str, value: Any) -> None:
    assert parse("x", hint, text) == value


@pytest.mark.parametrize(("hint", "text"), [(int, "1.5"), (int, "inf"), (float, "x"), (bool, "1"), (Literal["a"], "b")])
def test_words_that_are_no_values_are_named(hint: Any, text: str) -> None:
    with pytest.raises(TypeError, match=f"x is '{text}', and it must be "):
        parse("x", hint, text)
