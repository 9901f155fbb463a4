"""datatrove's RayPipelineExecutor: documents are read, filtered and written by actors, beside its local executor."""

import json
import os
import tempfile
from pathlib import Path

import ray
from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


def marked(document) -> bool:
    document.metadata["pid"] = os.getpid()
    return len(document.text) % 3 > 0


def run(executor: type, documents: Path, output: Path, **options) -> tuple:
    """The documents that each rank wrote, and the processes that it filtered them in."""
    writer = JsonlWriter(str(output), output_filename="${rank}.jsonl", compression=None)
    steps = [JsonlReader(str(documents)), LambdaFilter(marked), writer]
    executor(pipeline=steps, tasks=4, logging_dir=f"{output}-logs", **options).run()
    written = {each.name: [json.loads(line) for line in each.read_text().splitlines()] for each in output.iterdir()}
    texts = {name: [(each["id"], each["text"]) for each in written[name]] for name in sorted(written)}
    pids = {each["metadata"]["pid"] for documents in written.values() for each in documents}
    return texts, sorted(pids)


def main() -> None:
    ray.init(num_cpus=2)
    with tempfile.TemporaryDirectory() as folder:
        documents = Path(folder, "documents")
        documents.mkdir()
        for file in range(6):
            lines = [json.dumps({"id": f"{file}-{line}", "text": "x" * (file * line)}) for line in range(20)]
            (documents / f"{file}.jsonl").write_text("\n".join(lines))
        options = {"workers": 2, "tasks_per_job": 2, "randomize_start_duration": 0, "mem_per_cpu_gb": 0.5}
        found, pids = run(RayPipelineExecutor, documents, Path(folder, "found"), **options)
        expected, own = run(LocalPipelineExecutor, documents, Path(folder, "expected"))
    print(json.dumps({"found": found, "expected": expected, "pids": pids, "own": own, "pid": os.getpid()}))


if __name__ == "__main__":
    main()
