"""Rows on RLlib, with its new API and the settings of its own tuned examples."""

from __future__ import annotations

import time
from typing import Any

import tools


def _quiet(cpus: int = 2) -> None:
    import logging
    import warnings

    import ray

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="error")


def _ppo(env: str, envs: int, **training: Any) -> Any:
    from ray.rllib.algorithms.ppo import PPOConfig

    config = PPOConfig().environment(env).env_runners(num_env_runners=2, num_envs_per_env_runner=max(1, envs // 2))
    return config.training(**training).debugging(log_level="ERROR", seed=1)


def rollout(env: str, steps: int, envs: int = 8) -> dict[str, Any]:
    """Sampling of two env runners with a policy of 64 x 64."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    _quiet()
    config = _ppo(env, envs).rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64]))
    algorithm = config.build_algo()
    each = steps // 2

    def sample(runner: Any) -> int:
        return sum(len(episode) for episode in runner.sample(num_timesteps=each))

    algorithm.env_runner_group.foreach_env_runner(sample, local_env_runner=False)
    began = time.perf_counter()
    done = sum(algorithm.env_runner_group.foreach_env_runner(sample, local_env_runner=False))
    return {"steps_per_s": done / (time.perf_counter() - began)}


def pendulum(steps: int = 20_000) -> dict[str, Any]:
    """Two env runners with random actions."""
    _quiet()
    algorithm = _ppo("Pendulum-v1", 2).build_algo()

    def sample(runner: Any) -> int:
        return sum(len(episode) for episode in runner.sample(num_timesteps=steps // 2, random_actions=True))

    algorithm.env_runner_group.foreach_env_runner(sample, local_env_runner=False)
    began = time.perf_counter()
    done = sum(algorithm.env_runner_group.foreach_env_runner(sample, local_env_runner=False))
    return {"steps_per_s": done / (time.perf_counter() - began)}


def ppo(env: str = "CartPole-v1", steps: int = 20_000) -> dict[str, Any]:
    """PPO from end to end at its own settings."""
    _quiet()
    algorithm = _ppo(env, 2, lr=0.0003, num_epochs=6, vf_loss_coeff=0.01).build_algo()
    algorithm.train()
    began, first = time.perf_counter(), _steps(algorithm)
    while _steps(algorithm) - first < steps:
        algorithm.train()
    return {"steps_per_s": (_steps(algorithm) - first) / (time.perf_counter() - began)}


def _steps(algorithm: Any) -> int:
    found = algorithm.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime"))
    return int(found)


def _evaluate(algorithm: Any, env: str) -> float:
    """Play 20 episodes side by side with the most likely action."""
    import gymnasium
    import numpy as np
    import torch

    module = algorithm.get_module()
    envs = [gymnasium.make(env) for _ in range(tools.EPISODES)]
    observations = np.stack([one.reset(seed=1_000_000 + i)[0] for i, one in enumerate(envs)])
    total, playing = np.zeros(len(envs)), np.ones(len(envs), bool)
    while playing.any():
        with torch.no_grad():
            outputs = module.forward_inference({"obs": torch.from_numpy(observations)})["action_dist_inputs"]
        for i in np.flatnonzero(playing):
            observations[i], reward, terminated, truncated, _ = envs[i].step(int(outputs[i].argmax()))
            total[i] += reward
            playing[i] = not (terminated or truncated)
    return float(total.mean())


def score(env: str, steps: float, at: float, seed: int = 1) -> dict[str, Any]:
    """Wall time and steps to a score with PPO, with the start of the process and all imports."""
    clock = tools.Clock()
    _quiet()
    config = _ppo(env, 2, lr=0.0003, num_epochs=6, vf_loss_coeff=0.01).debugging(log_level="ERROR", seed=seed)
    algorithm, found, before = config.build_algo(), {}, 0
    while before < steps:
        algorithm.train()
        now = _steps(algorithm)
        if now // tools.EVALUATE_EVERY > before // tools.EVALUATE_EVERY:
            found = {"seconds": clock.seconds, "steps": now}
            began = time.perf_counter()
            found["score"] = _evaluate(algorithm, env)
            clock.evaluated(time.perf_counter() - began)
            if found["score"] >= at:
                break
        before = now
    return {**found, "reached": found.get("score", -1e9) >= at}


def first_gradient() -> dict[str, Any]:
    """From the beginning of the program to the end of the first iteration with one gradient step."""
    _quiet()
    training = {"train_batch_size_per_learner": 256, "minibatch_size": 256, "num_epochs": 1}
    algorithm = _ppo("CartPole-v1", 2, **training).build_algo()
    algorithm.train()
    return {"seconds": time.perf_counter() - tools.STARTED}


def impala(env: str = "CartPole-v1", seconds: float = 30.0) -> dict[str, Any]:
    """IMPALA at its own settings, for some time after its first iteration."""
    from ray.rllib.algorithms.impala import IMPALAConfig

    _quiet(cpus=8)  # its actors ask for more CPUs than there are, and wait for ever
    config = IMPALAConfig().environment(env).env_runners(num_env_runners=2, num_envs_per_env_runner=8)
    algorithm = config.debugging(log_level="ERROR").build_algo()
    algorithm.train()
    began, first = time.perf_counter(), _steps(algorithm)
    while time.perf_counter() - began < seconds:
        algorithm.train()
    return {"steps_per_s": (_steps(algorithm) - first) / (time.perf_counter() - began)}


if __name__ == "__main__":
    tools.main(
        {
            "pendulum": pendulum,
            "rollout": rollout,
            "ppo": ppo,
            "score": score,
            "first_gradient": first_gradient,
            "impala": impala,
        }
    )
