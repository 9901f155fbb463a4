"""Loops without any library around them: the floor of a simulation, and PPO as one would write it down."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import tools


def simulate(env: Any, steps: int, actions: Any) -> None:
    """Step an environment through actions that are given, and begin again when an episode ends."""
    step, reset = env.step, env.reset
    for action in actions[:steps]:
        _, _, terminated, truncated, _ = step(action)
        if terminated or truncated:
            reset()


def _loop(name: str, steps: int, ready: Any, go: Any, seconds: Any) -> None:
    import gymnasium
    import numpy as np

    env = gymnasium.make(name, disable_env_checker=True)
    env.reset(seed=0)
    space, rng = env.action_space, np.random.default_rng(0)
    ready.release()
    go.wait()
    began = time.perf_counter()
    # All at once: action_space.sample() would cost as much as a step does.
    if hasattr(space, "n"):
        actions = rng.integers(space.n, size=steps).tolist()
    else:
        actions = list(rng.uniform(space.low, space.high, (steps, *space.shape)).astype(np.float32))
    simulate(env, steps, actions)
    seconds.put(time.perf_counter() - began)


def loops(env: str = "Pendulum-v1", steps: int = 1_000_000, processes: int = 2) -> dict[str, Any]:
    """Two processes, each with a loop over one environment and random actions."""
    ready, go, seconds = multiprocessing.Semaphore(0), multiprocessing.Event(), multiprocessing.Queue()
    share = steps // processes
    arguments = (env, share, ready, go, seconds)
    started = [multiprocessing.Process(target=_loop, args=arguments) for _ in range(processes)]
    for loop in started:
        loop.start()
    for _ in started:
        ready.acquire()
    began = time.perf_counter()
    go.set()
    for _ in started:
        seconds.get()
    wall_s = time.perf_counter() - began
    for loop in started:
        loop.join()
    return {"steps_per_s": share * processes / wall_s}


def asynchronous(steps: int = 20_000, envs: int = 2) -> dict[str, Any]:
    """gymnasium's AsyncVectorEnv: a process for each environment, a message for each step."""
    import gymnasium

    vector = gymnasium.make_vec("Pendulum-v1", num_envs=envs, vectorization_mode="async")
    vector.reset(seed=0)
    vector.action_space.seed(0)
    actions = [vector.action_space.sample() for _ in range(100)]
    began = time.perf_counter()
    for t in range(steps // envs):
        vector.step(actions[t % 100])
    wall_s = time.perf_counter() - began
    vector.close()
    return {"steps_per_s": steps / wall_s}


def envpool(env: str = "CartPole-v1", steps: int = 4_000_000, envs: int = 128) -> dict[str, Any]:
    """EnvPool, whose environments are C++: one process, random actions that were drawn before."""
    import envpool
    import numpy as np

    pool = envpool.make_gymnasium(env, num_envs=envs)
    pool.reset()
    actions = np.random.default_rng(0).integers(pool.action_space.n, size=(100, envs))
    began = time.perf_counter()
    for t in range(steps // envs):
        pool.step(actions[t % 100])
    return {"steps_per_s": steps / (time.perf_counter() - began)}


def ppo(
    env: str = "CartPole-v1",
    steps: int = 50_000,
    envs: int = 8,
    horizon: int = 32,
    epochs: int = 20,
    minibatch: int = 256,
    learning_rate: float = 1e-3,
    gamma: float = 0.98,
    lam: float = 0.8,
    clip: float = 0.2,
    entropy: float = 0.0,
) -> dict[str, Any]:
    """PPO in one thread and one file: a loop over environments, torch for acting and learning."""
    import gymnasium
    import numpy as np
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    vector = [gymnasium.make(env) for _ in range(envs)]
    inputs, outputs = vector[0].observation_space.shape[0], vector[0].action_space.n

    def network(size: int) -> Any:
        return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, size))

    actor, critic = network(int(outputs)), network(1)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, eps=1e-5)
    observations = np.stack([one.reset(seed=i)[0] for i, one in enumerate(vector)]).astype(np.float32)
    began, done_steps = time.perf_counter(), 0
    while done_steps < steps:
        seen = np.empty((horizon, envs, inputs), np.float32)
        actions = np.empty((horizon, envs), np.int64)
        log_probs, values, rewards, ends = (np.empty((horizon, envs), np.float32) for _ in range(4))
        for t in range(horizon):
            seen[t] = observations
            with torch.no_grad():
                given = torch.from_numpy(observations)
                chances = torch.distributions.Categorical(logits=actor(given))
                action = chances.sample()
                log_probs[t], values[t] = chances.log_prob(action).numpy(), critic(given)[:, 0].numpy()
            actions[t] = action.numpy()
            for i, one in enumerate(vector):
                observation, reward, terminated, truncated, _ = one.step(int(actions[t, i]))
                if truncated and not terminated:
                    with torch.no_grad():
                        reward += gamma * float(critic(torch.from_numpy(observation))[0])
                if terminated or truncated:
                    observation, _ = one.reset()
                observations[i], rewards[t, i], ends[t, i] = observation, reward, terminated or truncated
        with torch.no_grad():
            following = critic(torch.from_numpy(observations))[:, 0].numpy()
        advantages, carried = np.empty_like(rewards), np.zeros(envs, np.float32)
        for t in reversed(range(horizon)):
            after = following if t == horizon - 1 else values[t + 1]
            error = rewards[t] + gamma * after * (1 - ends[t]) - values[t]
            carried = error + gamma * lam * (1 - ends[t]) * carried
            advantages[t] = carried
        targets = torch.from_numpy((advantages + values).ravel())
        columns = [seen.reshape(-1, inputs), actions.ravel(), log_probs.ravel(), advantages.ravel()]
        flat_seen, flat_actions, flat_log_probs, flat_advantages = map(torch.from_numpy, columns)
        for _ in range(epochs):
            for chosen in torch.randperm(len(targets)).split(minibatch):
                chances = torch.distributions.Categorical(logits=actor(flat_seen[chosen]))
                ratio = (chances.log_prob(flat_actions[chosen]) - flat_log_probs[chosen]).exp()
                scaled = flat_advantages[chosen]
                scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-8)
                policy_loss = -torch.min(ratio * scaled, ratio.clamp(1 - clip, 1 + clip) * scaled).mean()
                value_loss = nn.functional.mse_loss(critic(flat_seen[chosen])[:, 0], targets[chosen])
                loss = policy_loss + 0.5 * value_loss - entropy * chances.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
        done_steps += horizon * envs
    return {"steps_per_s": done_steps / (time.perf_counter() - began)}


