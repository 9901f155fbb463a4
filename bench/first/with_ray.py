"""The shortest whole program on Ray: import, start, one result."""

import sys

import ray


@ray.remote
def f() -> int:
    return 1


ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
assert ray.get(f.remote()) == 1
print("ready", flush=True)
