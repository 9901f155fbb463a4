"""The shortest whole program on Skate: import, start, one result."""

import sys

import skate


@skate.remote
def f() -> int:
    return 1


skate.init(num_cpus=int(sys.argv[1]))
assert skate.get(f.remote()) == 1
print("ready", flush=True)
