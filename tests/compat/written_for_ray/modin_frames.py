"""Modin on its engine "ray": the same operations on its frames and on those of pandas."""

import json
import os

os.environ["MODIN_ENGINE"] = "ray"
os.environ["MODIN_CPUS"] = "2"

import modin.pandas as mpd
import numpy as np
import pandas as pd
import ray


def run(frames) -> dict:
    rng = np.random.default_rng(11)
    frame = frames.DataFrame({"k": rng.integers(0, 5, 2000), "v": rng.random(2000), "w": rng.integers(0, 100, 2000)})
    other = frames.DataFrame({"k": range(5), "name": list("abcde")})
    sums = frame.groupby("k").sum()
    merged = frame.merge(other, on="k").groupby("name")["v"].mean()
    applied = frame["w"].apply(lambda w: w % 7).value_counts().sort_index()
    ordered = frame.sort_values(["w", "v"]).head(5)
    return {
        "sums": sums.values.round(6).tolist(),
        "merged": merged.values.round(6).tolist(),
        "applied": applied.values.tolist(),
        "ordered": ordered.values.round(6).tolist(),
        "described": frame.describe().values.round(6).tolist(),
    }


def main() -> None:
    ray.init(num_cpus=2)
    print(json.dumps({"found": run(mpd), "expected": run(pd)}))


if __name__ == "__main__":
    main()
