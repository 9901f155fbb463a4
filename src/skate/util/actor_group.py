"""A number of actors of one class, called together. Ray has deprecated the class and keeps it; programs use it."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import skate


@dataclass
class ActorWrapper:
    """An actor of a group, and what its method `get_actor_metadata` returned, if it has that."""

    actor: Any
    metadata: Any


@dataclass
class ActorConfig:
    """How the actors of a group are made."""

    num_cpus: float
    num_gpus: float
    resources: Mapping[str, float] | None
    init_args: Sequence[Any]
    init_kwargs: Mapping[str, Any]


class ActorGroupMethod:
    """A method of all actors of a group: `.remote(...)` calls it in each and returns the list of references."""

    def __init__(self, actor_group: ActorGroup, method_name: str) -> None:
        #: Weakly, so that a method that is kept somewhere does not keep the actors.
        self.actor_group = weakref.ref(actor_group)
        self._method_name = method_name

    def remote(self, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call the method in every actor of the group, in their order."""
        group = self.actor_group()
        if group is None:
            raise RuntimeError(f"the ActorGroup that {self._method_name} belongs to is gone, and its actors with it.")
        return [getattr(each.actor, self._method_name).remote(*args, **kwargs) for each in group.actors]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self._method_name} is a method of the actors of a group and cannot be called directly.\n"
            f"  next: group.{self._method_name}.remote(...) calls it in each and returns a list of references."
        )


class ActorGroup:
    """A number of actors of one class.

        >>> group = ActorGroup(Worker, num_actors=2, init_args=("a",))
        >>> skate.get(group.double.remote(4))
        [8, 8]
        >>> group.shutdown()

    `group.method.remote(...)` calls the method in every actor. `group[i].actor` is the handle of one of them, and
    `group[i].metadata` what its method `get_actor_metadata` returned when the actor was made, else None.
    """

    def __init__(
        self,
        actor_cls: type,
        num_actors: int = 1,
        num_cpus_per_actor: float = 1,
        num_gpus_per_actor: float = 0,
        resources_per_actor: Mapping[str, float] | None = None,
        init_args: Sequence[Any] | None = None,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.actors: list[ActorWrapper] = []
        if num_actors < 1:
            raise ValueError(f"ActorGroup(num_actors={num_actors!r}): a group has one actor or more.")
        if num_cpus_per_actor < 0 or num_gpus_per_actor < 0:
            raise ValueError(
                f"ActorGroup(num_cpus_per_actor={num_cpus_per_actor!r}, num_gpus_per_actor={num_gpus_per_actor!r}): "
                "neither may be negative."
            )
        self.num_actors = num_actors
        self.actor_config = ActorConfig(
            num_cpus_per_actor, num_gpus_per_actor, resources_per_actor, tuple(init_args or ()), dict(init_kwargs or {})
        )
        self._remote_cls: Any = skate.remote(
            num_cpus=num_cpus_per_actor, num_gpus=num_gpus_per_actor, resources=resources_per_actor
        )(actor_cls)
        self.start()

    def __getattr__(self, name: str) -> ActorGroupMethod:
        if name.startswith("__") or "actors" not in self.__dict__:  # as asked for by copy and pickle
            raise AttributeError(name)
        if not self.actors:
            raise RuntimeError(
                f"the ActorGroup has no actors, and {name!r} would be called in none.\n"
                "  next: start() after shutdown() makes them again; add_actors(n) adds some."
            )
        return ActorGroupMethod(self, name)

    def __len__(self) -> int:
        return len(self.actors)

    def __getitem__(self, index: int) -> ActorWrapper:
        return self.actors[index]

    @property
    def actor_metadata(self) -> list[Any]:
        """The metadata of each actor, in their order."""
        return [each.metadata for each in self.actors]

    def start(self) -> None:
        """Make `num_actors` actors, after `shutdown`. A RuntimeError if the group has actors.

        >>> group.start()
        """
        if self.actors:
            raise RuntimeError(
                f"the ActorGroup has {len(self.actors)} actors already.\n  next: shutdown() first, to make them again."
            )
        self.add_actors(self.num_actors)

    def add_actors(self, num_actors: int) -> None:
        """Make that many further actors of the same kind.

        >>> group.add_actors(2)
        """
        config = self.actor_config
        made = [self._remote_cls.remote(*config.init_args, **config.init_kwargs) for _ in range(num_actors)]
        has_metadata = bool(made) and hasattr(made[0], "get_actor_metadata")
        metadata = (
            skate.get([actor.get_actor_metadata.remote() for actor in made]) if has_metadata else [None] * len(made)
        )
        self.actors += [ActorWrapper(actor, about) for actor, about in zip(made, metadata, strict=True)]

    def remove_actors(self, actor_indexes: Collection[int]) -> None:
        """Let the actors at these positions go: each ends, unless another handle to it exists.

        >>> group.remove_actors([0])
        """
        self.actors = [each for index, each in enumerate(self.actors) if index not in actor_indexes]

    def shutdown(self, patience_s: float = 5) -> None:
        """End all actors: in order, after the calls that were made; after `patience_s` seconds those that are left are
        killed. With 0 all are killed at once.

        >>> group.shutdown()
        """
        left, self.actors = self.actors, []
        if patience_s > 0:
            # The reference to this call never gets a value: it fails when the actor has ended.
            ending = {each.actor.__ray_terminate__.remote(): each for each in left}
            _, waiting = skate.wait(list(ending), num_returns=len(ending), timeout=patience_s) if ending else ([], [])
            left = [ending[ref] for ref in waiting]
        for each in left:
            skate.kill(each.actor)
