"""What can be said on the command line, and how it is checked before anything is started.

argparse of the standard library does: the core of Skate installs light, and six commands need no more. What argparse
says about mistakes is made into the same two lines as every other error.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from skate._core.version import VERSION

PORT = 6380
USAGE = 2

_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SUFFIXES |= {f"{letter}i": 1024**power for power, letter in enumerate("kmgt", start=1)}

#: Words that belong to libraries, and the module of each, whose `main` gets the words that follow. It is imported when
#: the word is used: a library may need packages that are not installed.
LIBRARY_COMMANDS = {"rl": "skate.rl.command", "serve": "skate.serve.command"}

Address = tuple[str, int]


class Parser(argparse.ArgumentParser):
    """Says what is wrong in two lines, without the whole usage in front of it."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message}\n  next: {self.prog} --help shows what there is.\n")
        sys.exit(USAGE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        unknown = next((word for word in rest if word.startswith("-")), None)
        if unknown is not None:
            known = [option for action in self._actions for option in action.option_strings]
            self.error(f"there is no option {unknown}{_nearest(unknown.partition('=')[0], known)}")
        return found, rest


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else "."


# -- values ------------------------------------------------------------------------------------------------------------


def address(text: str) -> Address:
    """host:port, with brackets around an IPv6 host."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is no address; it has the form HOST:PORT, as in 10.0.0.1:{PORT}.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def show_address(where: Address) -> str:
    host, port = where
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def rendezvous(text: str) -> Address | str:
    """An address, or the path of a file."""
    if text.startswith("file://"):
        path = text.removeprefix("file://")
        if not path.startswith("/"):
            raise argparse.ArgumentTypeError(f"{text!r} names no file; it has the form file:///shared/path.")
        return path
    return address(text)


def port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; it may be from 0 (any that is free) to 65535.")
    return int(text)


def amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount; it may be a number, 0 or more.")
    return value


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no count; it may be a whole number, 0 or more.")
    return int(text)


def size(text: str) -> int:
    """Bytes: 1000000, 500M, 2GiB."""
    word = text.strip().lower().removesuffix("b")
    digits = word.rstrip("kmgti")
    try:
        value = float(digits) * _SUFFIXES[word[len(digits) :]]
    except (KeyError, ValueError):
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; it may be bytes, or a number with K, M, G, KiB, MiB, …")
    return int(value)


def store_size(text: str) -> int:
    from skate._config import STORE_BYTES_LEAST, machine_bytes

    value = size(text)
    if not STORE_BYTES_LEAST <= value <= machine_bytes():
        raise argparse.ArgumentTypeError(
            f"{text} is {value} bytes; it may be from {STORE_BYTES_LEAST} to what this machine has, {machine_bytes()}."
        )
    return value


def resources(text: str) -> dict[str, float]:
    """'{"licence": 2}'; the names and amounts that options of tasks may have, too."""
    example = """for example --resources '{"licence": 2}'"""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON ({error}); {example}.") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no object of names and amounts; {example}.")
    from skate._config import node_resources

    try:
        return node_resources(value)
    except (TypeError, ValueError) as error:
        # That error is for programs; its second line is what is wrong with the value.
        reasons = [line.partition("why:")[2].strip() for line in str(error).splitlines() if "why:" in line]
        why = reasons[0] if reasons else str(error)
        for name in ("num_cpus", "num_gpus", "memory"):
            why = why.replace(f"{name}=", f"--{name.replace('_', '-')}")
        raise argparse.ArgumentTypeError(why) from None


def labels(text: str) -> dict[str, str]:
    """zone=a,disk=fast"""
    found: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not name.strip() or not equals:
            raise argparse.ArgumentTypeError(f"{item!r} is no label; labels have the form zone=a,disk=fast.")
        found[name.strip()] = value.strip()
    return found


# -- commands ----------------------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command, with `run`, which does it."""
    parser = Parser(
        prog="skate",
        description="Run Python on the machines of a cluster.",
        epilog="example:\n"
        "  skate start --head && skate status && skate submit -- python program.py; skate stop\n\n"
        "skate COMMAND --help tells more of each. Exit codes: 0 done, 1 failed, 2 wrong command\n"
        "line, 3 (status) no cluster runs here.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    python = ".".join(map(str, sys.version_info[:3]))
    parser.add_argument("--version", action="version", version=f"skate {VERSION} (Python {python})")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", parser_class=Parser)
    _add_start(commands)
    _add_stop(commands)
    _add_status(commands)
    _add_list(commands)
    _add_submit(commands)
    _add_store(commands)
    _add_alias(commands)
    commands.add_parser("rl", help="train a policy, evaluate it, watch it play", add_help=False)
    commands.add_parser("serve", help="serve an application, see what is served, end it", add_help=False)
    if arguments and arguments[0] in LIBRARY_COMMANDS:
        return argparse.Namespace(run=_library, command=arguments[0], words=arguments[1:])
    words = [word for word in arguments if not word.startswith("-")]
    if not arguments:
        parser.print_help()
        sys.exit(USAGE)
    if words and arguments[0] == words[0] and words[0] not in commands.choices:
        parser.error(f"there is no command {words[0]!r}{_nearest(words[0], list(commands.choices))}")
    return parser.parse_args(arguments)


def _command(commands: Any, name: str, run: Callable[[Any], int], summary: str, example: str) -> Parser:
    parser: Parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", metavar="H:P", type=address, help="the cluster; by default SKATE_ADDRESS, or the one here"
    )
    _add_token(parser)


def _add_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="the cluster's secret; by default SKATE_TOKEN, SKATE_TOKEN_FILE or ~/.skate/token",
    )


