"""A sharded parameter server: the weights lie on several actors, and pulling, computing and pushing overlap.

Each shard, an actor, holds the weights of some layers. Each worker, an actor too, has its own data. In a round a worker
pulls the weights of one shard after the other on its way forward through the network. On its way back it pushes the
gradients of a shard as soon as they are computed, so that shard updates its weights while the worker computes the next
gradients (Moritz et al., 2018, "Ray: A Distributed Framework for Emerging AI Applications", section 5.2.1). Weights and
gradients go from actor to actor through shared memory, where they are read in place.

- In step, a shard adds up the gradients of all workers. The driver makes all calls ahead of time and passes on
  references; every call runs as soon as its arguments are there.
- Out of step, a worker calls the shards itself: its gradients count at once, and it waits for no other worker.
"""

import argparse
import time
from typing import Any

import torch

import skate
from skate.train import keep_memory

CLASSES, SEED = 10, 1
Tensors = list[torch.Tensor]


def make_layers(width: int, depth: int, shards: int) -> list[torch.nn.Sequential]:
    """A network in as many parts as there are shards."""
    torch.manual_seed(SEED)
    linear = [torch.nn.Linear(width, width) for _ in range(depth - 1)] + [torch.nn.Linear(width, CLASSES)]
    for each in linear:
        torch.nn.init.kaiming_normal_(each.weight)
    layers = [torch.nn.Sequential(each, torch.nn.ReLU()) for each in linear[:-1]] + [linear[-1]]
    ends = [depth * (shard + 1) // shards for shard in range(shards)]
    return [torch.nn.Sequential(*layers[begin:end]) for begin, end in zip([0, *ends], ends)]


class Shard:
    """The weights of some layers."""

    def __init__(self, layers: torch.nn.Sequential, step: float) -> None:
        keep_memory()
        self.layers, self.step = layers, step
        self.start()

    def start(self) -> None:
        """Begin with the weights that the layers were made with."""
        self.weights = [each.detach().clone() for each in self.layers.parameters()]

    def update(self, *gradients: Tensors) -> Tensors:
        """Apply the gradients of some workers; the weights after that."""
        for number, weight in enumerate(self.weights):
            for gradient in gradients:
                weight.sub_(gradient[number], alpha=self.step)
        return self.weights


class Worker:
    """A replica of the network, with data of its own."""

    def __init__(self, number: int, layers: list[torch.nn.Sequential], width: int, batch: int) -> None:
        keep_memory()
        self.layers, self.batch = layers, batch
        self.random = torch.Generator().manual_seed(SEED + number)
        self.centres = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(SEED))
        self.inputs: Tensors = [torch.empty(0)] * len(layers)
        self.outputs: Tensors = [torch.empty(0)] * len(layers)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        """New samples, and the classes that they are of."""
        wanted = torch.randint(CLASSES, (self.batch,), generator=self.random)
        noise = torch.randn(self.batch, self.centres.shape[1], generator=self.random)
        return (self.centres[wanted] + 3 * noise) / 10**0.5, wanted

    def forward(self, part: int, weights: Tensors) -> float:
        """Pull the weights of a part and compute its output; after the last part, the loss."""
        for parameter, weight in zip(self.layers[part].parameters(), weights, strict=True):
            parameter.data = weight
        if part == 0:
            self.inputs[0], self.wanted = self.draw()
        else:
            self.inputs[part] = self.outputs[part - 1].detach().requires_grad_()
        self.outputs[part] = self.layers[part](self.inputs[part])
        if part < len(self.layers) - 1:
            return 0.0
        self.outputs[part] = torch.nn.functional.cross_entropy(self.outputs[part], self.wanted)
        return self.outputs[part].item()

    def backward(self, part: int) -> Tensors:
        """Compute the gradients of a part, which are pushed to its shard."""
        parameters = list(self.layers[part].parameters())
        self.outputs[part].backward(None if part == len(self.layers) - 1 else self.inputs[part + 1].grad)
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        return gradients

    def train(self, shards: list[Any], rounds: int) -> list[float]:
        """Pull, compute and push without regard to other workers; the losses."""
        weights, losses = [shard.update.remote() for shard in shards], []
        for _ in range(rounds):
            loss = [self.forward(part, skate.get(weights[part])) for part in range(len(shards))][-1]
            for part in reversed(range(len(shards))):
                weights[part] = shards[part].update.remote(self.backward(part))
            losses.append(loss)
        skate.get(weights)
        return losses


def in_step(shards: list[Any], workers: list[Any], rounds: int) -> list[float]:
    """The mean loss of each round."""
    weights, losses = [shard.update.remote() for shard in shards], []
    for _ in range(rounds):
        forwards = [[worker.forward.remote(part, weights[part]) for part in range(len(shards))] for worker in workers]
        for part in reversed(range(len(shards))):
            weights[part] = shards[part].update.remote(*[worker.backward.remote(part) for worker in workers])
        losses += [forward[-1] for forward in forwards]
    values, count = skate.get(losses), len(workers)
    skate.get(weights)
    return [sum(values[i : i + count]) / count for i in range(0, len(values), count)]


def out_of_step(shards: list[Any], workers: list[Any], rounds: int) -> list[float]:
    losses = skate.get([worker.train.remote(shards, rounds) for worker in workers])
    return [sum(together) / len(together) for together in zip(*losses, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a network whose weights lie on several shards.")
    parser.add_argument("--workers", type=int, default=2, help="replicas of the network (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=3, help="actors that hold weights (default: %(default)s)")
    parser.add_argument("--width", type=int, default=1024, help="of the layers (default: %(default)s)")
    parser.add_argument("--depth", type=int, default=6, help="number of layers (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="samples per worker and round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=50, help="how many (default: %(default)s)")
    options = parser.parse_args()
    if not 1 <= options.shards <= options.depth:
        parser.error(f"--shards {options.shards}: it may be 1 to {options.depth}, the number of layers (--depth)")
    with skate.init(num_cpus=options.workers):
        layers = make_layers(options.width, options.depth, options.shards)
        shards = [skate.remote(Shard).remote(part, 0.05 / options.workers) for part in layers]
        make = skate.remote(num_cpus=1)(Worker).remote
        workers = [make(number, layers, options.width, options.batch) for number in range(options.workers)]
        for label, train in (("in step", in_step), ("out of step", out_of_step)):
            train(shards, workers, 2)  # torch is loaded, and memory has been touched
            skate.get([shard.start.remote() for shard in shards])
            started = time.perf_counter()
            losses = train(shards, workers, options.rounds)
            samples = options.rounds * options.workers * options.batch / (time.perf_counter() - started)
            few = max(1, options.rounds // 5)
            print(f"{label:<11}  loss {sum(losses[:few]) / few:.3f} → {sum(losses[-few:]) / few:.3f}", end=", ")
            print(f"{samples:.0f} samples/s")


if __name__ == "__main__":
    main()
