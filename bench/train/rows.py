"""The rows of the suite: which programs are measured against each other, with which settings, and what we aim at."""

from __future__ import annotations

from typing import Any

from suite import Cell, Row, Want

#: Of each network the batch of a worker, and the steps that are measured. With 64 samples a worker the network of
#: 25 million parameters would compute for so long that its communication hardly showed.
LOADS = {"resnet": [64, 200], "mlp": [16, 60]}
TINY_LOADS = {"resnet": [4, 2], "mlp": [2, 2]}
DDP: dict[str, Any] = {"arguments": {"loads": LOADS}, "smoke": {"loads": TINY_LOADS}}

#: Programs and their environments.
SKATE: dict[str, Any] = {"program": "skate_side", "environment": "train"}
TORCHRUN: dict[str, Any] = {"program": "torchrun_side", "environment": "train"}
RAY: dict[str, Any] = {"program": "raytrain_side", "environment": "raytrain"}
OPENMPI: dict[str, Any] = {"program": "openmpi_side", "environment": "openmpi"}

SMALL_SIZES = {"names": ["4 B", "4 KB", "1 MB"], "repeats": 3}
NODES = {"counts": [2, 4, 8, 16], "size": "100 MB", "repeats": 5}
SMALL_NODES = {"counts": [2, 3], "size": "1 MB", "repeats": 2}
RING = {"delays_ms": [0, 1, 5, 10], "nodes": 8, "repeats": 5}
SMALL_RING = {"delays_ms": [0, 10], "nodes": 3, "size": 100_000, "repeats": 1}


def _trials(sampler: str, **row: Any) -> Row:
    task = {"arguments": {"sampler": sampler}}
    return Row(
        f"trials_{sampler}",
        f"seconds of 100 trivial trials with Optuna's {'RandomSampler' if sampler == 'random' else 'TPESampler'}, two "
        "at a time; imports and the start of workers are not counted, as far as the peer has them apart",
        {
            "skate": Cell(row="trials", **SKATE, **task, smoke={"count": 10}),
            "optuna alone": Cell(row="alone", **SKATE, **task, smoke={"count": 10}),
            "ray tune": Cell(row="trials", **RAY, **task, smoke={"count": 3}, runs=1),
        },
        figure="seconds",
        more_is_better=False,
        aims={"ray tune": 1 / 20},
        **row,
    )


ROWS = {
    row.name: row
    for row in [
        Row(
            "ddp",
            "samples a second of two workers with DistributedDataParallel: a small ResNet on 32 x 32, 64 a worker, and "
            "an MLP of 25 million parameters, 16 a worker",
            {
                "skate": Cell(row="ddp", **SKATE, **DDP),
                "skate hook": Cell(
                    row="ddp",
                    **SKATE,
                    arguments={"loads": LOADS, "hook": True},
                    smoke={"loads": TINY_LOADS},
                ),
                "torchrun": Cell(row="ddp", **TORCHRUN, **DDP),
                "ray train": Cell(row="ddp", **RAY, **DDP),
            },
            figure="samples_per_s",
            aims={"torchrun": 0.98, "ray train": 1.0},
            wants=(
                Want("skate hook", "torchrun", 0.98, ("resnet",)),
                Want("skate hook", "torchrun", 1.2, ("mlp",)),
                Want("skate hook", "ray train", 1.0),
            ),
        ),
        Row(
            "first_step",
            "seconds from the beginning of a program to the end of its first optimiser step on two workers",
            {
                "skate": Cell(row="first_step", **SKATE),
                "torchrun": Cell(row="first_step", **TORCHRUN),
                "ray train": Cell(row="first_step", **RAY),
            },
            figure="seconds",
            more_is_better=False,
            aims={"torchrun": 1.0, "ray train": 1 / 3},
            runs=5,
        ),
        Row(
            "killed",
            "seconds from kill -9 of one of two workers to the end of the first step after the restore",
            {
                "skate": Cell(row="killed", **SKATE),
                "ray train": Cell(row="killed", **RAY),
            },
            figure="seconds",
            more_is_better=False,
            aims={"ray train": 1.0},
            own={"beyond_import_s": -3.0, "equal": 1.0},
        ),
        Row(
            "report",
            "a report without a checkpoint: the median time of the call, and until the driver has seen it",
            {
                "skate": Cell(row="report", **SKATE, smoke={"count": 20}),
                # Every report of Ray Train waits for the next time that its controller polls.
                "ray train": Cell(row="report", **RAY, arguments={"count": 15}, smoke={"count": 3}, runs=1),
            },
            figure="report",
            more_is_better=False,
            own={"call_us": -100.0, "seen_ms": -10.0},
        ),
        Row(
            "allreduce",
            "milliseconds of an allreduce of 32-bit floats, two ranks on one machine",
            {
                "skate": Cell(row="allreduce", **SKATE, smoke=SMALL_SIZES),
                "gloo": Cell(row="allreduce", **TORCHRUN, smoke=SMALL_SIZES),
                "openmpi sm": Cell(row="allreduce", **OPENMPI, arguments={"transports": "self,sm"}, smoke=SMALL_SIZES),
                "openmpi tcp": Cell(
                    row="allreduce", **OPENMPI, arguments={"transports": "self,tcp"}, smoke=SMALL_SIZES
                ),
            },
            figure="ms",
            more_is_better=False,
            wants=(
                Want("skate", "gloo", 1.0, ("4 KB", "64 KB")),
                Want("skate", "gloo", 1 / 2, ("1 MB", "4 MB", "100 MB", "1 GB")),
                Want("skate", "openmpi sm", 1.0, ("4 MB", "100 MB", "1 GB")),
                Want("skate", "openmpi tcp", 1 / 1.5, ("100 MB",)),
            ),
        ),
        Row(
            "figure_12a",
            "milliseconds of an allreduce of 100 MB between nodes in a box, one rank on each; OpenMPI with "
            "mpi_yield_when_idle where there are more ranks than cores",
            {
                "skate": Cell(row="nodes", **SKATE, arguments=NODES, smoke=SMALL_NODES),
                "gloo": Cell(row="nodes", **TORCHRUN, arguments=NODES, smoke=SMALL_NODES),
                "openmpi tcp": Cell(
                    row="nodes", **OPENMPI, arguments={"transports": "self,tcp", **NODES}, smoke=SMALL_NODES
                ),
            },
            figure="ms",
            more_is_better=False,
            aims={"openmpi tcp": 1 / 1.5},
        ),
        Row(
            "figure_12b",
            "milliseconds of a ring allreduce written as tasks, 8 nodes in a box and so 14 rounds, by the time that is "
            "added to the scheduling of each task",
            {
                "10 MB": Cell(row="ring", **SKATE, arguments={**RING, "size": 10_000_000}, smoke=SMALL_RING),
                "100 MB": Cell(row="ring", **SKATE, arguments={**RING, "size": 100_000_000}, smoke=SMALL_RING),
            },
            figure="ms",
            more_is_better=False,
        ),
        Row(
            "figure_13",
            "samples a second of two workers: a synchronous, sharded parameter server beside "
            "DistributedDataParallel, networks and batches of the row ddp",
            {
                "skate": Cell(row="parameter_server", **SKATE, **DDP),
                "skate ddp": Cell(row="ddp", **SKATE, **DDP),
                "torchrun": Cell(row="ddp", **TORCHRUN, **DDP),
            },
            figure="samples_per_s",
            aims={"skate ddp": 0.9},
        ),
        _trials("random", limit=0.5),
        _trials("tpe"),
    ]
}
