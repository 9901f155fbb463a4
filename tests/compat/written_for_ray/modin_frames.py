"""Modin on its engine "ray": the same operations on its frames and on those of pandas."""

import json
import os
import tempfile

os.environ["MODIN_ENGINE"] = "ray"
os.environ["MODIN_CPUS"] = "2"

import modin.pandas as mpd
import numpy as np
import pandas as pd
import ray
from tally import tally


def run(frames, path: str) -> dict:
    rng = np.random.default_rng(11)
    frame = frames.DataFrame({"k": rng.integers(0, 5, 2000), "v": rng.random(2000), "w": rng.integers(0, 100, 2000)})
    other = frames.DataFrame({"k": range(5), "name": list("abcde")})
    results = {
        "sums": frame.groupby("k").sum(),
        "merged": frame.merge(other, on="k").groupby("name")["v"].mean(),
        "applied": frame["w"].apply(lambda w: w % 7).value_counts().sort_index(),
        "ordered": frame.sort_values(["w", "v"]).head(5),
        "described": frame.describe(),
        "read": frames.read_csv(path).query("w > 50")[["v", "w"]].mean(),
        "rows": frame.apply(lambda row: row["v"] * row["w"], axis=1).head(7),
        "joined": frames.concat([frame.head(3), frame.tail(3)]).reset_index(drop=True),
    }
    return {name: plain(result) for name, result in results.items()}


def plain(result) -> dict:
    """Its values, with their names and types."""
    result = result._to_pandas() if hasattr(result, "_to_pandas") else result
    labels = {"index": result.index.tolist(), "types": str(result.dtypes)}
    if isinstance(result, pd.DataFrame):
        labels["columns"] = result.columns.tolist()
    return {"values": result.values.round(6).tolist(), **labels}


def main() -> None:
    ray.init(num_cpus=2)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        rng = np.random.default_rng(3)
        pd.DataFrame({"v": rng.random(5000), "w": rng.integers(0, 100, 5000)}).to_csv(file.name, index=False)
        found = run(mpd, file.name)
        ran = tally()
        print(json.dumps({"found": found, "expected": run(pd, file.name), "ran": ran}))


if __name__ == "__main__":
    main()
