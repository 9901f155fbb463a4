"""What is trained, the same for every peer: two networks, synthetic data, and a program that can be killed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CLASSES = 10
WARM_UP_STEPS = 3


class Block(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.around(x))


def resnet() -> nn.Module:
    """Three stages on images of 32 x 32: 78 thousand parameters, so that computing is nearly all there is."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def mlp() -> nn.Module:
    """25 million parameters: a gradient of 100 MB a step."""
    return nn.Sequential(
        nn.Linear(1_024, 4_096), nn.ReLU(), nn.Linear(4_096, 4_096), nn.ReLU(), nn.Linear(4_096, 1_024)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet": (resnet, (3, 32, 32)),
    "mlp": (mlp, (1_024,)),
}


def batch_of(kind: str, size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, *NETWORKS[kind][1], generator=generator)
    return x, torch.randint(CLASSES, (size,), generator=generator)


def step_of(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def samples_per_s(kind: str, batch: int, steps: int, world: int, wrap: Callable[[nn.Module], nn.Module]) -> float:
    """Samples that all workers together train on in a second; each calls this, at the same time."""
    torch.manual_seed(1)
    net = wrap(NETWORKS[kind][0]())
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    x, y = batch_of(kind, batch)
    began = 0.0
    for step in range(WARM_UP_STEPS + steps):
        if step == WARM_UP_STEPS:
            began = time.perf_counter()
        step_of(net, optimizer, x, y)
    return steps * batch * world / (time.perf_counter() - began)


def train_all(loads: dict[str, list[int]], world: int, wrap: Callable[[nn.Module], nn.Module]) -> dict[str, float]:
    """The same for several networks; loads: the batch of a worker and the number of steps, by network."""
    return {kind: samples_per_s(kind, batch, steps, world, wrap) for kind, (batch, steps) in loads.items()}


def first_step(wrap: Callable[[nn.Module], nn.Module]) -> float:
    """Make one step; the time of the wall clock after it."""
    net = wrap(resnet())
    step_of(net, torch.optim.SGD(net.parameters(), 0.01), *batch_of("resnet", 8))
    return time.time()


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network that trains in no time, with an optimiser that has a state."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.1), nn.ReLU(), nn.Linear(64, CLASSES))
    return net, torch.optim.Adam(net.parameters(), 1e-3)


def small_batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1_000 * step + rank)
    return torch.randn(16, 32, generator=generator), torch.randint(CLASSES, (16,), generator=generator)


def digest(net: Any) -> str:
    """What weights are equal by, bit for bit."""
    net = getattr(net, "module", net)
    data = b"".join(value.numpy().tobytes() for value in net.state_dict().values())
    return hashlib.sha256(data).hexdigest()
