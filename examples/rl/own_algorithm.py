"""An algorithm of one's own on the blocks of `skate.rl`: a policy that imitates the better half of what it did.

Simulation is the library's: `Simulators` runs the policy in 16 environments and returns what happened as one batch.
Improvement is ours: of all actions, those that turned out better than expected (their advantage is positive) become
more likely, as if a teacher had chosen them; the others are ignored. It is the idea of self-imitation learning (Oh et
al. 2018, https://arxiv.org/abs/1806.05635) without its replay, and enough for CartPole.

    python examples/rl/own_algorithm.py [SEED]
"""

import sys

import numpy as np
import torch

from skate.rl import Batch, Policy, Simulators, evaluate, gae, torch_policy

ENV, SOLVED = "CartPole-v1", 475.0
ITERATIONS_MAX, STEPS, EPOCHS, MINIBATCH = 100, 2_048, 4, 256


class Imitation:
    """The policy's network, and one that estimates values, with an optimiser for both."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.actor = torch_policy.module(policy)
        self.critic = torch_policy.critic(policy.network, seed=1)
        self.optimizer = torch_policy.Adam([*self.actor.parameters(), *self.critic.parameters()], learning_rate=2e-3)

    def improve(self, batch: Batch) -> Policy:
        """Learn from a batch; the next version of the policy."""
        advantages, targets = gae(batch, self.values, gamma=0.98, lam=0.9)
        inputs = torch.from_numpy(self.policy.inputs(batch.observations.reshape(batch.mask.size, -1)))
        columns = [inputs, *(torch.from_numpy(array.reshape(-1)) for array in (batch.actions, advantages, targets))]
        real = torch.from_numpy(batch.mask.reshape(-1)).nonzero()[:, 0]
        for _ in range(EPOCHS):
            for chosen in real[torch.randperm(len(real))].split(MINIBATCH):
                self.optimizer.step(self.loss(*(column[chosen] for column in columns)), norm_max=0.5)
        self.policy = self.policy.with_weights(torch_policy.weights(self.actor))
        return self.policy

    def loss(
        self, inputs: torch.Tensor, actions: torch.Tensor, advantages: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        chances = torch_policy.Distribution(self.policy.network, self.actor(inputs), self.actor.log_std)
        better = (advantages > 0).float()
        imitation = -(better * chances.log_prob(actions)).sum() / better.sum().clamp(min=1)
        error = (self.critic(inputs)[:, 0] - targets).square().mean()
        return imitation + 0.001 * error - 0.01 * chances.entropy().mean()

    def values(self, observations: np.ndarray) -> np.ndarray:
        """What `gae` asks for: the value of each observation."""
        with torch.no_grad():
            return self.critic(torch.from_numpy(self.policy.inputs(observations)))[:, 0].numpy()


def main(seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    with Simulators(ENV, lanes=2, envs=8, seed=seed) as sims:
        learner = Imitation(Policy.create(sims.observation_space, sims.action_space, seed=seed))
        for iteration in range(1, ITERATIONS_MAX + 1):
            batch = sims.sample(learner.policy, steps=STEPS)
            learner.improve(batch)
            returns = batch.episode_returns
            mean = f", return {returns.mean():.1f}" if len(returns) else ""
            print(f"iteration {iteration}: {len(returns)} episodes{mean}")
            if iteration % 5 == 0 and (score := sims.evaluate(learner.policy, episodes=20, seed=1)).mean >= SOLVED:
                print(f"solved after {iteration * STEPS:,} steps: {score}")
                break
    print("100 other episodes:", evaluate(learner.policy, ENV, episodes=100, seed=2))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
