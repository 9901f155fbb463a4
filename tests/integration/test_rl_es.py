"""Evolution strategies: what they compute is right, the same on any number of CPUs, and also after a kill -9."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import skate
from rl_probes import Catch, Numbered, NumberedVector, Probe, probe
from skate.rl import es, evaluate, lane
from skate.rl.env import EnvError, make_envs
from skate.rl.policy import Policy
from skate.rl.run import Run

#: Settings with which an iteration takes no time.
QUICK: dict[str, Any] = {"hidden": (8,), "noise": 20_000, "progress": False}


@pytest.fixture(autouse=True)
def no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves have tests of their own, and drawing one takes longer than most of these runs."""
    monkeypatch.setattr(Run, "plot", lambda *_: None)


def weights(run: Run) -> bytes:
    """All weights of a run's policy, each under its name."""
    return b"".join(name.encode() + array.tobytes() for name, array in sorted(run.policy.weights.items()))


# -- the parts --------------------------------------------------------------------------------------------------------


def test_equal_returns_share_their_rank_and_the_highest_is_a_half() -> None:
    returns = np.array([[3.0, 1.0], [7.0, 3.0], [-2.0, 3.0]])
    order = sorted(returns.ravel())
    slow = [[(order.index(x) + len(order) - 1 - order[::-1].index(x)) / 2 / 5 - 0.5 for x in row] for row in returns]
    assert es.centred_ranks(returns) == pytest.approx(np.array(slow))
    assert es.centred_ranks(returns).max() == 0.5
    assert not es.centred_ranks(np.full((4, 2), 9.0)).any()


def test_chunks_cover_all_directions_and_the_last_are_small() -> None:
    split = list(es.chunks(10, 400, 32, 1))
    assert [i for first, last in split for i in range(first, last)] == list(range(10, 400))
    sizes = [last - first for first, last in split]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (32, 1)
    assert [last - first for first, last in es.chunks(0, 100, 32, 32)] == [32, 32, 32, 4]


def policy_for(env: Any, **settings: Any) -> Policy:
    one = make_envs(env, 1)
    return Policy.create(one.observation_space, one.action_space, seed=3, **settings)


def played_alone(env: gymnasium.Env[Any, Any], policy: Policy, seed: int) -> tuple[float, list[np.ndarray]]:
    """Play one greedy episode in the obvious way; its return and what was seen."""
    observation, _ = env.reset(seed=seed)
    total, over, seen = 0.0, False, []
    while not over:
        seen.append(observation)
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
        total, over = total + float(reward), terminated or truncated
    return total, seen


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "Catch"])
def test_episodes_side_by_side_are_the_episodes_of_each_moved_policy_alone(env: str) -> None:
    def make() -> Any:
        return Catch() if env == "Catch" else gymnasium.make(env, max_episode_steps=60)

    options = es.ESOptions(directions=7, sigma=0.5, noise=50_000, hidden=(8,), envs=3)
    policy = policy_for(make, hidden=(8,), normalise=env != "Catch")
    flat = np.concatenate([policy.weights[name].ravel() for name in policy.weights if name != "log_std"])
    table = np.random.default_rng(5).standard_normal(options.noise, dtype=np.float32)
    played = es.Player(make, policy, options, 11, flat.size).play(table, (flat, policy.normaliser), 4, 2, 7)

    starts, seeds = es.draw(11, 4, options, flat.size)
    slow, observed = np.zeros((5, 2)), []
    for i in range(5):
        for j, sign in enumerate((1.0, -1.0)):
            noise = table[starts[2 + i] : starts[2 + i] + flat.size]
            moved = policy.with_weights({**policy.weights, **es.named(policy, flat + np.float32(sign * 0.5) * noise)})
            slow[i, j], seen = played_alone(make(), moved, int(seeds[2 + i]))
            observed += seen
    assert played.returns == pytest.approx(slow, rel=1e-4)
    assert len(np.unique(slow)) > 1
    assert played.steps == len(observed)
    if policy.normaliser is not None:
        rows = np.array(observed, np.float64)
        assert played.moments[0] == pytest.approx(len(rows))
        assert played.moments[1] == pytest.approx(rows.sum(0), rel=1e-3, abs=1e-2)
        assert played.moments[2] == pytest.approx((rows**2).sum(0), rel=1e-3)


