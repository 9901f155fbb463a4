"""Environments as lanes see them: N of them, stepped together, with one meaning of autoreset.

gymnasium has three meanings (`AutoresetMode`), EnvPool another spelling of the first, and a single `Env` has none.
Here they are one. `step` returns, beside rewards and flags,

- `observations`: what the policy acts on next, already of the new episode where one has ended;
- `finals`: the last observation of each episode that ended in this step, which is what a value is estimated from;
- `real`: False where an environment spent the step on resetting itself (next-step autoreset). Nothing was done then, so
  nothing may be learnt from it.

Observations are flattened as `spaces` describes.
"""

from __future__ import annotations

import importlib
import inspect
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np

from skate.rl import spaces

_HERE = os.path.dirname(__file__)
#: In the text of an error that names a line of the environment itself.
_PLACED = " is in "

#: What gymnasium asks of a method.
_CONTRACTS = {
    "reset": "reset() takes `seed` and `options` by name, and gives an observation and a dictionary",
    "step": "step() gives an observation, a reward, terminated, truncated and a dictionary",
}


class EnvError(RuntimeError):
    """An environment could not be made, or failed while it was simulated. The text names it, its lane and the line."""


class Step(NamedTuple):
    """What one step of all environments gives."""

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    real: np.ndarray
    finals: dict[int, np.ndarray]


