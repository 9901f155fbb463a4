"""Evolution strategies on CartPole: thousands of simulations, each one a task.

A generation nudges the policy in random directions, simulates every nudge and its mirror image, and moves the policy
towards the nudges that kept the pole up for longer (Salimans et al., 2017, https://arxiv.org/abs/1703.03864).

Two arrays reach the simulations through the object store: a large table of random numbers, stored once for the whole
run, and the policy, stored once a generation. A task is told only where in the table its nudge begins.
"""

import argparse
import sys
import time

import gymnasium
import numpy as np
from matplotlib.figure import Figure
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import skate

SOLVED = 475.0  # Gymnasium's own mark for CartPole-v1: the mean return of 100 episodes, where 500 is perfect.
HIDDEN = 16
PARAMETERS = 4 * HIDDEN + HIDDEN * 2  # four observations, one hidden layer, two actions
PAIRS, SIGMA, LEARNING_RATE, GENERATIONS_MAX = 256, 0.1, 0.05, 60


@skate.remote
def simulate(policy: np.ndarray, noise: np.ndarray, start: int, scale: float, seed: int) -> tuple[float, float]:
    """Play one episode with the nudged policy; return how long the pole stayed up, and the CPU seconds it took."""
    cpu_started = time.process_time()
    weights = policy + scale * noise[start : start + PARAMETERS]
    inner, outer = weights[: 4 * HIDDEN].reshape(4, HIDDEN), weights[4 * HIDDEN :].reshape(HIDDEN, 2)
    environment = gymnasium.make("CartPole-v1")
    observation, _ = environment.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        left, right = np.tanh(observation @ inner) @ outer
        observation, reward, fallen, out_of_time, _ = environment.step(int(right > left))
        total, over = total + float(reward), fallen or out_of_time
    return total, time.process_time() - cpu_started


class Simulator:
    """Tries policies: submits the simulations, shows how far they are, counts what they cost."""

    def __init__(self, noise: skate.ObjectRef[np.ndarray], progress: Progress) -> None:
        self.noise, self.progress, self.bar = noise, progress, progress.add_task("")
        self.tasks, self.cpu_s = 0, 0.0

    def play(self, label: str, policy: np.ndarray, nudges: list[tuple[int, float]], seeds: list[int]) -> np.ndarray:
        """Try every nudge of the policy, each with a seed of its own; give their returns in the same order."""
        shared = skate.put(policy)
        refs = [simulate.remote(shared, self.noise, *nudge, seed) for nudge, seed in zip(nudges, seeds, strict=True)]
        self.progress.reset(self.bar, description=label, total=len(refs))
        for _ in skate.as_completed(refs):
            self.progress.advance(self.bar)
        returns, cpu_times = zip(*skate.get(refs), strict=True)
        self.tasks, self.cpu_s = self.tasks + len(refs), self.cpu_s + sum(cpu_times)
        return np.array(returns, dtype=np.float32)


def evolve(simulator: Simulator, table: np.ndarray, rng: np.random.Generator) -> list[float]:
    """Improve a policy until it solves the task; return the mean return after each generation."""
    policy, curve = np.zeros(PARAMETERS, dtype=np.float32), []
    bar = simulator.progress.add_task("mean return", total=500)
    while len(curve) < GENERATIONS_MAX and (not curve or curve[-1] < SOLVED):
        starts = rng.integers(len(table) - PARAMETERS, size=PAIRS).tolist()
        seeds = rng.integers(2**31, size=PAIRS).tolist()  # shared by a pair: only the nudge tells the two apart
        nudges = [(start, sign * SIGMA) for sign in (1, -1) for start in starts]
        returns = simulator.play(f"generation {len(curve) + 1}", policy, nudges, seeds * 2)
        # Ranks, not returns, steer the policy: one lucky episode must not outweigh the others.
        plus, minus = returns.argsort().argsort().reshape(2, PAIRS) / (2 * PAIRS - 1)
        directions = np.stack([table[start : start + PARAMETERS] for start in starts])
        policy = (policy + LEARNING_RATE / SIGMA * (plus - minus) @ directions / PAIRS).astype(np.float32)
        fresh_seeds = rng.integers(2**31, size=100).tolist()
        curve.append(float(simulator.play("evaluation", policy, [(0, 0.0)] * 100, fresh_seeds).mean()))
        simulator.progress.update(bar, completed=int(curve[-1]))
    return curve


def plot(curve: list[float], path: str) -> None:
    """Draw the learning curve against the mark that it has to reach."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.axhline(SOLVED, color="#e76f51", linestyle="--", linewidth=1)
    axes.text(1, SOLVED - 8, f"solved: {SOLVED:.0f}", color="#e76f51", va="top")
    axes.plot(range(1, len(curve) + 1), curve, color="#264653", linewidth=2, marker="o", markersize=5)
    axes.set(title="Evolution strategies on CartPole-v1", ylim=(0, 515), xlabel="generation", ylabel="mean return")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description="Evolve a policy that keeps CartPole's pole up.")
    parser.add_argument("--cpus", type=int, help="how many CPUs to use (default: all)")
    parser.add_argument("--seed", type=int, default=2, help="seed of the whole run (default: %(default)s)")
    parser.add_argument("--plot", default="evolution.png", help="file for the learning curve (default: %(default)s)")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    columns = TextColumn("{task.description:<13}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with skate.init(num_cpus=options.cpus), Progress(*columns) as progress:
        started, cpus = time.perf_counter(), skate.cluster_resources()["CPU"]
        table = rng.standard_normal(1_000_000, dtype=np.float32)
        simulator = Simulator(skate.put(table), progress)
        curve = evolve(simulator, table, rng)
        progress.refresh()  # in a notebook rich would end with what it drew last
        wall_s = time.perf_counter() - started
    plot(curve, options.plot)
    tasks, rate, busy = simulator.tasks, simulator.tasks / wall_s, simulator.cpu_s / (wall_s * cpus)
    print(f"{tasks:,} tasks in {wall_s:.1f} s: {rate:,.0f} tasks/s, {cpus:.0f} cores {busy:.0%} busy simulating")
    result = f"mean return {curve[-1]:.0f} after {len(curve)} generations; the learning curve is in {options.plot}"
    if curve[-1] < SOLVED:
        sys.exit(f"NOT solved: {result}. Another --seed may do better.")
    print(f"solved: {result}")


if __name__ == "__main__":
    main()
