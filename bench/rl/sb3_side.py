"""Rows on stable-baselines3."""

from __future__ import annotations

import time
from typing import Any

import tools


def _vector(env: str, envs: int, processes: bool) -> Any:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    return make_vec_env(env, n_envs=envs, seed=0, vec_env_cls=SubprocVecEnv if processes else DummyVecEnv)


def pendulum(steps: int = 20_000, envs: int = 2) -> dict[str, Any]:
    """SubprocVecEnv without a policy: a process for each environment, a message for each step."""
    import numpy as np

    vector = _vector("Pendulum-v1", envs, True)
    vector.reset()
    actions = np.zeros((envs, 1), np.float32)
    began = time.perf_counter()
    for _ in range(steps // envs):
        vector.step(actions)
    wall_s = time.perf_counter() - began
    vector.close()
    return {"steps_per_s": steps / wall_s}


def rollout(env: str, steps: int, envs: int = 8, processes: bool = False) -> dict[str, Any]:
    """`collect_rollouts` of PPO with its default policy of 64 x 64."""
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    vector = _vector(env, envs, processes)
    model = PPO("MlpPolicy", vector, n_steps=steps // envs, batch_size=steps, device="cpu")
    _, callback = model._setup_learn(steps)
    began = time.perf_counter()
    model.collect_rollouts(vector, callback, model.rollout_buffer, model.n_steps)
    wall_s = time.perf_counter() - began
    vector.close()
    return {"steps_per_s": steps / wall_s}


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of the zoo: `lin_x` falls linearly."""
    chosen = dict(settings)
    for name in ("learning_rate", "clip_range"):
        if isinstance(chosen.get(name), str):
            start = float(chosen[name].removeprefix("lin_"))
            chosen[name] = lambda left, start=start: left * start
    return chosen


def ppo(
    env: str = "CartPole-v1", steps: int = 50_000, envs: int = 8, threads: int = 1, **settings: Any
) -> dict[str, Any]:
    """PPO from end to end."""
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(threads)
    model = PPO("MlpPolicy", _vector(env, envs, False), seed=0, device="cpu", **_settings(settings))
    began = time.perf_counter()
    model.learn(steps)
    return {"steps_per_s": model.num_timesteps / (time.perf_counter() - began)}


def score(
    algorithm: str,
    env: str,
    steps: float,
    at: float,
    seed: int = 1,
    envs: int = 1,
    normalize: bool = False,
    threads: int = 1,
    hidden: Any = None,
    within_s: float = 60.0,
    **settings: Any,
) -> dict[str, Any]:
    """Wall time and steps to a score, with the start of the process and all imports. It gives up after `within_s`."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(threads)
    clock, found = tools.Clock(), {}
    vector = make_vec_env(env, n_envs=envs, seed=seed)
    tests = make_vec_env(env, n_envs=tools.EPISODES, seed=seed + 1_000_000)
    if normalize:
        vector = VecNormalize(vector)
        tests = VecNormalize(tests, training=False, norm_reward=False)
        tests.obs_rms = vector.obs_rms

    class Judge(BaseCallback):
        """Evaluates every 5,000 steps; ends the training at the score."""

        def _on_step(self) -> bool:
            before, now = self.num_timesteps - envs, self.num_timesteps
            if now // tools.EVALUATE_EVERY > before // tools.EVALUATE_EVERY:
                found.update(seconds=clock.seconds, steps=now)
                began = time.perf_counter()
                found["score"] = float(evaluate_policy(self.model, tests, tools.EPISODES)[0])
                clock.evaluated(time.perf_counter() - began)
                return found["score"] < at and found["seconds"] < within_s
            return True

    if hidden is not None:
        settings["policy_kwargs"] = {"net_arch": list(hidden)}
    model = getattr(stable_baselines3, algorithm.upper())(
        "MlpPolicy", vector, seed=seed, device="cpu", **_settings(settings)
    )
    model.learn(int(steps), callback=Judge())
    return {**found, "reached": found.get("score", -1e9) >= at}


if __name__ == "__main__":
    tools.main({"pendulum": pendulum, "rollout": rollout, "ppo": ppo, "score": score})
