"""What a worker does after the fork: meet the daemon, then run tasks until it is ended."""

from __future__ import annotations

import os
import site
import socket
import sys
from typing import TYPE_CHECKING

# Shared by all workers: the zygote imports this module.
from skate._serialize import errors, patches, pickler  # noqa: F401
from skate._wire.messages import Hello
from skate._worker import current
from skate._worker.output import tag_output
from skate._worker.runtime import Runtime

if TYPE_CHECKING:
    from skate._node.zygote import WorkerStart

WELCOME_TIMEOUT_S = 60.0

# The interpreter was started without `site`, which is a fifth of its start; user code may still call exit() or help().
site.setquit()
site.sethelper()


def run(start: WorkerStart) -> None:
    """The life of a worker. Does not return."""
    runtime = Runtime(socket.socket(fileno=start.control_fd), slot=start.slot, arena_fd=start.arena_fd)
    current.set_runtime(runtime)
    runtime.start(Hello(os.getpid(), "worker"), WELCOME_TIMEOUT_S)
    executor = runtime.executor
    assert executor is not None
    tag_output(executor.current_task, executor.task_name)
    sys.argv = [""]
    executor.run()