@pytest.mark.parametrize("mode", NumberedVector.MODES)
def test_a_vector_that_resets_itself_in_any_way_gives_whole_episodes(mode: str) -> None:
    options = es.ESOptions(directions=20, noise=1_000, hidden=(4,), envs=6)
    policy = policy_for(NumberedVector(mode), hidden=(4,))
    player = es.Player(NumberedVector(mode), policy, options, 0, sum(a.size for a in policy.weights.values()))
    inner = player._envs.step
    ended: list[tuple[int, np.ndarray]] = []

    def step(actions: np.ndarray) -> Any:
        result = inner(actions)
        ended.extend(sorted(result.finals.items()))
        return result

    player._envs.step = step
    flat = np.concatenate([array.ravel() for array in policy.weights.values()])
    played = player.play(np.zeros(1_000, np.float32), (flat, None), 1, 0, 20)

    returns, lengths, playing = np.zeros(40), np.zeros(40, int), {slot: slot for slot in range(6)}
    waiting = iter(range(6, 40))
    for slot, (name, number, length, *_) in ended:
        if (episode := playing.pop(slot, None)) is not None:
            returns[episode] = sum(Numbered.reward([name, number, k]) for k in range(int(length)))
            lengths[episode] = length
            if (following := next(waiting, None)) is not None:
                playing[slot] = following
    assert not playing
    assert played.returns.ravel() == pytest.approx(returns, abs=1e-5)
    assert played.steps == lengths.sum()


def test_the_gradient_and_adam_are_those_of_a_slow_reference(runtime: Any) -> None:
    options = es.ESOptions(
        directions=12, sigma=0.3, learning_rate=0.07, weight_decay=0.01, noise=5_000, chunk=4, tree=3
    )
    policy = policy_for(probe("both"), hidden=(8,))
    strategy = es.Strategy(probe("both"), policy, options, 9, single=True)
    weights = np.concatenate([array.ravel() for array in policy.weights.values()]).astype(np.float64)
    rng = np.random.default_rng(np.random.SeedSequence(9, spawn_key=(0,)))
    table = rng.standard_normal(options.noise, dtype=np.float32)
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for iteration in range(1, 4):
        played = strategy.improve()
        starts, _ = es.draw(9, iteration, options, weights.size)
        ranks = es.centred_ranks(played.returns)
        gradient = sum(
            sign * rank * table[start : start + weights.size]
            for start, pair in zip(starts, ranks, strict=True)
            for sign, rank in zip((1, -1), pair, strict=True)
        )
        gradient = gradient / 24 - 0.01 * weights
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        corrected = mean / (1 - 0.9**iteration), square / (1 - 0.999**iteration)
        weights = weights + 0.07 * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
        found = np.concatenate([array.ravel() for array in strategy.policy.weights.values()])
        assert found == pytest.approx(weights, abs=1e-4)
    assert abs(found - np.concatenate([array.ravel() for array in policy.weights.values()])).max() > 0.05


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [0, 2])
def test_the_action_that_an_observation_asks_for_is_found(tree: int, tmp_path: Path, runtime: Any) -> None:
    run = es.train(probe("both"), 3_000, seed=1, path=str(tmp_path / "run"), tree=tree, sigma=0.3, **QUICK)
    assert run.score is not None
    assert run.score.mean == 1.0
    assert run.repeatable
    assert all(row["busy"] > 0 and row["driver"] > 0 for row in run.history)


