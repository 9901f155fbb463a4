"""The networks of `policy` in torch, for learning: same description, same names of weights, same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skate.rl import files
from skate.rl.policy import LOG_STD_RANGE, Network, Policy, initial_weights, overhang


def tensor(array: np.ndarray) -> Tensor:
    """Make a tensor of an array: of the same memory, or of a copy where the array is read-only, as shared memory is."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class Tanh(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """tanh as numpy computes it: what learns has the same bits as what acts.

    Where numpy uses AVX-512 it takes a tenth of the time of torch's, which was a fifth of a gradient step of PPO.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.from_numpy(np.tanh(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        found: Tensor = torch.ops.aten.tanh_backward(slope, y)
        return found


class Net(nn.Module):  # type: ignore[misc, unused-ignore]
    """A network with a head of `outputs` numbers. It takes what `Policy.inputs` gives."""

    def __init__(self, network: Network, outputs: int) -> None:
        super().__init__()
        shapes = dict(network.layers())
        convolutions = [shapes[f"conv.{i}"] for i in range(len(network.convolutions))]
        strides = [stride for _, _, stride in network.convolutions]
        self.conv = nn.ModuleList(
            nn.Conv2d(shape[1], shape[0], shape[2], stride) for shape, stride in zip(convolutions, strides, strict=True)
        )
        self.layers = nn.ModuleList(nn.Linear(*reversed(shapes[f"layers.{i}"])) for i in range(len(network.hidden)))
        self.head = nn.Linear(network.features, outputs)
        self.log_std: Tensor | None = None
        self.activation = torch.relu if network.activation == "relu" else Tanh.apply

    def features(self, x: Tensor) -> Tensor:
        """Run every layer but the head."""
        for convolution in self.conv:
            down, right = (overhang(side, convolution.kernel_size[0], convolution.stride[0]) for side in x.shape[2:])
            x = torch.relu(convolution(nn.functional.pad(x, (0, right, 0, down)) if down or right else x))
        x = x.flatten(1)
        for layer in self.layers:
            x = self.activation(layer(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def module(policy: Policy) -> Net:
    """Make the torch module of a policy, with its weights. `log_std` of a gaussian policy is one of its parameters."""
    net = Net(policy.network, policy.network.outputs)
    if "log_std" in policy.weights:
        net.log_std = nn.Parameter(torch.zeros(policy.network.outputs))
    return load(net, policy.weights)


def critic(network: Network, seed: int, outputs: int = 1) -> Net:
    """Make a network of the same body that estimates values, with weights that follow from the seed."""
    return load(Net(network, outputs), initial_weights(network, outputs, 1.0, np.random.default_rng(seed)))


def load(net: Any, weights: dict[str, np.ndarray]) -> Any:
    """Give a module the weights of a dictionary of arrays."""
    try:
        net.load_state_dict({name: tensor(np.array(array)) for name, array in weights.items()})
    except RuntimeError as error:
        raise ValueError(
            f"these weights are of another network: {' '.join(str(error).split())}\n"
            "  next: resume a run with the settings of its network (hidden, activation), or begin a new run."
        ) from None
    return net


def weights(net: nn.Module, prefix: str = "") -> dict[str, np.ndarray]:
    """Copy a module's weights into arrays."""
    return {prefix + name: tensor.detach().cpu().numpy().copy() for name, tensor in net.state_dict().items()}


class Adam:
    """Adam (Kingma and Ba 2015) over all parameters as one vector, with gradients that are cut to a norm.

    The parameters of the modules become views of the vector, so a step is a few operations however many layers there
    are: with its gradient it takes 0.6 of the time of `torch.optim.Adam` for a network of 64 x 64, and gives the same
    bits. And the first use of `torch.optim` imports torch's compiler, which takes as long as importing torch (0.8 s).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, eps: float = 1e-5) -> None:
        self.learning_rate, self._eps, self._betas, self._steps = learning_rate, eps, (0.9, 0.999), 0
        own = list(parameters)
        self._vector = torch.cat([parameter.data.reshape(-1) for parameter in own])
        self._gradient, self._first, self._second = (torch.zeros_like(self._vector) for _ in range(3))
        start = 0
        for parameter in own:
            end = start + parameter.numel()
            parameter.data = self._vector[start:end].view_as(parameter)
            parameter.grad = self._gradient[start:end].view_as(parameter)
            start = end

    def step(
        self,
        loss: Tensor | tuple[Tensor, ...],
        norm_max: float = math.inf,
        slopes: Any = None,
        add_up: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Make one step down the gradient of a loss; or of tensors, given the slope of the loss along each of them.

        `add_up` replaces the gradient by the sum of those of several learners.
        """
        self._gradient.zero_()
        torch.autograd.backward(loss, slopes)
        if add_up is not None:
            add_up(self._gradient)
        gradient, (beta, beta_second) = self._gradient, self._betas
        if norm_max < math.inf:
            gradient.mul_((norm_max / (gradient.norm() + 1e-6)).clamp(max=1.0))
        self._steps += 1
        self._first.lerp_(gradient, 1 - beta)
        self._second.mul_(beta_second).addcmul_(gradient, gradient, value=1 - beta_second)
        scale = math.sqrt(1 - beta_second**self._steps)
        deviation = self._second.sqrt().div_(scale).add_(self._eps)
        self._vector.addcdiv_(self._first, deviation, value=-self.learning_rate / (1 - beta**self._steps))

    def state(self) -> dict[str, np.ndarray]:
        """Copy the moments into arrays, for a checkpoint."""
        moments = {"first": self._first.numpy().copy(), "second": self._second.numpy().copy()}
        return {**moments, "steps": np.array(self._steps)}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Go on with the moments of a checkpoint."""
        self._first.copy_(torch.from_numpy(np.array(arrays["first"])))
        self._second.copy_(torch.from_numpy(np.array(arrays["second"])))
        self._steps = int(arrays["steps"])


def state(nets: dict[str, nn.Module], **optimizers: Adam) -> dict[str, np.ndarray]:
    """Copy the weights of modules and the state of their optimisers into arrays, for a checkpoint."""
    tensors: dict[str, np.ndarray] = {}
    for name, net in nets.items():
        tensors |= weights(net, f"{name}.")
    for name, optimizer in optimizers.items():
        tensors |= {f"{name}.{key}": array for key, array in optimizer.state().items()}
    return tensors


def restore(tensors: dict[str, np.ndarray], nets: dict[str, nn.Module], **optimizers: Adam) -> None:
    """Give modules and optimisers back what `state` copied."""
    for name, net in nets.items():
        load(net, files.part(tensors, name))
    for name, optimizer in optimizers.items():
        optimizer.restore(files.part(tensors, name))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use a number of threads, and the number from before afterwards. Sums of floats depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Distribution:
    """The distribution of actions that a head's outputs describe: log-probabilities and entropy, with gradients."""

    def __init__(self, network: Network, outputs: Tensor, log_std: Tensor | None = None) -> None:
        self._network, self._outputs, self._log_std = network, outputs, log_std
        if network.head == "categorical":
            sizes = list(network.action["sizes"])
            self._logits = [torch.log_softmax(part, -1) for part in torch.split(outputs, sizes, -1)]

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of a batch of actions, as `Block.actions` has them."""
        if self._network.head == "categorical":
            chosen = actions.reshape(len(actions), -1)
            parts = [part.gather(-1, chosen[:, i : i + 1])[:, 0] for i, part in enumerate(self._logits)]
            return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
        assert self._log_std is not None
        z = (actions.reshape(len(actions), -1) - self._outputs) * torch.exp(-self._log_std)
        return -(0.5 * z * z + self._log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def slopes(self, actions: Tensor, weights: Tensor, entropy: float) -> tuple[Tensor, ...]:
        """The gradient of sum(weights * log_prob(actions)) + entropy * sum(entropy()): to the outputs, and to log_std.

        Written out, it takes a third of the time that `backward` takes from there.
        """
        if self._network.head == "categorical":
            chosen, parts = actions.reshape(len(actions), -1), []
            for i, logs in enumerate(self._logits):
                chances = logs.exp()
                slope = chances * -weights[:, None]
                slope.scatter_add_(-1, chosen[:, i : i + 1], weights[:, None])
                if entropy:
                    surprise = (chances * logs).sum(-1, keepdim=True)
                    slope -= entropy * chances * (logs - surprise)
                parts.append(slope)
            return (torch.cat(parts, -1) if len(parts) > 1 else parts[0],)
        assert self._log_std is not None
        inverse = torch.exp(-self._log_std)
        z = (actions.reshape(len(actions), -1) - self._outputs) * inverse
        spread = ((z * z - 1.0) * weights[:, None]).sum(0) + entropy * len(actions)
        return z * inverse * weights[:, None], spread

    def entropy(self) -> Tensor:
        """Entropy of the distribution for each observation."""
        if self._network.head == "categorical":
            return -torch.stack([(part.exp() * part).sum(-1) for part in self._logits]).sum(0)
        assert self._log_std is not None
        return (self._log_std + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(len(self._outputs))


def squashed_sample(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw tanh-squashed actions in [-1, 1] and their log-probabilities, with gradients to the outputs."""
    mean, log_std = outputs.chunk(2, -1)
    log_std = log_std.clamp(*LOG_STD_RANGE)
    drawn = mean + log_std.exp() * noise
    # log(1 - tanh²) in a form that does not lose everything where tanh is close to ±1.
    correction = 2 * (math.log(2) - drawn - torch.nn.functional.softplus(-2 * drawn))
    density = -0.5 * noise * noise - log_std - 0.5 * math.log(2 * math.pi)
    return torch.tanh(drawn), (density - correction).sum(-1)
