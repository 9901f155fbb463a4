"""A class behind `@serve.deployment` has `bind` and `options`; it stays a class in annotations."""

from __future__ import annotations

from skate import serve


@serve.deployment(num_replicas=2)
class Brain:
    def __init__(self, path: str) -> None:
        self.path = path


@serve.deployment
class Api:
    def __init__(self, brain: serve.DeploymentHandle) -> None:
        self.brain = brain


@serve.deployment
async def hello(request: object) -> str:
    return "hello"


reveal_type(Brain.bind("runs"))  # reveals: Application
reveal_type(Brain.options(num_replicas=1).bind("runs"))  # reveals: Application
reveal_type(hello.bind())  # reveals: Application
reveal_type(serve.run(Api.bind(Brain.bind("runs"))))  # reveals: DeploymentHandle


def path_of(brain: Brain) -> str:
    return brain.path
