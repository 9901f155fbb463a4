"""The deployment behind `skate rl serve`, without a server: it acts as its policy does, whatever it observes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from skate.rl.policy import Policy
from skate.rl.serving import Game, PolicyServer, Query

DISCRETE = spaces.Discrete(5, start=1)
PARTS = spaces.Dict({"at": spaces.Box(-1, 1, (2,), np.float32), "room": spaces.Discrete(3)})
PAIR = spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([2, 3])))


def served(space: gymnasium.Space[Any], folder: Path) -> tuple[Policy, PolicyServer]:
    policy = Policy.create(space, gymnasium.spaces.Discrete(4), hidden=(8,), seed=1)
    policy.save(folder)
    return policy, PolicyServer(folder, "Any-v0")


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (3,), np.float32), DISCRETE, PARTS, PAIR], ids=lambda it: type(it).__name__
)
def test_an_observation_of_json_or_of_an_environment_is_acted_on_as_by_the_policy(
    space: gymnasium.Space[Any], tmp_path: Path
) -> None:
    policy, server = served(space, tmp_path)

    async def act(observation: Any) -> tuple[Any, Any]:
        decoded = json.loads(json.dumps(observation, default=lambda value: value.tolist()))
        return (await server.act_on_json(Query(decoded)))["action"], await server.act(server.row(observation))

    for seed in range(8):
        space.seed(seed)
        observation = space.sample()
        assert asyncio.run(act(observation)) == (policy.act(observation),) * 2


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (DISCRETE, 9),
        (DISCRETE, 0),
        (DISCRETE, "high"),
        (DISCRETE, [1, 2]),
        (PARTS, {"room": 1}),
        (PARTS, 3),
        (PAIR, [1]),
    ],
)
def test_what_is_no_observation_is_a_422_that_says_what_one_is(
    space: gymnasium.Space[Any], wrong: Any, tmp_path: Path
) -> None:
    _, server = served(space, tmp_path)
    answer = asyncio.run(server.act_on_json(Query(wrong)))
    assert answer.status_code == 422
    assert json.loads(answer.body)["error"].startswith("an observation is ")


class Rooms(gymnasium.Env[Any, Any]):
    observation_space = PARTS
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"at": np.zeros(2, np.float32), "room": 1}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 1.0, False, False, {}


def test_an_environment_whose_observations_have_parts_is_played_for_a_visitor(tmp_path: Path) -> None:
    gymnasium.register("Rooms-v0", Rooms)
    try:
        _, server = served(PARTS, tmp_path)
        game = Game("Rooms-v0")
        action = asyncio.run(server.act(server.row(game.reset())))
        observation, told, _ = game.step(action)
        assert server.row(observation).tolist() == [0, 0, 0, 1, 0]
        assert (told["step"], told["return"]) == (1, 1.0)
    finally:
        gymnasium.registry.pop("Rooms-v0")
