"""TorchRL's RayCollector: two collectors in actors, beside the same collectors in one process."""

import json
import warnings

import ray
import torch
from tally import tally
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.collectors.distributed import RayCollector
from torchrl.envs import GymEnv

FRAMES, BATCHES = 100, 3


class Balance(torch.nn.Module):
    """Pushes the cart to where the pole falls."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot((observation[..., 2] > 0).long(), 2)


def policy() -> TensorDictModule:
    return TensorDictModule(Balance(), in_keys=["observation"], out_keys=["action"])


def made(seed: int) -> GymEnv:
    env = GymEnv("CartPole-v1")
    env.set_seed(seed)
    return env


def first() -> GymEnv:
    return made(1)


def second() -> GymEnv:
    return made(2)


def main() -> None:
    ray.init(num_cpus=2)
    collector = RayCollector(
        [first, second],
        policy(),
        frames_per_batch=FRAMES,
        total_frames=FRAMES * BATCHES,
        remote_configs={"num_cpus": 1, "num_gpus": 0, "memory": 10**8},
        sync=True,
    )
    found, ran = [], {}
    for batch in collector:
        found.append(batch["observation"].tolist())
        ran = tally() if len(found) == 1 else ran  # after the last batch the collector ends its actors
    collector.shutdown()
    alone = [
        Collector(make, policy(), frames_per_batch=FRAMES // 2, total_frames=FRAMES // 2 * BATCHES)
        for make in (first, second)
    ]
    expected = [[batch["observation"].tolist() for batch in batches] for batches in zip(*alone)]
    print(json.dumps({"found": found, "expected": expected, "ran": ran}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
