"""`skate rl serve RUN`: a trained policy answers programs, and plays in a browser."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from websockets.sync.client import connect

from chromium import needs_chromium, page
from skate import rl
from waiting import wait_for


@pytest.fixture
def policy() -> rl.Policy:
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    return rl.Policy.create(env.observation_space, env.action_space, seed=3)


@pytest.fixture
def address(policy: rl.Policy, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where `skate rl serve` answers, as it says itself. It is ended by a TERM signal, or by Ctrl-C after the page."""
    run = tmp_path / "ppo-CartPole-v1-1"
    run.mkdir()
    policy.save(run)
    command = [sys.executable, "-m", "skate.cli", "rl", "serve", str(run), "--env", "CartPole-v1", "--port", "0"]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        line = served.stdout.readline()
        found = re.search(r"http://\S+/", line)
        assert found is not None, (line, served.stderr and served.stderr.read())
        yield found[0]
        served.send_signal(signal.SIGINT if "page" in request.node.name else signal.SIGTERM)
        assert served.wait(30) == 0
    finally:
        if served.poll() is None:
            served.kill()
        served.communicate()


def act(address: str, body: object) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(f"{address}act", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_it_answers_programs_as_the_policy_acts(address: str, policy: rl.Policy) -> None:
    observations = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    for observation in observations:
        assert act(address, {"observation": observation.tolist()}) == (200, {"action": policy.act(observation)})
    for wrong in ({"observation": [1, 2]}, {"observation": "high"}, {"seen": [0, 0, 0, 0]}):
        status, answer = act(address, wrong)
        assert status == 422
        assert "observation" in str(answer["field"])
    with connect(f"{address.replace('http', 'ws')}loop") as socket:  # a closed loop, over one connection
        for observation in observations:
            socket.send(observation.tobytes())
            (action,) = np.frombuffer(socket.recv(timeout=10), np.float32)
            assert action == policy.act(observation)


@needs_chromium
def test_the_page_shows_it_playing(address: str, tmp_path: Path) -> None:
    with page() as shown:
        shown.open(address)
        steps = "parseInt(document.getElementById('step')?.textContent)"
        wait_for(lambda: shown.value(f"{steps} > 3"), 30, "steps on the page")
        wait_for(lambda: shown.value("document.getElementById('stage').naturalWidth") > 100, 30, "a picture")
        assert shown.value("document.title") == "CartPole-v1 · ppo-CartPole-v1-1"
        assert shown.value("document.getElementById('state').textContent") == "connected"
        shown.save_picture(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
