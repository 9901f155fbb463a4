"""The shortest whole program on a process pool: import, start, one result."""

import sys
from concurrent.futures import ProcessPoolExecutor


def f() -> int:
    return 1


if __name__ == "__main__":
    with ProcessPoolExecutor(int(sys.argv[1])) as pool:
        assert pool.submit(f).result() == 1
        print("ready", flush=True)
