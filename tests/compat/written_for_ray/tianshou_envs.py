"""Tianshou's RayVectorEnv: environments in actors, beside the same environments in one process."""

import json

import gymnasium
import numpy as np
import ray
from tally import tally
from tianshou.env import DummyVectorEnv, RayVectorEnv

ENVS, STEPS = 3, 20


def made(name: str, kind: type, **options) -> object:
    envs = kind([lambda: gymnasium.make(name) for _ in range(ENVS)], **options)
    for env in range(ENVS):
        envs.reset([env], seed=env)
    return envs


def in_step(kind: type) -> dict:
    """All environments take each step together."""
    envs = made("CartPole-v1", kind)
    envs.set_env_attr("gravity", 1.6, id=[1])
    seen, rewards = [], []
    actions = np.random.default_rng(5)
    for _ in range(STEPS):
        observations, reward, terminated, truncated, _ = envs.step(actions.integers(0, 2, size=ENVS))
        seen.append(observations.tolist())
        rewards.append(reward.tolist())
        done = np.where(terminated | truncated)[0]
        if len(done):
            envs.reset(done, seed=7)
    envs.close()
    return {"observations": seen, "rewards": rewards}


def as_they_come(kind: type) -> list:
    """Each call waits for two of the three environments. What each environment showed, in its own order."""
    envs = made("MountainCar-v0", kind, wait_num=2)
    seen = [[] for _ in range(ENVS)]
    ready = list(range(ENVS))
    while min(map(len, seen)) < STEPS:
        actions = np.array([(env + len(seen[env])) % 3 for env in ready])
        observations, _, _, _, infos = envs.step(actions, ready)
        ready = [info["env_id"] for info in infos]
        for env, observation in zip(ready, observations):
            seen[env].append(observation.tolist())
    return [each[:STEPS] for each in seen]


def main() -> None:
    ray.init(num_cpus=2)
    found = {"in_step": in_step(RayVectorEnv), "as_they_come": as_they_come(RayVectorEnv)}
    ran = tally()
    expected = {"in_step": in_step(DummyVectorEnv), "as_they_come": as_they_come(DummyVectorEnv)}
    print(json.dumps({"found": found, "expected": expected, "ran": ran}))


if __name__ == "__main__":
    main()
