"""What the programs of every peer share: servers in processes of their own, load on them, and what that cost."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import models  # noqa: E402
import numpy as np  # noqa: E402
from http_client import Connection, Target, WrongAnswer  # noqa: E402

import processes  # noqa: E402
from program import main  # noqa: E402,F401

#: Processes that a peer starts find the modules of this folder.
os.environ["PYTHONPATH"] = str(HERE)

STARTS_WITHIN_S = 60
ENDS_WITHIN_S = 10
#: A rate of models by HTTP is of so many requests at least, unless that takes longer than this.
REQUESTS_MIN, SECONDS_MAX = 20, 24.0
#: How many clients, one after another, measure the latency of a server.
CLIENTS = 7
NUMBERS, JSON = "application/octet-stream", "application/json"


# -- servers -----------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def server(command: list[str], target: Target, kind: dict[str, Any] | None = None) -> Iterator[Target]:
    """Run a server until its target answers, and end it afterwards. kind: the model that it serves."""
    environment = {**os.environ, models.VARIABLE: json.dumps(kind or {"batch_ms": 0})}
    with tempfile.TemporaryFile() as said:
        started = subprocess.Popen(
            [sys.executable, *command], cwd=HERE, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        try:
            try:
                wait_until_answers(target, lambda: started.poll() is None)
            except WrongAnswer:
                said.seek(0)
                print(said.read().decode()[-2000:], file=sys.stderr)
                raise
            yield target
        finally:
            _end(started)


def _end(started: subprocess.Popen[bytes]) -> None:
    """End a server and the processes of its session, which its supervisor may leave behind."""
    for request in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, request)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(ENDS_WITHIN_S)


def wait_until_answers(target: Target, lives: Callable[[], bool] = lambda: True) -> None:
    """Ask again and again until the answer is right. Raises WrongAnswer if that does not come."""
    give_up, last = time.monotonic() + STARTS_WITHIN_S, "nothing"
    while time.monotonic() < give_up and lives():
        try:
            with Connection(target) as connection:
                connection.ask()
                return
        except (OSError, WrongAnswer) as error:
            last = str(error)
            time.sleep(0.005)
    raise WrongAnswer(f"no server answers at {target.url}: {last}")


def uvicorn(app: str, target: Target, workers: int = 1, kind: dict[str, Any] | None = None) -> Any:
    """An ASGI app of a module of this folder under uvicorn, without its log of every request."""
    command = ["-m", "uvicorn", app, "--port", str(target.port), "--workers", str(workers), "--loop", "uvloop"]
    return server([*command, "--http", "httptools", "--log-level", "warning", "--no-access-log"], target, kind)


# -- load --------------------------------------------------------------------------------------------------------------


def load(function: str, **arguments: Any) -> Any:
    """Run a function of load.py in a process of its own; what it found. Raises WrongAnswer."""
    given = pickle.dumps((function, arguments))
    done = subprocess.run([sys.executable, "-E", str(HERE / "load.py")], input=given, capture_output=True)
    if done.returncode:
        raise WrongAnswer((done.stderr.decode().strip().splitlines() or ["the load program failed"])[-1])
    return json.loads(done.stdout)


def latency_beside_bare(target: Target, count: int) -> dict[str, Any]:
    """The row `http`: one connection, where the target and a bare uvicorn take turns.

    Which core the kernel runs a client on, seen from its server, stays as it is for a while, and makes 20 µs. So the
    figures are the medians of several clients, each a new process. Two bare servers show what is left of that.
    """
    bare = Target(free_port())
    with uvicorn("bare_side:app", bare):
        rounds = [load("latency", target=target, bare=bare, count=count // CLIENTS) for _ in range(CLIENTS)]
    middle = {
        figure: {name: statistics.median(one[figure][name] for one in rounds) for name in rounds[0][figure]}
        for figure in rounds[0]
    }
    return {**flat(middle, "us"), "added_p50_of_each_client": [one["us"]["added p50"] for one in rounds]}


def episodes(port: int, steps: int) -> dict[str, Any]:
    """The row `websocket`: CartPole in a closed loop with a policy that a server has."""
    found = load("episodes", port=port, path="/loop", steps=steps)
    return {"us": {name: found[name] for name in ("p50", "p99")}, "episodes": found["episodes"]}


_SCRIPT = """
wrk.method = "{method}"
{body}
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('{{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "errors": %d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""
_BODY = """
local file = io.open("{path}", "rb")
wrk.body = file:read("*all")
wrk.headers["Content-Type"] = "{content_type}"
"""


def wrk(target: Target, connections: int, seconds: float) -> dict[str, Any]:
    """Requests a second of `wrk -t1`, and how many cores wrk itself and the whole machine used meanwhile."""
    program = _wrk_program()
    with tempfile.TemporaryDirectory() as folder:
        body = ""
        if target.body:
            Path(folder, "body").write_bytes(target.body)
            body = _BODY.format(path=Path(folder, "body"), content_type=target.content_type)
        script = Path(folder, "request.lua")
        script.write_text(_SCRIPT.format(method=target.method, body=body))
        command = [program, "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
        began, before = time.perf_counter(), processes.machine_cpu_seconds()
        started = subprocess.Popen([*command, "-s", str(script), target.url], stdout=subprocess.PIPE, text=True)
        assert started.stdout is not None
        said = started.stdout.read()
        _, started.returncode, used = os.wait4(started.pid, 0)
        took = time.perf_counter() - began
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if not lines:
        raise WrongAnswer(f"wrk said {said[-300:]!r}")
    found = json.loads(lines[-1])
    if found["errors"]:
        raise WrongAnswer(f"wrk counts {found['errors']} errors in {found['requests']} requests")
    return {
        "requests": found["requests"],
        "requests_per_s": found["requests"] / found["duration_us"] * 1e6,
        "p50_us": found["p50_us"],
        "p99_us": found["p99_us"],
        "wrk_cores": (used.ru_utime + used.ru_stime) / took,
        "machine_cores": (processes.machine_cpu_seconds() - before) / took,
    }


def _wrk_program() -> str:
    """The path of wrk, which is installed where that can be done. Ends this program with the reason where it cannot."""
    if shutil.which("wrk") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-qq", "wrk"], capture_output=True)
    found = shutil.which("wrk")
    if found is None:
        print(json.dumps({"failed": "skipped, because wrk is not installed; next: apt-get install wrk, as root"}))
        sys.exit()
    return found


def rate(target: Target, seconds: float, connections: int = 64) -> dict[str, Any]:
    """The row `http_rate`: requests a second, after a second that does not count."""
    wrk(target, connections, 1)
    found = wrk(target, connections, seconds)
    shown = {"requests/s": found["requests_per_s"], "wrk, cores": found["wrk_cores"]}
    return {"rate": shown, **found}


# -- the rows of batches -----------------------------------------------------------------------------------------------


def check(found: np.ndarray[Any, Any], kind: dict[str, Any], given: np.ndarray[Any, Any]) -> None:
    """Raise WrongAnswer unless these are the answers of the model to these states."""
    expected = models.make(kind)(given)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-3, atol=1e-5):
        raise WrongAnswer(f"the answers are wrong: {found[:4]} in place of {expected[:4]}")


def http_states(target: Target, kind: dict[str, Any], given: np.ndarray[Any, Any], width: int, seconds: float) -> float:
    """States a second of requests with these states, `width` of them in flight, after a check of one answer."""
    body = bytes(load("answer", target=target)["body"])
    found = (
        json.loads(body) if target.content_type == JSON and body.startswith(b"[") else np.frombuffer(body, np.float32)
    )
    check(np.asarray(found, np.float32), kind, given)
    wrk(target, width, 1)
    while True:
        # wrk leaves requests behind, and servers go on with them: an answer says that they are done.
        load("ask", target=target, connections=1, count=1)
        done = wrk(target, width, seconds)
        # A server that takes a second for a request would be measured by two or three of them, or by none.
        if done["requests"] >= REQUESTS_MIN or seconds >= SECONDS_MAX:
            break
        seconds = min(SECONDS_MAX, seconds * 4)
    if not done["requests"]:
        raise WrongAnswer(f"no answer within {seconds:g} s")
    return float(done["requests_per_s"]) * len(given)


def over_http(
    serve: Callable[[dict[str, Any], int, np.ndarray[Any, Any]], Any],
    loads: dict[str, Any],
    states: int,
    widths: dict[str, int],
    seconds: float,
) -> dict[str, Any]:
    """The rows of table 3 by HTTP. serve: starts a server of a model, for states of a size, and gives the target."""
    found = {}
    for name, one in loads.items():
        given = models.states(states, one["bytes"])
        with serve(one["model"], one["bytes"], given) as target:
            for suffix, width in widths.items():
                found[name + suffix] = http_states(target, one["model"], given, width, seconds)
    return {"states_per_s": found}


def flat(found: dict[str, Any], figure: str) -> dict[str, Any]:
    """The figures with each number of a series under a name of its own, for aims at one of them."""
    own = {"".join(c if c.isalnum() else "_" for c in f"{figure} {name}"): v for name, v in found[figure].items()}
    return {**found, **own}


# -- open loop ---------------------------------------------------------------------------------------------------------


def open_loop(
    find_capacity: Callable[[], dict[str, float]],
    offer: Callable[[float], dict[str, float]],
    shares: list[int],
    low_rate: float,
) -> dict[str, Any]:
    """The row `open_loop`, by HTTP or by handle: random arrivals at shares of what the peer can do."""
    capacity = find_capacity()
    low = offer(low_rate)
    runs = {f"{share} %": offer(capacity["per_s"] * share / 100) for share in shares}
    shown = {f"p50 at {low_rate:g}/s": low["p50"], **{f"p99 at {name}": run["p99"] for name, run in runs.items()}}
    own = {f"p99_{share}_ms": runs[f"{share} %"]["p99"] for share in shares}
    return {"ms": shown, "low_p50_ms": low["p50"], **own, "capacity": capacity, "runs": {"low": low, **runs}}


def open_loop_over_http(
    target: Target, shares: list[int], low_rate: float, seconds: float, width: int
) -> dict[str, Any]:
    return open_loop(
        lambda: load("closed", target=target, width=width, seconds=seconds),
        lambda rate: load("poisson", target=target, rate=rate, seconds=seconds),
        shares,
        low_rate,
    )


# -- memory ------------------------------------------------------------------------------------------------------------


def megabytes() -> float:
    """The proportional set size of this process and all below it. Every shared page counts once."""
    # A daemon may have left this tree. The suite is the parent of those, and then of this process, too.
    return processes.pss_bytes({os.getpid(), *processes.descendants(os.getppid())}) / 1e6
