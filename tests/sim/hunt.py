"""Look for the first seed that finds a mutant, or replay one.

python tests/sim/hunt.py none --from 17 --seeds 1      replay a history of the code as it is
python tests/sim/hunt.py no-epoch-check --seeds 2000   the first seed that finds this bug
python tests/sim/hunt.py all --save                    all of them; writes found.json; fails if one is not found
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from mutants import MUTANTS, applied
from register_world import RegisterWorld
from world import World

FOUND = Path(__file__).with_name("found.json")
SEEDS = 2000


def finding(name: str, seed: int) -> str:
    """What goes wrong with this bug and this seed; nothing if nothing does."""
    with applied(name):
        try:
            RegisterWorld(seed).run()
            World(seed).run()
        except Exception as error:  # whatever it is: the code as it is raises none
            return f"{type(error).__name__}: {error}"
    return ""


def hunt(name: str, begin: int, seeds: int) -> tuple[int, str] | None:
    for seed in range(begin, begin + seeds):
        if what := finding(name, seed):
            return seed, what
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mutant", choices=["all", "none", *MUTANTS])
    parser.add_argument("--from", dest="begin", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--save", action="store_true", help="write the seeds to found.json")
    options = parser.parse_args()
    names = list(MUTANTS) if options.mutant == "all" else [options.mutant]
    found: dict[str, int] = {}
    for name in names:
        began = time.process_time()
        result = hunt(name, options.begin, options.seeds)
        seconds = time.process_time() - began
        if result is None:
            print(f"{name}: nothing in {options.seeds} seeds, {seconds:.1f} s")
        else:
            found[name] = result[0]
            print(f"{name}: seed {result[0]}, {seconds:.1f} s: {result[1]}")
    if options.save:
        FOUND.write_text(json.dumps(found, indent=2) + "\n")
    if options.mutant == "none":
        return 1 if found else 0
    return 0 if len(found) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