def _add_start(commands: Any) -> None:
    parser = _command(
        commands,
        "start",
        _start,
        "start a cluster on this machine, or make this machine a node of one",
        "  skate start --head                              a cluster on this machine, closed to others\n"
        "  skate start --head --host 10.0.0.1              one that other machines can join\n"
        "  skate start --address 10.0.0.1:6380             join it\n"
        "  skate start --rendezvous 10.0.0.1:6380          the same command on every machine\n"
        "  skate start --rendezvous file:///shared/run7 --host 0.0.0.0",
    )
    role = parser.add_mutually_exclusive_group(required=True)
    role.add_argument("--head", action="store_true", help="begin a new cluster")
    role.add_argument("--address", metavar="H:P", type=address, help="join the cluster there")
    role.add_argument(
        "--rendezvous",
        metavar="WHERE",
        type=rendezvous,
        help="H:P or file:///path, the same on every machine: who can listen there, or makes the file, is the head",
    )
    parser.add_argument("--port", type=port, help=f"of the head; by default {PORT}, or any with --rendezvous file://…")
    parser.add_argument(
        "--host", metavar="ADDR", help="listen there; 0.0.0.0: everywhere; by default only this machine gets in"
    )
    parser.add_argument("--node-port", metavar="PORT", type=port, default=0, help="of this node; by default any")
    parser.add_argument("--node-ip-address", metavar="ADDR", help="how others reach this node, if not by --host")
    parser.add_argument("--num-cpus", metavar="N", type=amount, help="by default those of the machine")
    parser.add_argument("--num-gpus", metavar="N", type=count, default=0, help="by default none: they are not detected")
    parser.add_argument("--resources", metavar="JSON", type=resources, default={}, help="""such as '{"licence": 2}'""")
    parser.add_argument("--labels", metavar="K=V,…", type=labels, default={}, help="such as zone=a,disk=fast")
    parser.add_argument("--memory", metavar="SIZE", type=size, help="that tasks can reserve, such as 8GiB")
    parser.add_argument(
        "--object-store-memory", metavar="SIZE", type=store_size, help="for objects; by default 30%% of the memory"
    )
    parser.add_argument("--spill-directory", metavar="DIR", help="where objects go that do not fit; by default TMPDIR")
    parser.add_argument("--name", default="", help="of this node; by default the machine's")
    parser.add_argument(
        "--wait", metavar="S", type=amount, default=60.0, help="--rendezvous: how long the head may take (60 s)"
    )
    parser.add_argument("--tls", action="store_true", help="of the head: encrypt all connections of the cluster")
    parser.add_argument(
        "--store",
        metavar="WHERE",
        help="of the head: where the state of the cluster is kept; a directory, `memory`, or Redis servers "
        "(redis://h1,h2;redis://h3,h4, or @FILE with that in it); by default SKATE_STORE, or ~/.skate/store/PORT. A "
        "head that is started again with the same store goes on with its cluster",
    )
    parser.add_argument(
        "--store-durability",
        choices=["full", "normal"],
        default="full",
        help="full: what is acknowledged survives power loss; normal: it survives kill -9, and costs no fsync",
    )
    parser.add_argument("--block", action="store_true", help="stay, and end the node with Ctrl-C or SIGTERM")
    _add_token(parser)


def _add_stop(commands: Any) -> None:
    parser = _command(
        commands,
        "stop",
        _stop,
        "end what `skate start` started on this machine, for this user",
        "  skate stop",
    )
    parser.add_argument("--force", action="store_true", help="kill at once, without saying goodbye to the cluster")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="the cluster is not over: `skate start --head` with its store goes on with it",
    )


