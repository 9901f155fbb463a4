"""`skate submit`: run a command on the cluster, show its output, end with its exit code.

The command runs on the node of this machine, where the directory and the files are that it knows from here; with
--working-dir these go along, and it runs where there is room. In both cases SKATE_ADDRESS tells its `skate.init()`
which cluster to join. Ctrl-C ends the command, as it would have without `skate submit`; with --no-wait it is on its
own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
from typing import Any

import skate
from skate._wire.token import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from skate.cli import job as jobs
from skate.cli.asking import ask_cluster, resolve, with_token
from skate.cli.parser import USAGE, show_address
from skate.cli.trouble import Trouble
from skate.strategies import NodeAffinitySchedulingStrategy

#: How long an actor may take that has to find a worker on a busy cluster.
START_S = 60.0
ANSWER_S = 30.0
INTERRUPTED = 130


def submit(options: argparse.Namespace) -> int:
    command = options.words[1:] if options.words[:1] == ["--"] else options.words
    named = options.attach or options.cancel
    if bool(command) == bool(named):
        said = "a command and a job were given, and it takes one of them" if named else "no command was given"
        raise Trouble(f"{said}.", "for example: skate submit -- python train.py", exit_code=USAGE)
    if options.working_dir is not None and not os.path.isdir(options.working_dir):
        raise Trouble(f"--working-dir {options.working_dir} is not a directory.", "name one that is.")
    where, asking = ask_cluster(options)
    with asking:
        asking.ask("cluster")  # if something is wrong with the address or the token, this says what
    address = show_address((resolve(where[0]), where[1]))
    _connect(options, address, elsewhere=bool(named) or options.working_dir is not None)
    try:
        if options.cancel:
            return _cancel(options.cancel)
        if options.attach:
            return _follow(options.attach, _find(options.attach))
        return _run(options, command, address)
    except skate.exceptions.SkateError as error:
        raise Trouble(f"the job was lost: {str(error).splitlines()[0]}", "see `skate status`.") from error
    finally:
        skate.shutdown()


def _connect(options: argparse.Namespace, address: str, *, elsewhere: bool) -> None:
    """Become a driver, through the node of this machine or, if the job is to run `elsewhere`, without one."""
    settings: dict[str, Any] = {"namespace": jobs.NAMESPACE, "log_to_driver": False}
    try:
        skate.init(address, **settings)
        return
    except ConnectionError:
        if not elsewhere:
            join = f"skate start --address {address}{with_token(options)}"
            raise Trouble(
                f"no node of the cluster at {address} runs on this machine, where the command and its files are.",
                f"send the files along with --working-dir, or make it a node: {join}",
            ) from None
    if options.token_file is not None:
        os.environ[TOKEN_FILE_VARIABLE] = os.path.abspath(options.token_file)
        os.environ.pop(TOKEN_VARIABLE, None)
    try:
        skate.init(f"skate://{address}", **settings)
    except ConnectionError as error:
        raise Trouble(f"the cluster at {address} could not be joined: {error}") from None


def _run(options: argparse.Namespace, command: list[str], address: str) -> int:
    id = secrets.token_hex(4)
    chosen: dict[str, Any] = {"name": jobs.name_of(id), "lifetime": "detached"}
    packed = None
    if options.working_dir is None:
        here = skate.get_runtime_context().get_node_id()
        chosen["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
    else:
        try:
            packed = jobs.pack(options.working_dir)
        except jobs.TooLarge:
            raise Trouble(
                f"--working-dir {options.working_dir} has more than {jobs.WORKING_DIR_BYTES_MAX >> 20} MiB, packed.",
                "put large files where all nodes can read them.",
            ) from None
        except OSError as error:
            raise Trouble(f"--working-dir {options.working_dir} cannot be read: {error}.") from None
    supervisor = jobs.Supervisor.options(**chosen).remote(id, command, address, os.getcwd(), packed)
    try:
        about = skate.get(supervisor.about.remote(), timeout=START_S)
    except skate.exceptions.ActorDiedError as error:
        raise Trouble(f"the command could not be started: {_cause(error)}", _advice(options)) from error
    if options.no_wait:
        print(f"Job {id} runs on node {about['node_id'][:12]} (pid {about['pid']}).\n")
        print(f"  output   {about['output']}, or skate submit --attach {id}")
        print(f"  end      skate submit --cancel {id}")
        return 0
    return _follow(id, supervisor)


def _cause(error: BaseException) -> str:
    """What the supervisor said."""
    for line in reversed(str(error).splitlines()):
        if "CannotRun: " in line:
            return line.partition("CannotRun: ")[2]
    return str(error).splitlines()[0]


def _advice(options: argparse.Namespace) -> str:
    if options.working_dir is None:
        return "the command runs on a node of the cluster; --working-dir sends files along."
    return "the command has to be on the node's PATH, or in the directory that goes along."


def _find(id: str) -> Any:
    try:
        return skate.get_actor(jobs.name_of(id))
    except ValueError:
        raise Trouble(
            f"there is no job {id}: it has ended and was asked for, or never was.",
            "its output is in ~/.skate/logs/jobs of the node that it ran on.",
        ) from None


def _follow(id: str, supervisor: Any) -> int:
    """Its output, until it ends."""
    at = 0
    code: int | None = None
    reader = secrets.token_hex(4)
    try:
        while code is None:
            data, code = skate.get(supervisor.read.remote(reader, at), timeout=ANSWER_S)
            at += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("\nskate: ending the job …\n")
        skate.get(supervisor.cancel.remote(reader), timeout=ANSWER_S)
        _release(supervisor, reader)
        return INTERRUPTED
    _release(supervisor, reader)
    if code < 0:
        sys.stderr.write(f"skate: job {id} was ended by signal {-code}.\n")
        return 128 - code
    return code


def _cancel(id: str) -> int:
    supervisor = _find(id)
    reader = secrets.token_hex(4)
    skate.get(supervisor.cancel.remote(reader), timeout=ANSWER_S)
    _release(supervisor, reader)
    print(f"Ended job {id}.")
    return 0


def _release(supervisor: Any, reader: str) -> None:
    """End the supervisor of a job that is over, unless others have still to hear from it how it ended."""
    with contextlib.suppress(skate.exceptions.ActorDiedError):  # the last of them was as quick
        if skate.get(supervisor.release.remote(reader), timeout=ANSWER_S):
            skate.kill(supervisor)
