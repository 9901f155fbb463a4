"""The whole loop: a policy is served while it trains, and those whom it serves are what it learns from.

    clients (environments) ── observation ──► Brain: a websocket, batched ──► action
           │ trajectories                             ▲ new weights, no request dropped
           ▼                                          │
    PPO's learner ────────────────────────────────────┘

It is figure 1 of the paper of Ray (Moritz et al., OSDI 2018) as a program: simulation, training and serving on one
engine. Every action that is learnt from was asked for over a websocket. While the learner learns, the clients play on.

    python examples/rl/train_and_serve.py [SECONDS] [SEED]
"""

import asyncio
import sys
import time

import gymnasium
import matplotlib as mpl
import numpy as np
from websockets.asyncio.client import connect

import skate
from skate import rl, serve
from skate.rl import Batch, Policy
from skate.rl.block import Block
from skate.rl.ppo import Learner, PPOOptions

ENV, CLIENTS, ENVS, HORIZON, SAY_EVERY_S = "CartPole-v1", 2, 8, 128, 2.0


@serve.deployment(max_ongoing_requests=256)
class Brain:
    """Acts on observations: with the action come its log-probability and the version of the policy."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def reconfigure(self, policy: Policy) -> None:
        self.policy = policy  # its weights are mapped from the object store

    @serve.batch(latency_ms=5)
    async def act(self, observations: list[np.ndarray]) -> list[np.ndarray]:
        policy = self.policy
        outputs = policy.outputs(np.stack(observations))
        actions = policy.choose(outputs, policy.noise([self.rng], len(outputs))[:, 0])
        answers = [actions, policy.log_probs(outputs, actions), np.full(len(actions), policy.version)]
        return list(np.stack(answers, axis=1).astype(np.float32))

    @serve.websocket("/loop")
    async def loop(self, socket: serve.WebSocket) -> None:
        async for observation in socket.arrays():
            await socket.send(await self.act(observation))


class Player:
    """One environment, and the connection over which it asks for actions."""

    def __init__(self, seed: int) -> None:
        self.env, self.total = gymnasium.make(ENV), 0.0
        self.seen = self.env.reset(seed=seed)[0]

    async def play(self, address: str, horizon: int) -> tuple[Block, list[float]]:
        """The next steps as a block of one column, and the seconds that each answer took."""
        rows, cuts, returns, delays = [], [], [], []
        async with connect(address) as socket:
            for t in range(horizon):
                asked = time.perf_counter()
                await socket.send(self.seen.astype(np.float32).tobytes())
                action, log_prob, version = np.frombuffer(await socket.recv(), np.float32)
                delays.append(time.perf_counter() - asked)
                observation, reward, terminated, truncated, _ = self.env.step(int(action))
                rows.append((self.seen, int(action), reward, terminated, truncated, log_prob, version))
                self.total += reward
                if not terminated and (truncated or t == horizon - 1):
                    cuts.append(((t, 0), observation))
                if terminated or truncated:
                    returns.append(self.total)
                    self.total, (observation, _) = 0.0, self.env.reset()
                self.seen = observation
        seen, actions, rewards, terminated, truncated, log_probs, versions = (
            np.array(each)[:, None] for each in zip(*rows)
        )
        block = Block(
            seen.astype(np.float32), actions, rewards.astype(np.float32), terminated, truncated,
            np.ones_like(terminated), log_probs, np.array([place for place, _ in cuts], np.int64).reshape(-1, 2),
            np.array([after for _, after in cuts], np.float32).reshape(-1, seen.shape[-1]),
            np.array(returns), np.array(returns, np.int64), version=int(versions.min()),
        )  # fmt: skip
        return block, delays


@skate.remote
class Client:
    """Plays in several environments at once."""

    def __init__(self, seed: int) -> None:
        self.players = [Player(seed + index) for index in range(ENVS)]

    async def play(self, address: str) -> list[tuple[Block, list[float]]]:
        return await asyncio.gather(*(player.play(address, HORIZON) for player in self.players))


def main(seconds: float, seed: int) -> None:
    env = gymnasium.make(ENV)
    options = PPOOptions(anneal=False, learning_rate=7e-4)
    learner = Learner(Policy.create(env.observation_space, env.action_space, normalise=True, seed=seed), options, seed)
    serve.run(Brain.options(user_config=learner.policy).bind(seed), port=0)
    host, port = serve.status().http_address
    address = f"ws://{host}:{port}/loop"
    clients = [Client.remote(seed + 1_000 * number) for number in range(CLIENTS)]
    playing = {client.play.remote(address): client for client in clients}
    began = said = time.perf_counter()
    steps, curve, returns, delays = 0, [], [], []
    while (now := time.perf_counter()) - began < seconds or not curve:
        (ready,), _ = skate.wait(list(playing))
        client = playing.pop(ready)
        played = skate.get(ready)
        playing[client.play.remote(address)] = client  # it plays on, with the policy of each moment
        batch = Batch.join([block for block, _ in played])
        learner.learn(batch, left=1.0)
        serve.run(Brain.options(user_config=learner.policy).bind(seed))  # the next answers are the new policy's
        steps += batch.steps
        returns += list(batch.episode_returns)
        delays += [delay for _, each in played for delay in each]
        if now - said >= SAY_EVERY_S and returns:
            said = now
            curve.append((now - began, np.mean(returns)))
            p50, p99 = 1e3 * np.quantile(delays, [0.5, 0.99])
            print(
                f"{now - began:5.1f} s  {steps:9,} requests  p50 {p50:.2f} ms  p99 {p99:.2f} ms  "
                f"return while serving {curve[-1][1]:5.1f}  policy {learner.policy.version:3}"
            )
            returns, delays = [], []
    print(f"{steps / (now - began):,.0f} requests/s; the last policy: {rl.evaluate(learner.policy, ENV, episodes=20)}")
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.figure(figsize=(6, 3.5), layout="constrained")
    plt.plot(*zip(*curve))
    plt.xlabel("seconds")
    plt.ylabel("return of the episodes that were served")
    plt.savefig("train_and_serve.png")
    print("train_and_serve.png")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
