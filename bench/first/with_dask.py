"""The shortest whole program on Dask: import, start, one result."""

import sys

from distributed import Client


def f() -> int:
    return 1


if __name__ == "__main__":
    client = Client(n_workers=int(sys.argv[1]), threads_per_worker=1, dashboard_address=None)
    assert client.submit(f).result() == 1
    print("ready", flush=True)
    client.shutdown()
