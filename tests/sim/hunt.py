"""Look for the first seed that finds a mutant, or replay one.

python tests/sim/hunt.py none --from 17 --seeds 1      replay a history of the chains as the code is
python tests/sim/hunt.py none --part control ...       the same of the control state
python tests/sim/hunt.py no-epoch-check --seeds 2000   the first seed that finds this bug
python tests/sim/hunt.py all --save                    all of them; writes the seeds; fails if one is not found
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import control_mutants
import mutants
from control_world import World as ControlWorld
from patches import Mutants
from register_world import RegisterWorld
from world import World

FOLDER = Path(__file__).parent
SEEDS = 2000


def run_chains(seed: int) -> None:
    RegisterWorld(seed).run()
    World(seed).run()


def run_control(seed: int) -> None:
    ControlWorld(seed).run()


@dataclass(frozen=True)
class Part:
    """A simulation with its mutants, and where their seeds are kept."""

    run: Callable[[int], None]
    mutants: Mutants
    found: Path


PARTS = {
    "chain": Part(run_chains, mutants.MUTANTS, FOLDER / "found.json"),
    "control": Part(run_control, control_mutants.MUTANTS, FOLDER / "control_found.json"),
}


def part_of(name: str) -> Part:
    return next(part for part in PARTS.values() if name in part.mutants)


def finding(part: Part, name: str, seed: int) -> str:
    """What goes wrong with this bug and this seed; nothing if nothing does."""
    with part.mutants.applied(name):
        try:
            part.run(seed)
        except Exception as error:  # whatever it is: the code as it is raises none
            return f"{type(error).__name__}: {error}"
    return ""


def near(part: Part, name: str, seeds: int) -> int | None:
    """A seed that finds the bug, not far from the one that found it first.

    A change of the simulation makes another history of every seed. Then some seed nearby finds the bug, or the change
    made the simulation blind to it.
    """
    stored: int = json.loads(part.found.read_text())[name]
    begin = max(0, stored - seeds // 2)
    return next((seed for seed in (stored, *range(begin, begin + seeds)) if finding(part, name, seed)), None)


def hunt(part: Part, name: str, begin: int, seeds: int) -> tuple[int, str] | None:
    for seed in range(begin, begin + seeds):
        if what := finding(part, name, seed):
            return seed, what
    return None


def main() -> int:
    names = [name for part in PARTS.values() for name in part.mutants]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mutant", choices=["all", "none", *names])
    parser.add_argument("--part", choices=list(PARTS), help="only this simulation")
    parser.add_argument("--from", dest="begin", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--save", action="store_true", help="write down the seeds")
    options = parser.parse_args()
    if options.mutant == "none":
        part = PARTS[options.part or "chain"]
        result = hunt(part, "none", options.begin, options.seeds)
        print(f"none: nothing in {options.seeds} seeds" if result is None else f"none: seed {result[0]}: {result[1]}")
        return 0 if result is None else 1
    is_complete = True
    for part in [PARTS[options.part]] if options.part else PARTS.values():
        found: dict[str, int] = {}
        for name in part.mutants:
            if options.mutant not in ("all", name):
                continue
            began = time.process_time()
            result = hunt(part, name, options.begin, options.seeds)
            seconds = time.process_time() - began
            if result is None:
                is_complete = False
                print(f"{name}: nothing in {options.seeds} seeds, {seconds:.1f} s", flush=True)
            else:
                found[name] = result[0]
                print(f"{name}: seed {result[0]}, {seconds:.1f} s: {result[1][:200]}", flush=True)
        if options.save and found:
            kept = json.loads(part.found.read_text()) if part.found.exists() else {}
            seeds = {name: seed for name, seed in {**kept, **found}.items() if name in part.mutants}
            part.found.write_text(json.dumps(seeds, indent=2) + "\n")
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
