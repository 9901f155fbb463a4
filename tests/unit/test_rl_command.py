"""`skate rl`: what it trains, evaluates and draws, and what it says about mistakes."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from skate.cli import main
from skate.rl import command, options
from skate.rl.policy import Policy
from skate.rl.run import Run
from skate.rl.simulate import Score

ENV = """
import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.at += 1
        return np.full(2, self.at / 5, np.float32), 1.0, self.at == 5, False, {}

    def render(self):
        frame = np.zeros((32, 48, 3), np.uint8)
        frame[:, 8 * self.at : 8 * self.at + 8] = 255
        return frame


gymnasium.register("Walk-v0", Walk)
"""
WALK = "walk_env:Walk-v0"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "walk_env.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("walk_env", None)
    gymnasium.registry.pop("Walk-v0", None)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that has finished, on the walk."""
    from skate.rl.ppo import PPOOptions

    monkeypatch.setattr(Run, "plot", lambda *_: None)
    space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    policy = Policy.create(space, gymnasium.spaces.Discrete(2), hidden=(4,), seed=0)
    with Run.begin("ppo", WALK, PPOOptions(gamma=0.5), steps=100, seed=3, progress=False) as made:
        made.log(100, returns=[5.0])
        made.checkpoint(policy, {}, {})
        made.finish(policy, Score(5.0, 0.0, np.full(3, 5.0), np.full(3, 5)))
    return made


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    try:
        code = main(["rl", *words])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_run_of_another_algorithm_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "train", "dqn", "--resume", str(run.path))
    assert code != 0
    assert f"{run.path} is a run of ppo, and its options are no DQNOptions." in err
    assert "Traceback" not in err


