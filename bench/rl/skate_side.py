"""Rows on Skate."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import tools


def pendulum(steps: int = 1_000_000, lanes: int = 2) -> dict[str, Any]:
    """Simulate without a policy in two lanes of one environment each."""
    from skate.rl import Simulators

    with Simulators("Pendulum-v1", lanes=lanes, envs=1) as sims:
        sims.sample(None, steps=1_000)
        began = time.perf_counter()
        batch = sims.sample(None, steps=steps)
        return {"steps_per_s": batch.steps / (time.perf_counter() - began)}


def random(env: str = "CartPole-v1", steps: int = 4_000_000, envs: int = 128, lanes: int = 2) -> dict[str, Any]:
    """Simulate without a policy, in gymnasium's vector version of the environment if there is one."""
    from skate.rl import Simulators

    with Simulators(env, lanes=lanes, envs=envs // lanes) as sims:
        sims.sample(None, steps=100 * envs)
        began = time.perf_counter()
        batch = sims.sample(None, steps=steps)
        return {"steps_per_s": batch.steps / (time.perf_counter() - began)}


def simulations(equal: bool = True, cores: int = 2, scale: int = 100) -> dict[str, Any]:
    """Simulations as tasks: three of equal length for each of two CPUs, or sixty of 10 to 1,000 times `scale` steps."""
    import bare
    import skate

    @skate.remote
    def simulate(length: int) -> int:
        import gymnasium
        import numpy as np

        if "env" not in globals():
            globals()["env"] = gymnasium.make("Pendulum-v1", disable_env_checker=True)
            globals()["actions"] = [np.zeros(1, np.float32)] * 100_000
        globals()["env"].reset(seed=0)
        bare.simulate(globals()["env"], length, globals()["actions"])
        return length

    with skate.init(num_cpus=cores):
        skate.get([simulate.remote(10) for _ in range(8)])
        wanted = [300 * scale] * 6 if equal else [scale * length for length in tools.lengths()]
        began = time.perf_counter()
        done = sum(skate.get([simulate.remote(length) for length in wanted]))
        return {"steps_per_s": done / (time.perf_counter() - began)}


def rollout(env: str, steps: int, vector: bool = True, envs: int = 8, lanes: int = 2) -> dict[str, Any]:
    """Collect steps with a policy of 64 x 64."""
    import gymnasium

    from skate.rl import Policy, Simulators

    make: Any = env if vector else lambda: gymnasium.make(env)
    with Simulators(make, lanes=lanes, envs=envs // lanes) as sims:
        policy = Policy.create(sims.observation_space, sims.action_space)
        sims.sample(policy, steps=envs * 64)
        began = time.perf_counter()
        batch = sims.sample(policy, steps=steps)
        return {"steps_per_s": batch.steps / (time.perf_counter() - began)}


def ppo(env: str = "CartPole-v1", steps: int = 50_000, **settings: Any) -> dict[str, Any]:
    """PPO from end to end."""
    from skate.rl import ppo

    with tempfile.TemporaryDirectory() as folder:
        run = ppo.train(env, steps, seed=1, path=os.path.join(folder, "run"), progress=False, **settings)
    return {"steps_per_s": run.history[-1]["steps"] / run.history[-1]["seconds"]}


def score(algorithm: str, env: str, steps: float, at: float, seed: int = 1, **settings: Any) -> dict[str, Any]:
    """Wall time and steps to a score, with the start of the process and all imports."""
    from skate import rl

    train = getattr(rl, algorithm).train
    if env in tools.OWN:
        env = tools.own(env)
    # The interpreter and the imports come before the run's own clock, which leaves evaluations out.
    before_s = time.perf_counter() - tools.STARTED
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            env,
            steps,
            seed=seed,
            path=os.path.join(folder, "run"),
            progress=False,
            evaluate_every=tools.EVALUATE_EVERY,
            stop_at=at,
            **settings,
        )
    last = run.history[-1]
    reached = last.get("score") is not None and last["score"] >= at
    return {
        "seconds": before_s + last["seconds"],
        "steps": last["steps"],
        "score": last.get("score"),
        "reached": reached,
    }


def curve(algorithm: str, env: str, steps: float, every: float, seed: int = 1, **settings: Any) -> dict[str, Any]:
    """The score of 20 episodes each time `every` steps were made, and that of 100 at the end."""
    from skate import rl

    made = tools.own(env) if env in tools.OWN else env
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run")
        train = getattr(rl, algorithm).train
        run = train(made, steps, seed=seed, path=path, progress=False, evaluate_every=every, **settings)
    points = [(row["steps"], row["score"]) for row in run.history if "score" in row]
    return {"score": run.score.mean, "seconds": run.seconds, "curve": points}


def first_gradient() -> dict[str, Any]:
    """From the beginning of the program to the end of the first gradient step."""
    from skate.rl import ppo

    with tempfile.TemporaryDirectory() as folder:
        ppo.train(
            "CartPole-v1",
            1,
            seed=1,
            path=os.path.join(folder, "run"),
            progress=False,
            epochs=1,
            minibatch=10**6,
            callbacks=[_note],
        )
    return {"seconds": _noted[0] - tools.STARTED}


_noted: list[float] = []


def _note(run: Any, row: Any) -> None:
    _noted.append(time.perf_counter())


def impala(env: str = "CartPole-v1", steps: int = 500_000, **settings: Any) -> dict[str, Any]:
    """IMPALA: steps a second, and which side waits."""
    from skate.rl import impala

    with tempfile.TemporaryDirectory() as folder:
        run = impala.train(env, steps, seed=1, path=os.path.join(folder, "run"), progress=False, **settings)
    rows = run.history[len(run.history) // 4 :]
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in ("waiting", "busy", "lag")}
    slower = max(1 - mean["waiting"], mean["busy"])
    rate = run.history[-1]["steps"] / run.history[-1]["seconds"]
    return {"steps_per_s": rate, "slower_side_busy": slower, **mean}


def es(env: str, episodes: int, generations: int, cores: int = 2, **settings: Any) -> dict[str, Any]:
    """Evolution strategies: steps a second after a first generation, how busy the CPUs are, and the driver's share."""
    import skate
    from skate.rl import es

    made = tools.own(env) if env in tools.OWN else env
    with skate.init(num_cpus=cores), tempfile.TemporaryDirectory() as folder:
        run = es.train(
            made,
            1e12,
            seed=1,
            path=os.path.join(folder, "run"),
            progress=False,
            directions=episodes // 2,
            hidden=(64, 64),
            callbacks=[lambda run, row: run.stop() if row["iteration"] > generations else None],
            **settings,
        )
    first, *rows = run.history
    seconds = rows[-1]["seconds"] - first["seconds"]
    shares = {name: sum(row[name] for row in rows) / len(rows) for name in ("busy", "driver")}
    return {"steps_per_s": (rows[-1]["steps"] - first["steps"]) / seconds, "seconds": seconds / len(rows), **shares}


def es_iteration(cores: int, episodes: int = 200, generations: int = 2) -> dict[str, Any]:
    """Seconds of an iteration on Humanoid, and the driver's part of them, of which the model of figure 14a is made."""
    figures = es("humanoid", episodes, generations, cores)
    return {**figures, "driver_s_per_episode": figures["driver"] * figures["seconds"] / episodes}


def absorb(tree: int, directions: int = 4_000, generations: int = 10) -> dict[str, Any]:
    """What the driver itself does for a result, with environments that cost next to nothing."""
    figures = es("instant", 2 * directions, generations, tree=tree, chunk=8)
    results = 2 * directions / figures["seconds"]
    return {"results_per_driver_s": results / figures["driver"], "results_per_s": results, **figures}


def ppo_scaling(cores: int, envs: int, **settings: Any) -> dict[str, Any]:
    """PPO on LunarLander with a lane for each core."""
    import skate

    with skate.init(num_cpus=cores):
        return ppo("LunarLander-v3", lanes=cores, envs=envs // cores, **settings)


if __name__ == "__main__":
    tools.main(
        {
            "pendulum": pendulum,
            "random": random,
            "simulations": simulations,
            "rollout": rollout,
            "ppo": ppo,
            "score": score,
            "curve": curve,
            "first_gradient": first_gradient,
            "impala": impala,
            "es": es,
            "es_iteration": es_iteration,
            "absorb": absorb,
            "ppo_scaling": ppo_scaling,
        }
    )