_playing: dict[str, Any] = {}


def _begin(env: str, hidden: int, size: int) -> None:
    """Make what a process of the pool keeps: the environment, and the table of noise."""
    import gymnasium
    import numpy as np

    made = tools.own(env)() if env in tools.OWN else gymnasium.make(env, disable_env_checker=True)
    table = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    _playing.update(env=made, hidden=hidden, table=table)


def _episode(task: tuple[int, float, int]) -> tuple[float, int]:
    """Play an episode with weights from the table: a policy with two hidden layers, one observation at a time."""
    import numpy as np

    start, scale, seed = task
    env, hidden, table = _playing["env"], _playing["hidden"], _playing["table"]
    inputs, box = env.observation_space.shape[0], hasattr(env.action_space, "low")
    outputs = env.action_space.shape[0] if box else int(env.action_space.n)
    shapes, weights = [(inputs, hidden), (hidden, hidden), (hidden, outputs)], []
    for rows, columns in shapes:
        weights.append(scale * table[start : start + rows * columns].reshape(rows, columns))
        start += rows * columns
    first, second, last = weights
    observation, _ = env.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    while not over:
        answer = np.tanh(np.tanh(observation.astype(np.float32) @ first) @ second) @ last
        action = np.clip(answer, env.action_space.low, env.action_space.high) if box else int(answer.argmax())
        observation, reward, terminated, truncated, _ = env.step(action)
        total, steps, over = total + float(reward), steps + 1, terminated or truncated
    return total, steps


def es(env: str, episodes: int, generations: int, hidden: int = 64, processes: int = 2) -> dict[str, Any]:
    """Episodes of mirrored directions in a `multiprocessing.Pool`, a task for each, in two processes."""
    import os

    import numpy as np

    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    rng, size = np.random.default_rng(1), 1_000_000
    with multiprocessing.Pool(processes, _begin, (env, hidden, size)) as pool:
        done = 0
        for generation in range(generations + 1):
            if generation == 1:
                began, done = time.perf_counter(), 0
            starts, seeds = rng.integers(size // 2, size=episodes // 2), rng.integers(2**31, size=episodes // 2)
            pairs = [(int(start), sign, int(seed)) for start, seed in zip(starts, seeds) for sign in (0.1, -0.1)]
            done += sum(steps for _, steps in pool.imap_unordered(_episode, pairs))
        return {"steps_per_s": done / (time.perf_counter() - began)}


if __name__ == "__main__":
    tools.main({"loops": loops, "envpool": envpool, "asynchronous": asynchronous, "ppo": ppo, "es": es})