def test_a_continuous_action_is_found_with_scaled_observations(tmp_path: Path, runtime: Any) -> None:
    run = es.train(probe("both", continuous=True), 6_000, path=str(tmp_path / "run"), normalise=True, **QUICK)
    assert run.score is not None
    assert run.score.mean > 0.8
    assert run.policy.normaliser is not None
    assert run.policy.normaliser.variance == pytest.approx(1.0, abs=0.1)
    assert (run.policy.weights["log_std"] == 0).all()


def learnt(env: Any, iterations: int, single: bool = True, **settings: Any) -> bytes:
    """All weights, and the statistics of observations, after some iterations."""
    options = es.ESOptions(hidden=(8,), noise=20_000, **settings)
    strategy = es.Strategy(env, policy_for(env, hidden=(8,), normalise=env is not Catch), options, 4, single)
    for _ in range(iterations):
        strategy.improve()
    tensors, _ = strategy.state()
    return b"".join(array.tobytes() for array in tensors.values())


def test_ten_iterations_give_the_same_bits_on_1_2_and_4_cpus() -> None:
    found = []
    for cpus in (1, 2, 4):
        with skate.init(num_cpus=cpus):
            vector = learnt("CartPole-v1", 10, single=False, directions=12, chunk=3)
            found.append((vector, learnt(Catch, 10, directions=12, chunk=3)))
    assert found[0] == found[1] == found[2]


def test_a_run_goes_on_to_the_weights_that_it_would_have_had(tmp_path: Path, runtime: Any) -> None:
    settings = {**QUICK, "directions": 8, "normalise": True}
    whole = es.train(probe("both"), 96, seed=2, path=str(tmp_path / "whole"), **settings)
    first = es.train(probe("both"), 48, seed=2, path=str(tmp_path / "parts"), **settings)
    again = es.train(probe("both"), 96, resume=str(first.path), progress=False)
    assert len(again.history) == len(whole.history) == 6
    assert weights(again) == weights(whole) != weights(first)
    assert again.score is not None
    assert whole.score is not None
    assert again.score.returns.tolist() == whole.score.returns.tolist()


