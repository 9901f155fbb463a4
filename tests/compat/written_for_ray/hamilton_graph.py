"""Hamilton: a graph of functions in tasks, and a branch for each of many values, beside the same in one process."""

import json
import os

import hamilton_steps
import ray
from hamilton import base, driver
from hamilton.execution.executors import SynchronousLocalTaskExecutor
from hamilton.plugins.h_ray import RayGraphAdapter, RayTaskExecutor
from tally import tally


def graph(adapter: object) -> dict:
    """The nodes of the graph, each a task."""
    steps = driver.Builder().with_modules(hamilton_steps).with_adapters(adapter).build()
    results = steps.execute(["joined", "process"], inputs={"start": 3})
    return {"joined": results["joined"].to_dict(), "process": int(results["process"])}


def branches(executor: object) -> list:
    """What each branch came to, and where it ran."""
    builder = driver.Builder().with_modules(hamilton_steps).enable_dynamic_execution(allow_experimental_mode=True)
    return builder.with_remote_executor(executor).build().execute(["squares"], inputs={"start": 6})["squares"]


def main() -> None:
    ray.init(num_cpus=2)
    found = graph(RayGraphAdapter(result_builder=base.DictResult()))
    ran = tally()
    ray.shutdown()
    print(
        json.dumps(
            {
                "found": found,
                "expected": graph(base.DefaultAdapter()),
                "branches": branches(RayTaskExecutor(num_cpus=2)),
                "expected_branches": branches(SynchronousLocalTaskExecutor()),
                "ran": ran,
                "pid": os.getpid(),
            }
        )
    )


if __name__ == "__main__":
    main()
