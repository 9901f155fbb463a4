"""Dask on Ray: arrays, frames, delayed functions and a graph by hand, beside Dask's own sequential scheduler."""

import json
import operator

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import ray
from ray.util.dask import RayDaskCallback, disable_dask_on_ray, enable_dask_on_ray, ray_dask_get, ray_dask_persist
from tally import tally


def main() -> None:
    ray.init(num_cpus=2)
    array = da.random.default_rng(7).random((200, 200), chunks=50)
    frame = dd.from_pandas(pd.DataFrame({"a": np.arange(500) % 7, "b": np.arange(500)}), npartitions=5)

    @dask.delayed
    def square(number: int) -> int:
        return number * number

    collections = {
        "matrix": (array @ array.T).sum(),
        "means": array.mean(axis=0)[:3],
        "groups": frame.groupby("a").b.sum(),
        "shuffled": frame.shuffle("a").groupby("a").size(),
        "squares": dask.delayed(sum)([square(number) for number in range(20)]),
    }

    def plain(value: object) -> object:
        return value.sort_index().to_dict() if isinstance(value, pd.Series) else np.asarray(value).tolist()

    found = {name: plain(each.compute(scheduler=ray_dask_get)) for name, each in collections.items()}
    with enable_dask_on_ray():
        enabled = {name: plain(each.compute()) for name, each in collections.items()}
        (stored,) = ray_dask_persist(array)
        persisted = float(stored.sum().compute())
    disable_dask_on_ray()
    expected = {name: plain(each.compute(scheduler="synchronous")) for name, each in collections.items()}

    graph = {"x": 1, "y": (operator.add, "x", 2), "z": (sum, ["x", "y", (operator.mul, "y", 10)]), "w": "z"}
    submitted = []
    with RayDaskCallback(ray_postsubmit=lambda task, key, deps, object_ref: submitted.append(key)):
        by_hand = ray_dask_get(graph, ["w", ["y", "x"]])
    error = ""
    try:
        dask.delayed(lambda: 1 / 0)().compute(scheduler=ray_dask_get)
    except ZeroDivisionError as raised:
        error = type(raised).__name__

    print(
        json.dumps(
            {
                "found": found,
                "enabled": enabled,
                "expected": expected,
                "persisted": [persisted, float(array.sum().compute(scheduler="synchronous"))],
                "by_hand": by_hand,
                "submitted": sorted(submitted),
                "error": error,
                "ran": tally(),
            }
        )
    )


if __name__ == "__main__":
    main()
