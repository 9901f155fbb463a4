"""A trained policy that answers over the network: `skate rl serve RUN`.

    POST /act    {"observation": [...]}  ->  {"action": 1}
    /loop        a websocket: raw float32 observations in, actions out, one for one; choices come as one-hot vectors
    /            a page that shows the policy playing
    /play        the websocket of that page: an environment of its own for each visitor, frame by frame

>>> from skate import serve
>>> serve.run(application("runs/ppo-CartPole-v1-1"), port=8000)
"""

from __future__ import annotations

import asyncio
import html
import io
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from skate import serve
from skate.rl import spaces
from skate.rl.options import stored
from skate.rl.policy import Policy

__all__ = ["PolicyServer", "application"]

PAGE = Path(__file__).with_name("play.html")
FRAMES_PER_SECOND = 30
#: Visitors of the page that play at a time: each has an environment, which takes CPU time and memory.
PLAYING_MAX = 16
#: Numbers of an observation that the page shows where there is no picture.
NUMBERS_SHOWN = 64


def application(run: str | os.PathLike[str], env: str | None = None, *, replicas: int = 1) -> serve.Application:
    """Make the application that serves the policy of a run. The page plays `env`, or the environment of the run."""
    path = Path(run).resolve()
    Policy.load(path)  # what is wrong with the folder is said here
    name = env or stored(os.fspath(path))["env"]
    made = serve.deployment(name="policy", num_replicas=replicas, max_ongoing_requests=256)(PolicyServer)
    return made.bind(path, name)


class Query(msgspec.Struct):
    """The body of a request for an action."""

    #: A list of numbers; lists of lists for an image, a number for a choice, an object for the parts of a dict.
    observation: Any


class PolicyServer:
    """Acts on observations: the policy's best action for each."""

    def __init__(self, run: Path, env: str) -> None:
        self._policy = Policy.load(run)
        self._env, self._run = env, run.name
        self._shape, self._dtype = spaces.shape_and_dtype(self._policy.network.observation)
        self._playing = 0

    def reconfigure(self, policy: Policy) -> None:
        """Act with another policy from now on: new weights while it serves."""
        self._policy = policy

    @serve.batch(latency_ms=10)
    async def act(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        """Act on each of several observations, as the network gets them."""
        policy = self._policy
        return list(policy.to_env(policy.choose(policy.outputs(np.stack(rows)), None)))

    def row(self, observation: Any) -> np.ndarray:
        """One observation as the network gets it. Raises ValueError, TypeError or LookupError if it is none."""
        description = self._policy.network.observation
        if spaces.is_flat(description):
            return np.asarray(observation, self._dtype).reshape(self._shape)
        return spaces.flatten_one(description, observation)

    @serve.post("/act")
    async def act_on_json(self, query: Query) -> Any:
        """Answer with the action for an observation: `{"observation": [...]}` gives `{"action": ...}`."""
        try:
            row = self.row(query.observation)
        except (ValueError, TypeError, OverflowError, LookupError) as error:
            from starlette.responses import JSONResponse

            description = self._policy.network.observation
            wanted = spaces.form(description) + (f" of {self._dtype}" if spaces.is_flat(description) else "")
            return JSONResponse({"error": f"an observation is {wanted}: {error}", "field": "$.observation"}, 422)
        action = await self.act(row)
        return {"action": np.asarray(action).tolist()}

    @serve.websocket("/loop")
    async def loop(self, socket: serve.WebSocket) -> None:
        """Answer every observation with an action: the closed loop of an environment, over one connection."""
        async for observation in socket.arrays(np.float32, self._shape):
            await socket.send(np.asarray(await self.act(observation.astype(self._dtype, copy=False)), np.float32))

    @serve.get("/")
    async def page(self) -> Any:
        """Show the policy playing."""
        from starlette.responses import HTMLResponse

        names = {"{env}": self._env, "{run}": self._run}
        text = PAGE.read_text()
        for place, name in names.items():
            text = text.replace(place, html.escape(name))
        return HTMLResponse(text)

    @serve.websocket("/play")
    async def play(self, socket: serve.WebSocket) -> None:
        """Play episodes for a visitor: a line of JSON for each step, and a picture if the environment has one."""
        if self._playing >= PLAYING_MAX:
            await socket.close(1013, "too many visitors play at present")
            return
        self._playing += 1
        game: Game | None = None
        try:
            game = await asyncio.to_thread(Game, self._env)
            row = self.row(await asyncio.to_thread(game.reset))
            while not socket.is_over:
                due = time.monotonic() + game.pause_s
                asked = time.perf_counter()
                action = await self.act(row)
                answered_ms = 1e3 * (time.perf_counter() - asked)
                observation, told, picture = await asyncio.to_thread(game.step, action)
                row = self.row(observation)
                seen = row.ravel()[:NUMBERS_SHOWN].astype(np.float64).round(4).tolist()
                await socket.send({**told, "answered_ms": round(answered_ms, 3), "observation": seen})
                if picture:
                    await socket.send(picture)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        except OSError:  # the visitor has gone
            pass
        finally:
            self._playing -= 1
            if game is not None:
                await asyncio.to_thread(game.close)


class Game:
    """An environment that is played for one visitor."""

    def __init__(self, env: str) -> None:
        import gymnasium

        from skate.rl.env import find_spec

        spec = find_spec(env)
        try:
            self._env = gymnasium.make(spec, render_mode="rgb_array")
            self._env.reset()
            self._env.render()
            self._draws = True
        except Exception:  # noqa: BLE001 - what draws it is not installed: the page shows numbers
            self._env = gymnasium.make(spec)
            self._draws = False
        self.pause_s = 1.0 / float(self._env.metadata.get("render_fps") or FRAMES_PER_SECOND)
        self._episode, self._step, self._return, self._last = 0, 0, 0.0, None

    def reset(self) -> Any:
        """Begin an episode; its first observation."""
        self._episode, self._step, self._return = self._episode + 1, 0, 0.0
        observation, _ = self._env.reset()
        return observation

    def step(self, action: Any) -> tuple[Any, dict[str, Any], bytes]:
        """Act; the next observation, what the page is told, and a picture, which is empty if there is none."""
        kind = getattr(self._env.action_space, "n", None)
        observation, reward, terminated, truncated, _ = self._env.step(int(action) if kind is not None else action)
        self._step, self._return = self._step + 1, self._return + float(reward)
        over = bool(terminated or truncated)
        told = {
            "episode": self._episode,
            "step": self._step,
            "return": round(self._return, 3),
            "over": over,
            "draws": self._draws,
            "action": np.asarray(action).tolist(),
        }
        picture = self._picture() if self._draws else b""
        return self.reset() if over else observation, told, picture

    def close(self) -> None:
        """End the environment."""
        self._env.close()

    def _picture(self) -> bytes:
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(np.asarray(self._env.render())).save(file, "JPEG", quality=80)
        return file.getvalue()