def test_a_run_whose_environment_was_made_by_a_function_says_how_to_go_on(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    about = json.loads((run.path / "options.json").read_text())
    (run.path / "options.json").write_text(json.dumps({**about, "env": "Corridor"}))
    for words, then in {
        ("eval", str(run.path)): f"evaluate(Policy.load('{run.path}'), make)",
        ("play", str(run.path)): f"evaluate(Policy.load('{run.path}'), make)",
        ("train", "ppo", "--resume", str(run.path)): f"train(make, resume='{run.path}')",
    }.items():
        code, _, err = said(capsys, *words)
        assert code == 1
        assert f"there is no environment 'Corridor', on which {run.path} was trained: " in err
        assert then in err.splitlines()[1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--video", "nowhere/out.gif"), "there is no folder nowhere"),
        (("--video", "out.gif", "--episodes", "0"), "--episodes 0: at least 1 is needed"),
        (
            ("--video", "out.gif", "--env", "Pendulum-v1"),
            "its observations are arrays of shape (2,), those of Pendulum-v1 are arrays of shape (3,).",
        ),
        (("--video", "out.TXT"), "out.TXT is no video"),
    ],
)
def test_what_cannot_be_played_is_said_and_leaves_files_alone(
    words: tuple[str, ...], text: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out.gif").write_text("as it was")
    code, _, err = said(capsys, "play", str(run.path), *words)
    assert code != 0
    assert text in err
    assert "Traceback" not in err
    assert Path("out.gif").read_text() == "as it was"


# -- help --------------------------------------------------------------------------------------------------------------


def test_help_lists_commands_and_algorithms_without_importing_them() -> None:
    code = "import sys; from skate.cli import main\ntry: main(['rl', 'train', '--help'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert all(f"    {name} " in done.stdout for name in command.ALGORITHMS)
    assert not {"torch", "gymnasium", "numpy"} & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("algorithm", [name for name in command.ALGORITHMS if find_spec(f"skate.rl.{name}")])
def test_help_has_a_line_for_every_setting(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"skate.rl.{algorithm}")
    code, out, _ = said(capsys, "train", algorithm, "--help")
    assert code == 0
    (kind,) = (kind for name, kind in vars(module).items() if name.lower() == f"{algorithm}options")
    for name, _, _, text in options.fields(kind):
        assert text, f"{kind.__name__}.{name} does not say what it does"
        assert f"  --{name.replace('_', '-')}" in out
    assert "--resume" in out
    assert f"{command.ALGORITHMS[algorithm][1:]}." in out, "CPUs and Q-learning keep their capitals"


# -- train -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, run: Run) -> list[Any]:
    """What `ppo.train` was called with, which here takes no time."""
    from skate.rl import ppo

    calls: list[Any] = []
    really = ppo.train

    @functools.wraps(really)
    def train(env: Any, **arguments: Any) -> Run:
        calls.append((env, arguments))
        return run

    monkeypatch.setattr(ppo, "train", train)
    return calls


def test_words_become_arguments_of_train(trained: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    words = "--steps 1e5 --seed 7 --learning_rate 3e-4 --hidden 32,16 --no-anneal --normalise --quiet --stop-at=475"
    code, out, _ = said(capsys, "train", "ppo", WALK, *words.split())
    assert code == 0
    expected = {"steps": 100_000, "seed": 7, "learning_rate": 3e-4, "hidden": (32, 16), "anneal": False}
    assert trained == [(WALK, {**expected, "normalise": True, "stop_at": 475.0, "progress": False})]
    assert out.splitlines()[0].startswith(f"PPO on {WALK}: 5 ± 0 over 3 episodes; 100 steps in ")
    assert out.splitlines()[1] == "runs/ppo-walk_env-Walk-v0-1"


def test_a_resumed_run_knows_its_environment(trained: list[Any], run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "train", "ppo", "--resume", str(run.path), "--steps", "200")[0] == 0
    assert trained == [(WALK, {"steps": 200, "resume": str(run.path), "progress": None})]


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("tran", 2, "skate rl: there is no command 'tran'; did you mean train?\n  next: "),
        ("train pop", 2, "skate rl train: there is no algorithm 'pop'; did you mean ppo?\n  next: "),
        ("train", 2, "skate rl train: the following arguments are required: ALGO\n  next: "),
        ("train ppo", 2, "skate: which environment to train on was not said.\n  next: name one"),
        ("train ppo Walk-v0 --lerning-rate 1", 2, "no option --lerning-rate; did you mean --learning-rate?\n  next: "),
        ("train ppo Walk-v0 --learning-rate x", 2, "argument --learning-rate: 'x' is not float.\n  next: "),
        ("train ppo Nothing-v0", 1, "skate: there is no environment 'Nothing-v0': "),
        ("train ppo absent:Walk-v0", 1, "skate: there is no environment 'absent:Walk-v0': "),
        (f"train ppo {WALK} --steps 0", 1, "skate: --steps is 0, and it must be a whole number, at least 1."),
        (f"train ppo {WALK} --gamma 2", 1, "skate: --gamma is 2.0, and it must be at least 0 and at most 1."),
        (
            f"train dqn {WALK} --capacity 64 --minibatch 65",
            1,
            "skate: --capacity is 64, and it must be at least 65, which is --minibatch.",
        ),
        (
            "train ppo --resume RUN --steps 100",
            1,
            "is at 100 steps already, and --steps 100 says where it ends.\n  next: more --steps to go on from there; ",
        ),
        (f"train ppo {WALK} --path RUN", 1, "never overwritten.\n  next: --resume RUN goes on with it; another --path"),
        ("train ppo CartPole-v1 --resume RUN", 1, "\n  next: leave --resume out, or name the environment"),
        ("eval RUN --episodes 0", 1, "skate: --episodes is 0, and it must be a whole number, at least 1."),
        (f"train ppo {WALK} --resume nowhere", 1, "skate: nowhere is not the folder of a run"),
        (
            "eval nowhere",
            1,
            "skate: nowhere is not the folder of a run: it has no options.json.\n  next: ",
        ),
        ("eval", 2, "skate rl eval: the following arguments are required: RUN\n  next: "),
        ("play RUN --video out.avi", 2, "skate: out.avi is no video that can be written.\n  next: name a .mp4"),
        ("play RUN --env Nothing-v0", 1, "skate: there is no environment 'Nothing-v0': "),
        ("serve RUN --port 99999", 2, "argument --port: '99999' is no port; it may be from 0"),
        ("serve RUN --replicas 0", 2, "skate: --replicas 0: at least 1 is needed."),
        ("serve RUN --env CartPole-v1", 1, "skate: this policy is for other environments: its observations are"),
    ],
)
def test_a_mistake_is_two_lines(words: str, code: int, text: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found, out, err = said(capsys, *words.replace("RUN", str(run.path)).split())
    assert (found, out) == (code, "")
    assert text in err.replace(str(run.path), "RUN")
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2


def test_a_defect_has_a_traceback(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(Policy, "load", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["rl", "eval", str(run.path)])


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import skate.rl

    monkeypatch.delitem(vars(skate.rl), "ppo", raising=False)
    monkeypatch.delitem(sys.modules, "skate.rl.ppo", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = said(capsys, "train", "ppo", WALK)
    assert code == 1
    assert err.startswith("skate: skate.rl.ppo needs the package torch, which is not installed.")
    assert "next: pip install 'skate[rl]'" in err


def test_without_gymnasium_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for word in ("eval", "play"):
        code, _, err = said(capsys, word, str(run.path))
        assert code == 1
        assert err.startswith("skate: skate rl needs the package gymnasium, which is not installed.")
        assert "next: pip install 'skate[rl]'" in err


# -- eval and play -----------------------------------------------------------------------------------------------------


def test_play_writes_a_gif(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    code, out, err = said(capsys, "play", str(run.path), "--video", "out.gif", "--episodes", "2")
    assert (code, err) == (0, "")
    assert out == "episode 1: return 5 in 5 steps\nepisode 2: return 5 in 5 steps\nout.gif\n"
    with Image.open("out.gif") as image:
        assert (image.n_frames, image.size, image.info["duration"]) == (10, (48, 32), 40)


def test_a_step_that_raises_while_it_is_played_is_named(
    monkeypatch: pytest.MonkeyPatch, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(self: Any, action: Any) -> Any:
        raise StopIteration("no more tape")

    monkeypatch.setattr(importlib.import_module("walk_env").Walk, "step", step)
    code, _, err = said(capsys, "play", str(run.path), "--video", "out.gif")
    assert code == 1
    assert f"{WALK} failed: StopIteration: no more tape" in err
    assert f'"{__file__}", line {step.__code__.co_firstlineno + 1}' in err


def test_play_to_mp4_without_ffmpeg_names_the_extra(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio.v2", None)
    code, out, err = said(capsys, "play", str(run.path), "--video", "out.mp4")
    assert (code, out) == (1, "")
    assert err.splitlines()[1] == "  next: pip install 'skate[video]', or name a .gif."


@pytest.mark.parametrize("video", [["--video", "out.gif"], []], ids=["gif", "window"])
def test_play_without_what_draws_names_the_extra(
    video: list[str], run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    pole = gymnasium.make("CartPole-v1")
    Policy.create(pole.observation_space, pole.action_space).save(run.path)
    code, out, err = said(capsys, "play", str(run.path), "--env", "CartPole-v1", *video)
    assert (code, out) == (1, "")
    assert err.startswith("skate: CartPole-v1 cannot be shown: ")
    assert err.splitlines()[-1] == "  next: pip install 'skate[video]'."


def test_a_program_of_an_algorithm_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ppo.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        command.train_main("ppo")
    assert capsys.readouterr().out.startswith("usage: skate rl train ppo [ENV]")
