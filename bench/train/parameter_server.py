"""The row of figure 13: the parameter server of `examples/sharded_parameter_server.py` on the networks of this suite.

The shards, the workers and the order of their calls are those of the example. Here the networks are cut into parts, one
for each shard, and the clock is read. A worker makes its samples as vectors, and the ResNet folds them into images. It
draws them once: the other peers of this row train on the same samples in every step, too.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import models
import torch

import skate

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

LEARNING_RATE = 0.01
WARM_UP_ROUNDS = 3
#: Where a network is cut. Its parts are computed, pulled and pushed one after the other.
CUTS = {"resnet": [5], "mlp": [2, 4]}


def parts_of(kind: str) -> tuple[list[torch.nn.Sequential], int]:
    """A network in parts, and the length of a sample."""
    torch.manual_seed(1)
    make, shape = models.NETWORKS[kind]
    net = torch.nn.Sequential(torch.nn.Unflatten(1, shape), *make()) if len(shape) > 1 else make()
    cuts = [0, *CUTS[kind], len(net)]
    return [net[begin:end] for begin, end in itertools.pairwise(cuts)], torch.Size(shape).numel()


def samples_per_s(kind: str, batch: int, rounds: int, workers: int = 2) -> float:
    """Samples that all workers together train on in a second."""
    import sharded_parameter_server as example

    parts, width = parts_of(kind)

    class Worker(example.Worker):
        """A worker whose samples stay the same."""

        def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
            if not hasattr(self, "drawn"):
                self.drawn = super().draw()
            return self.drawn

    shards = [skate.remote(example.Shard).remote(part, LEARNING_RATE / workers) for part in parts]
    make = skate.remote(num_cpus=1)(Worker).remote
    actors: list[Any] = [make(number, parts, width, batch) for number in range(workers)]
    example.in_step(shards, actors, WARM_UP_ROUNDS)
    began = time.perf_counter()
    example.in_step(shards, actors, rounds)
    wall_s = time.perf_counter() - began
    for actor in (*shards, *actors):
        skate.kill(actor)
    return rounds * batch * workers / wall_s
