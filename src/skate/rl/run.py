"""A run: the folder in which a training leaves what it did, and from which it goes on.

    with Run.begin("ppo", env, options, steps=100_000, seed=1) as run:
        ...                                         # restore what run.state has, if it is not None
        while run.more():
            ...                                     # simulate and improve
            run.log(steps, returns=batch.episode_returns, policy=policy, loss=loss)
            if run.due():
                run.checkpoint(policy, tensors, meta)
        run.finish(policy)

The folder has

    options.json             algorithm, environment, options, seed and versions
    progress.jsonl           one line an iteration: `run.history`
    checkpoint.safetensors   everything that resuming needs: tensors, and numbers as JSON
    policy.safetensors       the policy of the last checkpoint
    summary.json, curve.png  the final score and the learning curve, once the run has finished

Invariant: a file is never half written, whenever the process is killed. Files are written beside, synchronised and
           renamed. progress.jsonl grows by lines: a torn last line is dropped when it is read, and a run that is
           resumed cuts the file back to its checkpoint.
Idea:      a state that can be saved exists between two iterations only. So the first Ctrl-C makes a checkpoint due
           and is raised when that is written; a second one is raised at once, and the checkpoint before it stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skate.rl import files
from skate.rl import options as option_fields
from skate.rl.progress import Bar, duration, significant
from skate.util.files import written_beside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from skate.rl.policy import Policy
    from skate.rl.simulate import Score, Simulators

#: Mean returns are those of this number of episodes, the last ones.
EPISODES_RECENT = 100
EPISODES_EVALUATED = 20
EPISODES_FINAL = 100
EVALUATE_EVERY_STEPS = 5_000
#: Episodes of evaluations are none that were trained on.
EVALUATION_SEED = 1_000_000
#: Checkpoints are at least that far apart, and take at most 1 / CHECKPOINT_PARTS of the time.
CHECKPOINT_EVERY_S = 30.0
#: The first one of a run comes sooner.
CHECKPOINT_FIRST_S = 3.0
CHECKPOINT_PARTS = 20

#: The policy of a checkpoint that is being written.
NEXT_POLICY = ".next.safetensors"

Row = dict[str, Any]
Callback = Callable[["Run", Row], Any]


class Run:
    """A training: its options, its history, its policy.

    >>> run = ppo.train("CartPole-v1", steps=100_000, seed=1)
    >>> print(run)
    PPO on CartPole-v1: 500 ± 0 over 100 episodes; 100,352 steps in 6.1 s (16,500/s)
    >>> run.history[-1]["mean_return"], run.path
    (487.3, PosixPath('runs/ppo-CartPole-v1-1'))
    >>> Run.load(run.path).policy.act(observation)
    1
    """

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, Any], env: Any = None) -> None:
        self.path = Path(path)
        self.about = dict(about)
        self.options: dict[str, Any] = about["options"]
        self.algorithm: str = about["algorithm"]
        self.env = about["env"] if env is None else env
        self.env_name: str = about["env"]
        self.seed: int = about["seed"]
        self.target: int = about["steps"]
        self.steps = 0
        self.history: list[Row] = []
        #: What a checkpoint has, if this run is resumed from one: {"tensors": …, "meta": …}.
        self.state: dict[str, Any] | None = None
        #: The score of the final policy, or of the last one that was evaluated.
        self.score: Score | None = None
        #: Why the same options and seed may give other numbers; empty if they give the same.
        self.reasons: list[str] = []
        #: How policies are evaluated; an algorithm may put the method of its simulators here.
        self.evaluator: Callable[..., Score] | None = None
        self._callbacks: tuple[Callback, ...] = ()
        self._progress: bool | None = None
        self._every = 0
        self._stop_at: float | None = None
        self._policy: Policy | None = None
        self._simulators: Simulators | None = None
        self._recent: deque[float] = deque(maxlen=EPISODES_RECENT)
        self._seconds = 0.0
        self._since: float | None = None
        self._saving_s = 0.0
        #: The steps of the last checkpoint, and how many times the run was resumed.
        self._saved_steps: int | None = None
        self._resumes = 0
        self._resumed = self._has_gone_on = self._stopped = self._interrupted = self._finishing = False

    # -- beginning and ending ------------------------------------------------------------------------------------------

    @classmethod
    def begin(
        cls,
        algorithm: str,
        env: Any,
        options: Any,
        steps: float,
        seed: int = 0,
        path: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
        evaluate_every: float = 0,
        stop_at: float | None = None,
    ) -> Run:
        """Make the folder of a new run, or open that of an earlier one to go on from its checkpoint.

        A run that is resumed keeps its seed. `steps` is where it ends, those before the checkpoint included: a run that
        is there already is a ValueError when it is entered.
        """
        path = path if path is None else option_fields.folder("path", path)
        resume = resume if resume is None else option_fields.folder("resume", resume)
        listed = tuple(callbacks) if isinstance(callbacks, Iterable) else (None,)
        if not all(map(callable, listed)):
            wanted = "a list of functions of the run and its newest row, such as [print]"
            raise TypeError(f"callbacks is {callbacks!r}, and it must be {wanted}.")
        every = option_fields.whole("evaluate_every", evaluate_every, 0)
        if stop_at is not None and (isinstance(stop_at, str) or not stop_at == stop_at):
            raise ValueError(f"stop_at is {stop_at!r}, and it must be a number: the score at which the run ends.")
        from skate.rl.env import name_of, portable

        portable(env)  # raises an error for what is no environment, before there is a folder

        about: dict[str, Any] = {
            "algorithm": algorithm,
            "env": name_of(env),
            "options": dataclasses.asdict(options),
            "seed": option_fields.whole("seed", seed, 0),
            "steps": option_fields.whole("steps", steps, 1),
            "versions": _versions(),
        }
        if resume is None:
            run = cls(files.new_folder(path, algorithm, about["env"]), about, env)
        else:
            old = option_fields.stored(resume)
            if (old["algorithm"], old["env"]) != (algorithm, about["env"]):
                raise ValueError(
                    f"{resume} is a run of {old['algorithm']} on {old['env']}, and cannot go on as {algorithm} on "
                    f"{about['env']}.\n  next: leave resume= out, or name the environment and the algorithm of the run."
                )
            if path is not None and path != resume:
                raise ValueError("a run that is resumed goes on in its own folder.\n  next: leave path= out.")
            run = cls(resume, {**about, "seed": old["seed"]}, env)
        run._resumed = resume is not None
        run._callbacks, run._progress, run._stop_at = listed, progress, stop_at
        run._every = every or (EVALUATE_EVERY_STEPS if stop_at is not None else 0)
        return run

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run: its options, history, score and policy."""
        run = cls(path, option_fields.stored(path))
        run.history = files.read_rows(run.path / "progress.jsonl")
        if run.history:
            run.steps, run._seconds = run.history[-1]["steps"], run.history[-1]["seconds"]
        with contextlib.suppress(FileNotFoundError):
            run.reasons = files.read_texts(run.path / "checkpoint.safetensors")["run"]["reasons"]
        with contextlib.suppress(FileNotFoundError):
            summary = json.loads((run.path / "summary.json").read_text())
            if summary["steps"] == run.steps:
                run.reasons = summary["reasons"]
                run._seconds = summary["seconds"]
                from skate.rl.simulate import Score

                arrays = {name: np.asarray(summary["score"].pop(name)) for name in ("returns", "lengths")}
                run.score = Score(**{**summary["score"], **arrays})
        return run

    def __enter__(self) -> Run:
        with contextlib.ExitStack() as stack:
            self._lock(stack)
            if self._resumed:
                self._restore()
            if not self._resumed:
                self._write_options()
            self._file = stack.enter_context(open(self.path / "progress.jsonl", "a", encoding="utf-8"))
            self._bar = stack.enter_context(contextlib.closing(Bar(self, self._progress)))
            for callback in self._callbacks:
                stack.callback(getattr(callback, "close", bool))
            handler = signal.getsignal(signal.SIGINT)
            if handler not in (None, signal.SIG_IGN) and threading.current_thread() is threading.main_thread():
                stack.callback(signal.signal, signal.SIGINT, handler)
                signal.signal(signal.SIGINT, self._on_interrupt)
            self._stack = stack.pop_all()
        self._began = self.steps, self._seconds
        self._since = self._saved_at = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._seconds, self._since = self.seconds, None
        self._stack.close()
        if kind is not None and not self.history and not self._resumed:
            # It never began, perhaps for a name that was misspelt: the folder is free for the next attempt.
            for name in ("options.json", "progress.jsonl"):
                (self.path / name).unlink()
            with contextlib.suppress(OSError):
                self.path.rmdir()  # unless there is more in it
        elif kind is not None and issubclass(kind, KeyboardInterrupt) and self._progress is not False:
            saved = "" if self._saved_steps == self.steps else f" The last checkpoint is of {self._saved_steps or 0:,}."
            then = f"To go on: resume={str(self.path)!r}, or --resume."
            sys.stderr.write(f"Stopped at {self.steps:,} steps.{saved} {then}\n")

    def _write_options(self) -> None:
        files.write(self.path / "options.json", json.dumps(self.about, indent=2).encode() + b"\n")

    def _on_interrupt(self, number: int, frame: object) -> None:
        if self._interrupted or self._finishing:
            raise KeyboardInterrupt
        self._interrupted = True
        if self._progress is not False:
            # Not through a buffer: what was interrupted may be writing to it.
            os.write(2, b"\nCtrl-C: the run ends after this iteration; Ctrl-C again ends it at once.\n")

    def _lock(self, stack: contextlib.ExitStack) -> None:
        self._folder = os.open(self.path, os.O_RDONLY)
        stack.callback(os.close, self._folder)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(f"{self.path} is in use: another process trains in it.") from None
        except OSError:
            pass  # a file system without locks

    def _restore(self) -> None:
        kept: dict[str, Any] = {"steps": 0, "seconds": 0.0, "rows": 0, "version": None, "recent": [], "reasons": []}
        with contextlib.suppress(FileNotFoundError):
            file = self.path / "checkpoint.safetensors"
            tensors, texts = files.read_tensors(file)
            if not isinstance(texts.get("run"), dict):
                raise ValueError(f"{file} is not a checkpoint of a run: it does not say where the run was.")
            kept = texts["run"]
            self._check_target(kept["steps"])
            self.state = {"tensors": tensors, "meta": texts["meta"]}
        if self.state is None and (self.path / "policy.safetensors").exists():
            raise ValueError(
                f"{self.path} has a policy and no checkpoint.safetensors, which is written first: it was removed.\n"
                "  next: begin a new run with another path=."
            )
        from skate.rl.policy import Policy

        # The process may have been killed after it had written the checkpoint, and before it had renamed its policy.
        if (next_policy := self.path / NEXT_POLICY).exists() and Policy.load(next_policy).version == kept["version"]:
            os.replace(next_policy, self.path / "policy.safetensors")
        for leftover in {*self.path.glob(".*.safetensors*"), *self.path.glob(".*.new")}:
            leftover.unlink()
        self.steps, self._seconds = kept["steps"], kept["seconds"]
        self._recent.extend(kept["recent"])
        self._saved_steps = self.steps if self.state is not None else None
        self._resumes = kept.get("resumes", 0) + 1
        last = f"{self._resumes} times, the last time " if self._resumes > 1 else ""
        others = [reason for reason in kept["reasons"] if not reason.startswith("it was resumed ")]
        self.reasons = [*others, f"it was resumed {last}at {self.steps:,} steps"]
        self.history = files.read_rows(self.path / "progress.jsonl")[: kept["rows"]]
        files.write(self.path / "progress.jsonl", "".join(json.dumps(row) + "\n" for row in self.history).encode())

    def _check_target(self, steps: int) -> None:
        """Raise ValueError if the checkpoint is at the target or beyond. A run that ended without its score may end."""
        ended = Run.load(self.path)
        if self.target <= steps and (ended.score is not None or steps < ended.target):
            raise ValueError(
                f"{self.path} is at {steps:,} steps already, and steps={self.target:,} says where it ends.\n"
                f"  next: more steps= to go on from there; Run.load({str(self.path)!r}) has what it did."
            )

    # -- the loop ------------------------------------------------------------------------------------------------------

    def more(self) -> bool:
        """Whether there is an iteration to do: steps are left, and neither `stop_at` nor `stop()` has ended the run."""
        return self.steps < self.target and not self._stopped

    @property
    def left(self) -> float:
        """The part of the run that is still to come, from 1 to 0: what step sizes fall with."""
        return max(0.0, 1.0 - self.steps / self.target)

    @contextlib.contextmanager
    def simulators(self, lanes: int, envs: int | None = None) -> Iterator[Simulators]:
        """Open simulators of the run's environment. They evaluate its policies too, and deaths of lanes are noted.

        envs: how many environments each lane has; None if the lanes only evaluate.
        """
        from skate.rl.simulate import Simulators

        with Simulators(self.env, lanes=lanes, envs=envs, seed=self.fresh_seed) as simulators:
            self.evaluator, self._simulators = simulators.evaluate, simulators
            try:
                yield simulators
            finally:
                self.evaluator = self._simulators = None

    def stop(self) -> None:
        """End the run after this iteration; for callbacks."""
        self._stopped = True

    def log(self, steps: float, *, returns: Iterable[float] = (), policy: Policy | None = None, **numbers: Any) -> Row:
        """Record an iteration: the steps so far, the returns of episodes that have ended, and any numbers.

        With `policy`, the policy is evaluated whenever `evaluate_every` says so. The time that takes is not counted.
        """
        self._recent.extend(float(value) for value in returns)
        if self._simulators is not None and self._simulators.restarts:
            self.not_repeatable("a lane died and was started again")
        before, self.steps = self.steps, int(steps)
        row: Row = {
            "iteration": len(self.history) + 1,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "steps_per_second": round(self.rate, 1),
            "mean_return": float(np.mean(self._recent)) if self._recent else None,
            **numbers,
        }
        if policy is not None and self._every and self.steps // self._every > before // self._every:
            self.score = self._evaluate(policy, EPISODES_EVALUATED)
            row["score"] = self.score.mean
            self._stopped |= self._stop_at is not None and self.score.mean >= self._stop_at
        row = {name: _plain(value) for name, value in row.items()}
        if self._resumed and not self._has_gone_on:
            self._has_gone_on = True
            self._write_options()  # not before: with options that cannot be, the folder stays as it was
        self.history.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self._bar.show(self, row)
        for callback in self._callbacks:
            callback(self, row)
        return row

    def due(self) -> bool:
        """Whether a checkpoint is due: after some time, after Ctrl-C, and at the end."""
        first_s = CHECKPOINT_FIRST_S if self._saved_steps is None else CHECKPOINT_EVERY_S
        wait_s = max(min(first_s, CHECKPOINT_EVERY_S), CHECKPOINT_PARTS * self._saving_s)
        return self._interrupted or not self.more() or time.monotonic() - self._saved_at > wait_s

    def checkpoint(self, policy: Policy, tensors: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Save all that resuming needs; then, if Ctrl-C was pressed, raise KeyboardInterrupt.

        After a resume `policy` is that of the checkpoint, also if the process was killed between the two files.
        """
        self._check_finite(policy)
        begin = time.monotonic()
        kept: dict[str, Any] = {"steps": self.steps, "seconds": self.seconds, "rows": len(self.history)}
        kept |= {"version": policy.version, "recent": list(self._recent)}
        kept |= {"reasons": self.reasons, "resumes": self._resumes}
        texts = {"meta": dict(meta), "run": kept}
        os.fsync(self._file.fileno())
        policy.save(self.path / NEXT_POLICY)
        files.write_tensors(self.path / "checkpoint.safetensors", tensors, texts)
        os.replace(self.path / NEXT_POLICY, self.path / "policy.safetensors")
        os.fsync(self._folder)
        self._policy = policy
        self._saved_at, self._saved_steps = time.monotonic(), self.steps
        self._saving_s = self._saved_at - begin
        if self._interrupted:
            raise KeyboardInterrupt

    def finish(self, policy: Policy, score: Score | None = None) -> None:
        """Save the final policy, its score over 100 episodes unless one is given, and the learning curve."""
        self._check_finite(policy)
        self._finishing = True
        self._seconds, self._since = self.seconds, None
        policy.save(self.path)
        self._policy = policy
        self.score = self._evaluate(policy, EPISODES_FINAL) if score is None else score
        score_json = {name: np.asarray(value).tolist() for name, value in vars(self.score).items()}
        summary = {"steps": self.steps, "seconds": self.seconds, "reasons": self.reasons, "score": score_json}
        files.write(self.path / "summary.json", json.dumps(summary).encode() + b"\n")
        self.plot(self.path / "curve.png")

    def _check_finite(self, policy: Policy) -> None:
        """Raise ValueError if a learner has diverged, before its weights take the place of those that could act."""
        for name, array in policy.weights.items():
            if not np.isfinite(array).all():
                raise ValueError(
                    f"{self.algorithm} has diverged at {self.steps:,} steps: {name} has weights that are not finite.\n"
                    "  next: a smaller learning_rate; the last checkpoint stays as it was, for resume=."
                )

    def check_network(self, policy: Policy) -> None:
        """Raise ValueError if the policy of the checkpoint has another network than `policy`."""
        old = self.policy
        if old.network != policy.network or (old.normaliser is None) != (policy.normaliser is None):
            raise ValueError(
                f"the policy in {self.path} is of another network than these settings and this environment make.\n"
                "  next: resume with the settings of its network (hidden, activation, normalise), or begin a new run."
            )

    def not_repeatable(self, why: str) -> None:
        """Note that the same options and seed may give other numbers, and why; the same reason is noted once."""
        if why not in self.reasons:
            self.reasons.append(why)

    def _evaluate(self, policy: Policy, episodes: int) -> Score:
        from skate.rl.simulate import evaluate

        evaluator = self.evaluator or functools.partial(evaluate, env=self.env)
        self._bar.say(f"evaluating {episodes} episodes")
        with self._paused():
            score = evaluator(policy, episodes=episodes, seed=self.seed + EVALUATION_SEED)
        self._bar.say("")
        return score

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        runs = self._since is not None
        self._seconds, self._since = self.seconds, None
        try:
            yield
        finally:
            self._since = time.monotonic() if runs else None

    # -- what there is to see ------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds of training so far, without evaluations, with those before it was resumed."""
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    @property
    def rate(self) -> float:
        """Steps a second since the run began, or was resumed."""
        steps, seconds = getattr(self, "_began", (0, 0.0))
        return (self.steps - steps) / max(self.seconds - seconds, 1e-9)

    @property
    def fresh_seed(self) -> int:
        """The seed for what begins now. It is the run's own, and another one after each resume: what was drawn before
        is not drawn again."""
        if not self.steps:
            return self.seed
        return int(np.random.SeedSequence([self.seed, self.steps]).generate_state(1)[0] >> 1)

    @property
    def policy(self) -> Policy:
        """The policy of the last checkpoint, or the final one."""
        if self._policy is None:
            from skate.rl.policy import Policy

            self._policy = Policy.load(self.path)
        return self._policy

    @property
    def repeatable(self) -> bool:
        """Whether the same options and seed give the same numbers; if not, `reasons` says why."""
        return not self.reasons

    def plot(self, file: str | os.PathLike[str] | None = None) -> Figure:
        """Draw mean return and scores over steps; with `file`, save the picture there (PNG, SVG, PDF by its name)."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        for name, style, label in (
            ("mean_return", {"linewidth": 1.6}, f"mean of the last {EPISODES_RECENT} episodes"),
            ("score", {"marker": "o", "linestyle": "none", "markersize": 4}, f"score of {EPISODES_EVALUATED} episodes"),
        ):
            points = [(row["steps"], row[name]) for row in self.history if row.get(name) is not None]
            if points:
                # One point has no line: it gets a marker.
                alone: dict[str, Any] = {"marker": "o"} if len(points) == 1 else {}
                axes.plot(*zip(*points), label=label, **{**style, **alone})
        if self.score is not None:
            axes.axhline(self.score.mean, color="grey", linestyle=":", linewidth=1, label=f"at the end: {self.score}")
        title = f"{self.algorithm.upper()} on {self.env_name}, seed {self.seed}"
        axes.set(xlabel="steps", ylabel="return", title=title)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if axes.lines:
            axes.legend(frameon=False, fontsize="small")
        if file is not None:
            with written_beside(Path(file)) as new:
                figure.savefig(new, dpi=120, format=Path(file).suffix[1:] or "png")
        return figure

    def __str__(self) -> str:
        rate = significant(self.steps / max(self.seconds, 1e-9))
        took = f"{self.steps:,} steps in {duration(self.seconds)} ({rate}/s)"
        last = next((row["mean_return"] for row in reversed(self.history) if row["mean_return"] is not None), None)
        score = str(self.score or ("no episode has ended" if last is None else f"mean return {last:.4g}"))
        why = f"; not repeatable: {'; '.join(self.reasons)}" if self.reasons else ""
        return f"{self.algorithm.upper()} on {self.env_name}: {score}; {took}{why}"

    def __repr__(self) -> str:
        return f"<Run {str(self.path)!r}: {self}>"


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in ("skate", "numpy", "torch", "gymnasium"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _plain(value: Any) -> Any:
    """A number for JSON, which has neither numpy's types nor NaN."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
