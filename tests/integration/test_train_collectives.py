"""Where a rank is that waits for others in torch: what train.run sees when it looks at ranks that are silent."""

from __future__ import annotations

from pathlib import Path

from programs import run_program

PROGRAM = '''
import gc, os, signal, threading, time

gc.disable()  # looking through what is imported takes a fifth of the time
import torch
import torch._dynamo  # which DistributedDataParallel imports when it is used
import torch.distributed as dist

from skate.train.worker import Worker


class Slow(torch.autograd.Function):
    """Code of the program that is slow within backward."""

    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, gradient):
        threading.Event().wait()


def train(rank, what):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/{what}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    loss = model(torch.ones(1)).sum()
    if rank == 1:
        threading.Event().wait()
    elif what == "all_reduce":
        dist.all_reduce(torch.ones(1))
    elif what == "backward":
        loss.backward()
    elif what == "slow":
        Slow.apply(loss).backward()


def watch(place, waits):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        look = Worker.look(None)
        if place in look.stack and look.waits == waits:
            os._exit(0)
        time.sleep(0.01)
    print(look)
    os._exit(1)


def fork(function, *arguments):
    pid = os.fork()
    if pid == 0:
        function(*arguments)
    return pid


def rank_0(what, place, waits):
    threading.Thread(target=watch, args=(place, waits)).start()
    train(0, what)


for what, place, waits in (
    ("joining", "in init_process_group", True),
    ("all_reduce", "in all_reduce", True),
    ("backward", "in backward", True),
    ("slow", "threading.Event().wait()", False),
):
    other = None if what == "joining" else fork(train, 1, what)
    _, code = os.waitpid(fork(rank_0, what, place, waits), 0)
    if other is not None:
        os.kill(other, signal.SIGKILL)
        os.wait()
    assert code == 0, what
'''


def test_a_rank_that_waits_for_others_is_told_from_one_that_is_slow_itself(tmp_path: Path) -> None:
    """One program, in which torch is imported once: each pair of ranks is forked from it."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    run_program(script)