class Deadly(Probe):
    """The probe, in which one step of the whole run kills the process that does it."""

    def __init__(self, mark: str) -> None:
        super().__init__("both")
        self._mark = mark

    def step(self, action: Any) -> Any:
        if not os.path.exists(self._mark):
            open(self._mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def deadly_aggregator(mark: str) -> type[es.Aggregator]:
    """An aggregator that is killed once in the whole run, after it has had its share played."""

    class DeadlyAggregator(es.Aggregator):
        def add_up(self, *arguments: Any) -> np.ndarray:
            if not os.path.exists(mark):
                open(mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().add_up(*arguments)

    return DeadlyAggregator


@pytest.mark.parametrize("who", ["worker", "aggregator"])
def test_a_process_that_is_killed_changes_nothing(
    who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_runtime: Any
) -> None:
    whole = learnt(probe("both"), 3, directions=8)
    mark = tmp_path / "killed"
    if who == "aggregator":
        monkeypatch.setattr(es, "Aggregator", deadly_aggregator(str(mark)))
    env = (lambda: Deadly(str(mark))) if who == "worker" else probe("both")
    assert learnt(env, 3, directions=8) == whole
    assert mark.exists()


class Broken(Probe):
    """The probe, with a payment that is not a number, or none at all."""

    def __init__(self, payment: Any) -> None:
        super().__init__("action")
        self._payment = payment

    def _pay(self, action: Any, side: float) -> float:
        return 1.0 / self._payment


@pytest.mark.parametrize(
    ("payment", "text"), [(0, "division by zero"), (float("nan"), "return that is not a finite number")]
)
def test_an_environment_that_fails_is_an_error_that_names_it(
    payment: float, text: str, tmp_path: Path, runtime: Any
) -> None:
    def broken() -> Broken:
        return Broken(payment)

    with pytest.raises(EnvError, match=text) as caught:
        es.train(broken, 64, path=str(tmp_path / "run"), **QUICK)
    assert "broken failed" in str(caught.value).splitlines()[0], "without the way that the error took"
    assert type(caught.value) is EnvError


@pytest.mark.parametrize(
    ("observation", "reward", "over", "text"),
    [
        (0.0, "much", True, "environment 0 gave 'much' as a reward, and that is one number"),
        (0.0, 1 + 2j, True, "gave .* as a reward, and that is one number"),
        (0.0, np.nan, True, "an episode has a return that is not a finite number"),
        (np.nan, 1.0, False, "environment [01] gave an observation that is NaN"),
        (np.inf, 1.0, False, "environment [01] gave an observation that is infinite"),
        (0.0, 1.0, False, "an episode has not ended after 40 steps"),
    ],
)
def test_what_an_environment_does_wrong_is_named_with_its_line(
    observation: float, reward: Any, over: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(Probe):
        def step(self, action: Any) -> Any:
            return np.full(1, observation, np.float32), reward, over, False, {}

    def make() -> Odd:
        return Odd("action")

    monkeypatch.setattr(es, "EPISODE_STEPS_MAX", 40)
    monkeypatch.setattr(lane, "EPISODE_STEPS_MAX", 40)
    options = es.ESOptions(directions=2, noise=1_000, hidden=(4,), envs=2)
    policy = policy_for(make, hidden=(4,))
    flat = np.concatenate([policy.weights[name].ravel() for name in policy.weights])
    player = es.Player(make, policy, options, 0, flat.size)
    with pytest.raises(ValueError, match=text) as caught:
        player.play(np.zeros(1_000, np.float32), (flat, None), 1, 0, 2)
    assert f"{__file__}:{Odd.step.__code__.co_firstlineno}" in str(caught.value) or "has not ended" in text


def test_an_environment_that_ends_its_process_does_not_end_the_driver(tmp_path: Path, runtime: Any) -> None:
    driver = os.getpid()

    def crashes() -> Any:
        if os.getpid() == driver:
            raise AssertionError("an environment was made in the driver")
        print("no licence", flush=True)
        os._exit(7)

    with pytest.raises(EnvError, match=r"crashes: lane [01] died 3 times in a row(.|\n)*no licence"):
        es.train(crashes, 64, path=str(tmp_path / "run"), **QUICK)


@pytest.mark.parametrize("tree", [0, 1])
def test_a_task_that_keeps_dying_is_an_error_that_names_the_environment(
    tree: int, tmp_path: Path, runtime: Any
) -> None:
    class Crashes(Probe):
        def step(self, action: Any) -> Any:
            print("no licence", flush=True)
            os._exit(7)

    def crashes() -> Crashes:
        return Crashes("action")

    with pytest.raises(EnvError, match=r"crashes: task play stopped because its worker died(.|\n)*no licence"):
        es.train(crashes, 64, path=str(tmp_path / "run"), **QUICK | {"tree": tree})


def test_an_id_that_only_the_driver_has_registered_is_known_in_tasks(tmp_path: Path, runtime: Any) -> None:
    gymnasium.register("HereAlone-v0", lambda: probe("both")(), max_episode_steps=3)
    try:
        assert es.train("HereAlone-v0", 100, path=str(tmp_path / "run"), directions=8, **QUICK).steps >= 100
    finally:
        del gymnasium.registry["HereAlone-v0"]


def test_a_factory_of_vectors_of_one_size_will_do(tmp_path: Path, runtime: Any) -> None:
    def three() -> Any:
        return NumberedVector("SAME_STEP")(3)

    run = es.train(three, 100, path=str(tmp_path / "run"), directions=8, **QUICK)
    assert run.steps >= 100
    assert len(evaluate(run.policy, three, episodes=4).returns) == 4


def test_settings_that_cannot_be_are_refused(tmp_path: Path, runtime: Any) -> None:
    for wrong, text in (({"tree": 9}, "tree is at most 8"), ({"chunk": 0}, "chunk is 0"), ({"noise": 30}, "least 68")):
        with pytest.raises(ValueError, match=text):
            es.train(probe("both"), 64, path=str(tmp_path / str(wrong)), **{**QUICK, "directions": 8, **wrong})
