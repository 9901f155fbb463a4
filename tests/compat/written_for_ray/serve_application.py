"""Ray Serve: composition, handles, HTTP, FastAPI, batches, models, streams, new configurations, status."""

import asyncio
import json
import socket
import urllib.request

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, HTTPOptions
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponse, DeploymentResponseGenerator
from starlette.requests import Request
from starlette.responses import JSONResponse


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=10)
class Doubler:
    def __init__(self) -> None:
        self.factor = 1

    def reconfigure(self, config: dict) -> None:
        self.factor = config["factor"]

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.01)
    async def scaled(self, numbers: list[int]) -> list[int]:
        return [number * self.factor for number in numbers]

    async def __call__(self, number: int) -> int:
        return await self.scaled(number)

    def tenants(self) -> str:
        context = serve.get_replica_context()
        return f"{context.app_name}/{context.deployment}"


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Chooser:
    def __init__(self, doubler: DeploymentHandle) -> None:
        self.doubler = doubler

    async def __call__(self, request: Request) -> JSONResponse:
        body = await request.json()
        responses: list[DeploymentResponse] = [self.doubler.remote(number) for number in body["numbers"]]
        return JSONResponse({"doubled": await asyncio.gather(*responses), "path": request.url.path})

    async def chained(self, number: int) -> int:
        return await self.doubler.remote(self.doubler.remote(number))

    def words(self, count: int):
        for index in range(count):
            yield f"word {index}"


app = FastAPI()


@serve.deployment(ray_actor_options={"num_cpus": 0})
@serve.ingress(app)
class Greeter:
    @app.get("/hello")
    def hello(self, name: str) -> str:
        return f"Hello {name}"


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Models:
    @serve.multiplexed(max_num_models_per_replica=2)
    async def get_model(self, model_id: str) -> str:
        return model_id.upper()

    async def __call__(self, text: str) -> str:
        return f"{await self.get_model(serve.get_multiplexed_model_id())}:{text}"


@serve.deployment(
    autoscaling_config=AutoscalingConfig(min_replicas=1, max_replicas=2, target_ongoing_requests=1),
    ray_actor_options={"num_cpus": 0},
    max_ongoing_requests=1,
    max_queued_requests=1,
)
class Busy:
    async def __call__(self) -> str:
        await asyncio.sleep(0.2)
        return "done"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def main() -> None:
    ray.init(num_cpus=4)
    port = free_port()
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
    doubler = Doubler.options(user_config={"factor": 2}).bind()
    handle = serve.run(Chooser.bind(doubler), name="chooser", route_prefix="/choose")

    def post(path: str, body: object) -> object:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    said: dict[str, object] = {"http": post("/choose", {"numbers": [1, 2, 3]})}
    said["chained"] = handle.chained.remote(5).result()
    streamed: DeploymentResponseGenerator = handle.options(stream=True).words.remote(3)
    said["words"] = list(streamed)
    said["tenants"] = serve.get_deployment_handle("Doubler", "chooser").tenants.remote().result()

    serve.run(Chooser.bind(Doubler.options(user_config={"factor": 3}).bind()), name="chooser", route_prefix="/choose")
    said["reconfigured"] = serve.get_deployment_handle("Doubler", "chooser").remote(7).result()

    serve.run(Greeter.bind(), name="greeter", route_prefix="/greet")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/greet/hello?name=Ada") as answer:
        said["fastapi"] = json.load(answer)

    models = serve.run(Models.bind(), name="models", route_prefix="/models")
    said["models"] = [models.options(multiplexed_model_id=name).remote("x").result() for name in ("a", "b", "a")]

    busy = serve.run(Busy.bind(), name="busy", route_prefix="/busy")
    outcomes = []
    for response in [busy.remote() for _ in range(8)]:
        try:
            outcomes.append(response.result())
        except BackPressureError as error:
            outcomes.append("refused" if isinstance(error, RayServeException) else repr(error))
    said["busy"] = sorted(set(outcomes))

    status = serve.status()
    said["status"] = {name: app.status for name, app in status.applications.items()}
    said["deployments"] = sorted(status.applications["chooser"].deployments)
    serve.delete("busy")
    said["left"] = sorted(serve.status().applications)
    serve.shutdown()
    print(json.dumps(said, default=str))


if __name__ == "__main__":
    main()