def _add_status(commands: Any) -> None:
    parser = _command(
        commands,
        "status",
        _status,
        "what a cluster has, and what of it is used",
        "  skate status\n  skate status --json",
    )
    _add_where(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def _add_list(commands: Any) -> None:
    parser = _command(
        commands,
        "list",
        _list,
        "the nodes, actors, jobs or functions of a cluster, or what happened in it (events), a line each",
        "  skate list nodes\n  skate list actors --json",
    )
    parser.add_argument("what", choices=["nodes", "actors", "jobs", "functions", "events"])
    _add_where(parser)
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")


def _add_submit(commands: Any) -> None:
    parser = _command(
        commands,
        "submit",
        _submit,
        "run a command on the cluster: its skate.init() joins; its output and exit code are this command's",
        "  skate submit -- python train.py --epochs 3\n"
        "  skate submit --working-dir . --no-wait -- python train.py\n"
        "  skate submit --attach 5f0c31ab          its output so far, and on until it ends\n"
        "  skate submit --cancel 5f0c31ab",
    )
    _add_where(parser)
    parser.add_argument("--working-dir", metavar="DIR", help="send these files along; the command runs in a copy")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for its end")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--attach", metavar="JOB", help="instead of a command: wait for one that was submitted")
    which.add_argument("--cancel", metavar="JOB", help="instead of a command: end one that was submitted")
    parser.add_argument("words", metavar="-- COMMAND …", nargs=argparse.REMAINDER)


def _add_store(commands: Any) -> None:
    parser = _command(
        commands,
        "store",
        _store,
        "what the head keeps of its cluster, and where: look at it, check it, remove it",
        "  skate store status\n"
        "  skate store check --store /data/skate\n"
        "  skate store dump actors kv > rows.json\n"
        "  skate store wipe",
    )
    whats = parser.add_subparsers(metavar="status|check|dump|wipe", dest="what", parser_class=Parser, required=True)

    def add(name: str, summary: str) -> Parser:
        added: Parser = whats.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False
        )
        return added

    status = add("status", "ask the head that runs: engine, place, sizes, what waits, and why nothing can be written")
    _add_where(status)
    status.add_argument("--json", action="store_true", help="for programs")
    check = add("check", "read all of a store that no head uses; exit code 1 if something is wrong with it")
    check.add_argument("--remove", action="store_true", help="take rows out that cannot be read")
    check.add_argument("--json", action="store_true", help="for programs")
    dump = add("dump", "print the rows of a store that no head uses, a line of JSON each, without code and secrets")
    dump.add_argument("tables", metavar="TABLE", nargs="*", help="by default all")
    wipe = add("wipe", "remove a store that no head uses: its cluster is over")
    wipe.add_argument("--yes", action="store_true", help="do not ask")
    for each in (check, dump, wipe):
        each.add_argument(
            "--store",
            metavar="DIR",
            help=f"by default that of the cluster that runs here, SKATE_STORE, or ~/.skate/store/{PORT}",
        )


def _add_alias(commands: Any) -> None:
    parser = _command(
        commands,
        "alias",
        _alias,
        "have `import ray` find Skate in this Python environment, or no longer",
        "  skate alias install          a package `ray` that is Skate; refused where Ray is installed\n"
        "  skate alias remove\n\n"
        "For one program, without an installation: python -m skate.as_ray program.py",
    )
    parser.add_argument("what", choices=["install", "remove"], metavar="install|remove")


# What a command needs is imported when it is the one: `skate --help` is there at once.


def _start(options: argparse.Namespace) -> int:
    from skate.cli.start import start

    return start(options)


def _stop(options: argparse.Namespace) -> int:
    from skate.cli.stop import stop

    return stop(force=options.force, keep=options.keep)


def _status(options: argparse.Namespace) -> int:
    from skate.cli.views import status

    return status(options)


def _list(options: argparse.Namespace) -> int:
    from skate.cli.views import list_things

    return list_things(options)


def _store(options: argparse.Namespace) -> int:
    from skate.cli import store

    run: Callable[[argparse.Namespace], int] = getattr(store, options.what)
    return run(options)


def _submit(options: argparse.Namespace) -> int:
    from skate.cli.submit import submit

    return submit(options)


def _library(options: argparse.Namespace) -> int:
    import importlib

    code: int = importlib.import_module(LIBRARY_COMMANDS[options.command]).main(options.words)
    return code


def _alias(options: argparse.Namespace) -> int:
    from skate.cli.alias import alias

    return alias(options.what)
