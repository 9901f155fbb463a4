"""Population based training (Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846) with tasks and actors.

Several members train the same policy with settings of their own. A member that falls behind goes on from the weights of
a better one, with settings like that one's: the settings are learnt while the policy is.

    member (actor)   its learner and its simulators; trains for a while, and returns its policy
    judge (task)     plays episodes with a policy; the score
    driver           takes the member that is ready, compares, and tells it what to adopt; none waits for another

    python examples/rl/population.py [SEED]
"""

import random
import sys
from dataclasses import dataclass
from typing import Any

import skate
from skate.rl import Policy, Simulators, evaluate, ppo

ENV, SOLVED = "CartPole-v1", 475.0
MEMBERS, TURNS_MAX, ROUNDS = 4, 60, 4
#: A member whose score is below this share of the best one's adopts from a better one.
BEHIND = 0.75


@skate.remote(num_cpus=0)  # it waits for its simulators most of the time
class Member:
    """Trains one policy of the population."""

    def __init__(self, seed: int) -> None:
        self.sims = Simulators(ENV, lanes=1, envs=8, seed=seed)
        policy = Policy.create(self.sims.observation_space, self.sims.action_space, seed=seed)
        self.learner = ppo.Learner(policy, ppo.PPOOptions(anneal=False), seed)

    @skate.method(num_returns=2)
    def train(self, settings: dict[str, float], adopted: Any = None) -> tuple[Policy, Any]:
        """Train with these settings, from the state of another member if there is one; the policy and the state."""
        if adopted is not None:
            self.learner.restore(*adopted)
        self.learner.options = options = ppo.PPOOptions(anneal=False, **settings)
        for _ in range(ROUNDS):
            batch = self.sims.sample(self.learner.policy, steps=options.horizon * self.sims.total)
            self.learner.learn(batch, left=1.0)
        return self.learner.policy, (self.learner.policy, *self.learner.state())


@skate.remote
def judge(policy: Policy, seed: int) -> float:
    """Play 20 episodes with a policy; their mean return."""
    return evaluate(policy, ENV, episodes=20, seed=seed, lanes=1).mean


@dataclass
class Standing:
    """What the driver knows of a member: its score, and references to the policy and the state that have it."""

    actor: Any
    settings: dict[str, float]
    policy: Any = None
    state: Any = None
    score: float = 0.0


def explore(settings: dict[str, float], rng: random.Random) -> dict[str, float]:
    """Settings near those."""
    return {name: value * rng.choice([0.5, 0.8, 1.25, 2.0]) for name, value in settings.items()}


def main(seed: int) -> None:
    rng = random.Random(seed)
    population = []
    for number in range(MEMBERS):
        settings = {"learning_rate": 10 ** rng.uniform(-5, -2), "entropy": 10 ** rng.uniform(-4, -1)}
        population.append(Standing(Member.remote(seed + number), settings))
    under_way: dict[Any, tuple[Standing, Any, Any]] = {}

    def go_on(member: Standing, adopted: Any = None) -> None:
        policy, state = member.actor.train.remote(member.settings, adopted)
        under_way[judge.remote(policy, seed)] = member, policy, state

    for member in population:
        go_on(member)
    for turn in range(1, TURNS_MAX + 1):
        (ready,), _ = skate.wait(list(under_way), num_returns=1)
        member, member.policy, member.state = under_way.pop(ready)
        member.score = skate.get(ready)
        number, settings = population.index(member), ", ".join(f"{k} {v:.1e}" for k, v in member.settings.items())
        print(f"turn {turn:2}: member {number} scores {member.score:5.1f} with {settings}")
        if member.score >= SOLVED:
            print(f"solved: {evaluate(skate.get(member.policy), ENV, episodes=100, seed=seed + 1)}")
            return
        best = max(population, key=lambda other: other.score)
        if member.score < BEHIND * best.score:
            print(f"         it goes on from the weights of member {population.index(best)}, with settings near those")
            member.settings = explore(best.settings, rng)
            go_on(member, best.state)
        else:
            go_on(member)
    print("no member got there")


if __name__ == "__main__":
    skate.init()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
