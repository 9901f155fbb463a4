"""Tianshou's RayVectorEnv: environments in actors, beside the same environments in one process."""

import json

import gymnasium
import numpy as np
import ray
from tianshou.env import DummyVectorEnv, RayVectorEnv


def run(kind: type) -> dict:
    envs = kind([lambda: gymnasium.make("CartPole-v1") for _ in range(3)])
    observations, _ = envs.reset(seed=3)
    seen, rewards = [observations.tolist()], []
    actions = np.random.default_rng(5)
    for _ in range(20):
        observations, reward, terminated, truncated, _ = envs.step(actions.integers(0, 2, size=3))
        seen.append(observations.tolist())
        rewards.append(reward.tolist())
        done = np.where(terminated | truncated)[0]
        if len(done):
            envs.reset(done, seed=7)
    envs.close()
    return {"observations": seen, "rewards": rewards}


def main() -> None:
    ray.init(num_cpus=2)
    print(json.dumps({"found": run(RayVectorEnv), "expected": run(DummyVectorEnv)}))


if __name__ == "__main__":
    main()