class Envs(ABC):
    """N environments of one kind that are stepped together."""

    count: int
    observation: spaces.Description
    action: spaces.Description
    observation_space: Any
    action_space: Any

    def _describe(self, env: Any, observation_space: Any, action_space: Any, count: int) -> None:
        self.observation_space, self.action_space, self.count = observation_space, action_space, count
        try:
            self.observation = spaces.describe(observation_space)
            self.action = spaces.describe_action(action_space)
        except TypeError as error:
            raise TypeError(f"{error}{_place('the environment', type(getattr(env, 'unwrapped', env)))}") from None
        self.shape, self.dtype = spaces.shape_and_dtype(self.observation)
        self._all_real = np.ones(count, bool)

    @abstractmethod
    def reset(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        """Begin an episode in every environment; their first observations."""

    @abstractmethod
    def step(self, actions: np.ndarray) -> Step:
        """Step every environment."""

    @abstractmethod
    def one(self, i: int) -> Any:
        """Give the environment with an index, or the vector environment that it is a part of."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments."""


class Loop(Envs):
    """Single environments, stepped one after the other in this process."""

    def __init__(self, envs: list[Any]) -> None:
        self.envs = envs
        self._describe(envs[0], envs[0].observation_space, envs[0].action_space, len(envs))
        self._steps = [env.step for env in envs]
        self._flat = spaces.is_flat(self.observation)
        #: Type of observations that are used without a check. None, which no observation has, if all must be flattened.
        self._kind = np.ndarray if self._flat else None

    def reset(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        observations = np.empty((self.count, *self.shape), self.dtype)
        for i in range(self.count):
            observations[i] = self.reset_one(i, None if seeds is None else int(seeds[i]))
        return observations

    def reset_one(self, i: int, seed: int | None = None) -> np.ndarray:
        """Begin an episode in one environment."""
        return self._checked(i, reset_named(self.envs[i], seed=seed), "reset")

    def step_one(self, i: int, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Step one environment, and leave it at the end of its episode: observation, reward, terminated, truncated."""
        try:
            observation, reward, over, cut, _ = self._steps[i](action)
        except (TypeError, ValueError) as error:
            raise_placed(self.envs[i], "step", error)
        kind, shape, dtype = self._kind, self.shape, self.dtype
        if type(observation) is not kind or observation.dtype is not dtype or observation.shape != shape:
            observation = self._checked(i, observation)
        if not isinstance(reward, (int, float)):
            reward = float(self._numbers([reward], i)[0])
        return observation, reward, over, cut

    def step(self, actions: np.ndarray) -> Step:
        observations = np.empty((self.count, *self.shape), self.dtype)
        rewards, terminated, truncated, finals = [], [], [], {}
        kind, shape, dtype = self._kind, self.shape, self.dtype
        for i, action in enumerate(actions if actions.ndim > 1 else actions.tolist()):
            try:
                observation, reward, over, cut, _ = self._steps[i](action)
            except (TypeError, ValueError) as error:
                raise_placed(self.envs[i], "step", error)
            # Assigning would silently broadcast an observation of another shape, and convert one of another type.
            if type(observation) is not kind or observation.dtype is not dtype or observation.shape != shape:
                observation = self._checked(i, observation)
            if over or cut:
                finals[i] = np.array(observation, self.dtype)
                observation = self.reset_one(i)
            observations[i] = observation
            rewards.append(reward)
            terminated.append(bool(over))  # some give an array of one flag
            truncated.append(bool(cut))
        flags = np.array(terminated, bool), np.array(truncated, bool)
        return Step(observations, self._numbers(rewards), *flags, self._all_real, finals)

    def roll(
        self, i: int, observation: np.ndarray, actions: list[Any] | np.ndarray, out: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, list[tuple[int, bool, bool, np.ndarray]]]:
        """Run one environment through given actions; what it observed before each of them goes into `out`.

        Returns the observation after the last action, the rewards, and for each end of an episode its time, whether it
        terminated, whether it was truncated, and its last observation.
        """
        step, kind, shape, dtype = self._steps[i], self._kind, self.shape, self.dtype
        rewards: list[float] = []
        ends: list[tuple[int, bool, bool, np.ndarray]] = []
        # An environment may use its array again, so each observation is copied. Bytes are the cheapest copy.
        seen: list[bytes] = []
        for action in actions:
            seen.append(observation.tobytes())
            try:
                observation, reward, over, cut, _ = step(action)
            except (TypeError, ValueError) as error:
                raise_placed(self.envs[i], "step", error)
            if type(observation) is not kind or observation.dtype is not dtype or observation.shape != shape:
                observation = self._checked(i, observation).astype(dtype, copy=False)
            rewards.append(reward)
            if over or cut:
                ends.append((len(rewards) - 1, bool(over), bool(cut), np.array(observation, dtype)))
                observation = self.reset_one(i).astype(dtype, copy=False)
        out[:] = np.frombuffer(b"".join(seen), dtype).reshape(out.shape)
        return observation, self._numbers(rewards, i), ends

    def one(self, i: int) -> Any:
        return self.envs[i]

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _checked(self, i: int, observation: Any, method: str = "step") -> np.ndarray:
        problem, flat = "", np.empty(0)
        try:
            flat = np.asarray(observation) if self._flat else spaces.flatten_one(self.observation, observation)
            if flat.shape != self.shape:
                problem = f"of shape {flat.shape}, and its observation_space says {self.shape}"
            elif not spaces.fits(flat, self.dtype):
                problem = (
                    f"of {flat.dtype} with values that {self.dtype}, which its observation_space says, cannot hold"
                )
        except (ValueError, IndexError, KeyError, TypeError) as error:
            problem = f"that is not in its observation_space ({error!r})"
        if problem:
            raise wrong(self.envs[i], method, f"environment {i} gave an observation {problem}") from None
        return flat

    def _numbers(self, rewards: list[Any], i: int | None = None) -> np.ndarray:
        """Rewards of all environments, or of environment `i` one after the other, as an array."""
        numbers: np.ndarray = np.empty((0, 0))
        with suppress(TypeError, ValueError):
            numbers = np.array(rewards, np.float64)  # six times as fast as going to float32 at once
        if numbers.ndim == 1:
            return numbers.astype(np.float32)
        odd = next((k for k, reward in enumerate(rewards) if np.ndim(reward)), 0)
        which = odd if i is None else i
        said = f"{rewards[odd]!r} as a reward, and that is one number"
        raise wrong(self.envs[which], "step", f"environment {which} gave {said}")


class Vector(Envs):
    """A vector environment of gymnasium, ALE or EnvPool, in whichever way it resets itself."""

    def __init__(self, env: Any) -> None:
        self.env = env
        single_observation = getattr(env, "single_observation_space", env.observation_space)
        single_action = getattr(env, "single_action_space", env.action_space)
        count = env.num_envs if hasattr(env, "num_envs") else len(env)
        self._describe(env, single_observation, single_action, count)
        # EnvPool says nothing: it resets in the step after the end.
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode", "NextStep")
        self._mode = str(getattr(mode, "value", mode))
        self._ended = np.zeros(self.count, bool)
        # gymnasium's own take a seed for each environment, others one for all, and EnvPool when it is made.
        own = isinstance(
            getattr(env, "unwrapped", env), gymnasium.vector.SyncVectorEnv | gymnasium.vector.AsyncVectorEnv
        )
        self._seeds_taken = 0 if _is_envpool(env) else self.count if own else 1

    def reset(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        self._ended = np.zeros(self.count, bool)
        if seeds is None or not self._seeds_taken:
            return self._checked(reset_named(self.env), "reset")
        taken = [int(seed) for seed in seeds[: self._seeds_taken]]
        return self._checked(reset_named(self.env, seed=taken if self._seeds_taken > 1 else taken[0]), "reset")

    def step(self, actions: np.ndarray) -> Step:
        try:
            raw, rewards, terminated, truncated, info = self.env.step(actions)
        except (TypeError, ValueError) as error:
            raise_placed(self.env, "step", error)
        observations = self._checked(raw)
        # Copies: the next step may use the same arrays again.
        rewards, terminated = np.array(rewards, np.float32), np.array(terminated, bool)
        truncated = np.array(truncated, bool)
        if not rewards.shape == terminated.shape == truncated.shape == (self.count,):
            shapes = rewards.shape, terminated.shape, truncated.shape
            said = f"the vector environment gave rewards and flags of shapes {shapes}, not ({self.count},)"
            raise wrong(self.env, "step", said)
        ended = terminated | truncated
        finals: dict[int, np.ndarray] = {}
        real = self._all_real
        if self._mode == "NextStep":
            if self._ended.any():
                real = ~self._ended
                terminated, truncated, ended = terminated & real, truncated & real, ended & real
            if ended.any():
                finals = {int(i): observations[i].copy() for i in np.flatnonzero(ended)}
            self._ended = ended
        elif ended.any():
            if self._mode == "SameStep":
                finals = {int(i): self._final(info, int(i)) for i in np.flatnonzero(ended)}
            else:
                finals = {int(i): observations[i].copy() for i in np.flatnonzero(ended)}
                observations = self._checked(reset_named(self.env, options={"reset_mask": ended}), "reset")
        return Step(observations, rewards, terminated, truncated, real, finals)

    def one(self, i: int) -> Any:
        return self.env

    def close(self) -> None:
        self.env.close()

    def _final(self, info: Any, i: int) -> np.ndarray:
        last = info.get("final_obs")
        if last is None:
            said = "the vector environment resets in the step in which an episode ends, and its dictionary has no"
            raise wrong(self.env, "step", f"{said} 'final_obs': the last observations of the episodes that ended")
        if isinstance(last, dict):
            return spaces.flatten_one(self.observation, {key: part[i] for key, part in last.items()})
        if isinstance(last, tuple):
            return spaces.flatten_one(self.observation, tuple(part[i] for part in last))
        return spaces.flatten_one(self.observation, last[i]).copy()

    def _checked(self, observations: Any, method: str = "step") -> np.ndarray:
        flat = spaces.flatten(self.observation, observations)
        if flat.shape != (self.count, *self.shape):
            said = f"observations of shape {flat.shape}; its spaces say {(self.count, *self.shape)}"
        elif not spaces.fits(flat, self.dtype):
            said = f"observations of {flat.dtype} with values that {self.dtype}, which its spaces say, cannot hold"
        else:
            return flat
        raise wrong(self.env, method, f"the vector environment gave {said}")


def make_envs(env: Any, count: int, seed: int = 0, single: bool = False, any_size: bool = False) -> Envs:
    """Make `count` environments from an id, a spec or a factory.

    A factory that has parameters named `num_envs` or `seed` gets them, so a factory of a vector environment can make
    one of the size that is asked for; environments that it makes one by one get a seed each. `single` asks for
    environments that can be reset one by one, where there is a choice. With it or `any_size` a vector environment may
    have any size.
    """
    if isinstance(env, str):
        env = find_spec(env)
    if isinstance(env, gymnasium.envs.registration.EnvSpec):
        entry = env.vector_entry_point
        if entry is not None and not single and not env.additional_wrappers and "Jax" not in str(entry):
            return Vector(gymnasium.make_vec(env, num_envs=count, vectorization_mode="vector_entry_point"))
        return Loop([gymnasium.make(env, disable_env_checker=True) for _ in range(count)])
    first = _call(portable(env), count, seed)
    if hasattr(first, "num_envs") or hasattr(first, "single_action_space") or _is_envpool(first):
        vector = Vector(first)
        if vector.count != count and not single and not any_size:
            raise ValueError(
                f"the factory made {vector.count} environments and envs={count} were asked for. "
                "Give the factory a parameter `num_envs`, or pass envs= with the number it makes."
            )
        return vector
    seeds = np.random.SeedSequence(seed).generate_state(count) >> 1
    return Loop([first, *(_call(env, count, int(each)) for each in seeds[1:])])


def portable(env: Any) -> Any:
    """What other processes can make environments from; an id that is registered here alone becomes its spec."""
    if isinstance(env, str):
        return gymnasium.registry.get(env, env)
    if callable(env) or isinstance(env, gymnasium.envs.registration.EnvSpec):
        return env
    raise TypeError(
        f"an environment is given as an id, a gymnasium spec or a factory, and this is {type(env).__name__}. "
        "Each lane makes environments of its own: pass a function that makes one."
    )


def name_of(env: Any) -> str:
    """What to call an environment in texts and folders."""
    if isinstance(env, str):
        return env
    env = getattr(env, "func", env)  # of a partial
    spec = getattr(env, "spec", env)
    name = getattr(spec, "id", None) or getattr(env, "__qualname__", None) or type(env).__name__
    return str(name).replace("<lambda>", "lambda").replace("<locals>.", "")


class blamed(AbstractContextManager[None]):  # noqa: N801 - it is used like a function
    """Raise an EnvError for anything that goes wrong inside, with the environment, the lane and the line.

    A class and not a generator: contextlib takes a RuntimeError that a StopIteration caused for one of Python's own,
    and lets the StopIteration through.
    """

    def __init__(self, env: Any, lane: int | None = None) -> None:
        self._env, self._lane = env, lane

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (Exception, SystemExit)) or isinstance(error, EnvError):
            return
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _imports(frame.filename)]
        shown = [frame for frame in frames if os.path.dirname(frame.filename) != _HERE]
        if not shown and _PLACED not in str(error):
            shown = frames[-1:]
        where = "" if self._lane is None else f" in lane {self._lane}"
        text = f"{name_of(self._env)} failed{where}: {type(error).__name__}: {error}\n"
        raise EnvError((text + "".join(traceback.format_list(shown))).rstrip()) from error


def reset_named(env: Any, **arguments: Any) -> Any:
    """Reset an environment, and give what it observes. An error names the place where its `reset` is written."""
    try:
        begun = env.reset(**arguments)
    except TypeError as error:
        raise_placed(env, "reset", error)
    if isinstance(begun, tuple) and len(begun) == 2:
        return begun[0]
    raise wrong(env, "reset", f"the environment gave {spaces.given(begun)} from reset(); {_CONTRACTS['reset']}")


def not_finite(array: np.ndarray) -> str:
    """What keeps numbers from being finite in float32, the type of networks and buffers; empty if they are finite."""
    if array.dtype.kind != "f":
        return ""
    numbers = array
    if array.itemsize > 4:
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32)
    if np.isfinite(numbers).all():
        return ""
    return "NaN" if np.isnan(array).any() else "infinite" if np.isinf(array).any() else "too large for float32"


def wrong(env: Any, method: str, said: str) -> ValueError:
    """Make the error for what a method of an environment gave, with the place where that method is written."""
    return ValueError(f"{said}.{_place(f'its {method}()', _method(env, method))}")


def raise_placed(env: Any, method: str, error: Exception) -> NoReturn:
    """Raise the error of a call. If its traceback does not show the environment's own method, the text names the place.

    It shows no place where the call itself fails, or the code that unpacks what a step gave: a wrapper's, or ours.
    """
    code = getattr(_method(env, method), "__code__", None)
    if code is None or code.co_filename in {frame.filename for frame in traceback.extract_tb(error.__traceback__)}:
        raise error
    raise wrong(env, method, f"{error}; {_CONTRACTS[method]}") from error


def _method(env: Any, name: str) -> Any:
    return getattr(getattr(env, "unwrapped", env), name, None)


def _place(what: str, function: Any) -> str:
    """Where a function, or a class or object that is called like one, is written: a line for an error, or nothing."""
    function = inspect.unwrap(getattr(function, "func", function))  # of a partial
    methods = ("__init__", "reset", "step") if isinstance(function, type) else ("__call__",)
    candidates = [function, *(getattr(function, method, None) for method in methods)]
    code = next((each.__code__ for each in candidates if hasattr(each, "__code__")), None)
    return f"\n  {what}{_PLACED}{code.co_filename}:{code.co_firstlineno}" if code else ""


def find_spec(name: str) -> Any:
    """The spec that an id names. As in `gymnasium.make`, `module:id` imports the module that registers it."""
    module, _, identifier = name.rpartition(":")
    if module:
        importlib.import_module(module)
    elif name.startswith("ALE/"):
        try:
            importlib.import_module("ale_py")
        except ModuleNotFoundError as error:
            said = f"{error}, which has the games of Atari: pip install ale-py"
            raise gymnasium.error.DependencyNotInstalled(said) from None
    return gymnasium.spec(identifier)


def _imports(file: str) -> bool:
    """Whether a file is Python's own machinery of importing: many lines of a traceback that say nothing."""
    return file.startswith("<frozen importlib") or file == importlib.__file__


def _is_envpool(env: Any) -> bool:
    return type(env).__module__.startswith("envpool") or type(env).__name__.endswith("EnvPool")


def _call(factory: Callable[..., Any], count: int, seed: int) -> Any:
    parameters: Mapping[str, Any] = {}
    with suppress(TypeError, ValueError):  # a function in C may not say what it takes
        parameters = inspect.signature(factory).parameters
    given = {name: value for name, value in {"num_envs": count, "seed": seed}.items() if name in parameters}
    try:
        made = factory(**given)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # from inside of the factory: the traceback shows where
        said = "a factory is called without arguments, or with those of num_envs and seed that it has"
        raise TypeError(f"{error}; {said}.{_place('the factory', factory)}") from None
    if isinstance(made, type):
        said = f"the factory gave the class {made.__name__} and not an environment: it must call it, or be the class"
        raise TypeError(f"{said}.{_place('the factory', factory)}")
    if missing := [name for name in ("reset", "step", "observation_space", "action_space") if not hasattr(made, name)]:
        raise TypeError(
            f"the factory gave {spaces.given(made)}, and it must give an Env or a VectorEnv of gymnasium: "
            f"this has no {', no '.join(missing)}.{_place('the factory', factory)}"
        )
    return made
