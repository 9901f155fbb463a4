"""`skate serve run`, `status` and `shutdown`: the library from a shell.

skate serve run hello:app                 serve, in the foreground, until Ctrl-C
skate serve run hello:app --reload        and again whenever a source file changes
skate serve status                        what is served, and how that goes
skate serve shutdown                      serve nothing any more
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import skate
from skate.cli.asking import ADDRESS_VARIABLE, NOTHING_RUNS
from skate.cli.parser import Parser, port
from skate.cli.parser import address as host_and_port
from skate.cli.running import find_running
from skate.cli.trouble import Trouble
from skate.exceptions import SkateError
from skate.serve import api
from skate.serve.client import ask_controller, has_controller
from skate.serve.config import HTTPOptions
from skate.serve.exceptions import DeploymentUnavailableError, ServeError
from skate.serve.reload import Plan, Reloader, trouble_of
from skate.serve.report import ApplicationStatus
from skate.serve.status_text import plain, table, urls

COMMANDS = {
    "run": "serve an application, in the foreground",
    "status": "what is served, and how that goes",
    "shutdown": "serve nothing any more",
}
#: Commands of Ray Serve that work on YAML files.
OF_YAML = ("deploy", "build", "config")
EXAMPLES = """example:
  skate serve run hello:app                           app is in hello.py: app = Greeter.bind()
  skate serve run hello:app --port 9000 --reload      deploy again whenever a file changes
  skate serve run hello:make model=small              make({"model": "small"}) returns the application
  skate serve status
  skate serve shutdown --yes"""
#: Source files are looked at so often, and the application of this command.
LOOK_EVERY_S = 0.3
#: How the addresses of clusters begin for programs on machines that are no node of them.
OUTSIDE = "skate://"


def main(words: Sequence[str]) -> int:
    """Run one command of `skate serve`; its exit code."""
    try:
        options = parse(words or ["--help"])
        code: int = options.run(options)
        return code
    except SkateError as error:
        raise trouble_of(error) from error


# -- what can be said --------------------------------------------------------------------------------------------------


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command, with `run`, which does it."""
    parser = _parser(Parser, "skate serve", "serve deployments over HTTP and to Python")
    if words[0] in OF_YAML:
        raise Trouble(
            f"skate serve has no {words[0]!r}, because it has no YAML files.",
            "options stand in @serve.deployment(…), and `skate serve run module:app` serves the application.",
            exit_code=2,
        )
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser, required=True)
    for name, run, add in (("run", _run, _add_run), ("status", _status, _add_status), ("shutdown", _end, _add_end)):
        each = _parser(commands.add_parser, name, COMMANDS[name])
        add(each)
        otherwise = "a node of its own" if name == "run" else "a node here"
        each.add_argument(
            "--address", metavar="H:P", type=_address, help=f"the cluster; by default SKATE_ADDRESS, or {otherwise}"
        )
        each.set_defaults(run=run)
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        parser.error(f"there is no command {words[0]!r}{f'; did you mean {near[0]}?' if near else '.'}")
    options: argparse.Namespace
    options, rest = parser.parse_known_args(words)
    # argparse takes no further KEY=VALUE after an option.
    if words[0] == "run" and all(_is_argument(word) for word in [*options.arguments, *rest]):
        options.arguments = dict(word.split("=", 1) for word in [*options.arguments, *rest])
    elif rest or words[0] == "run":
        wrong = next(word for word in [*getattr(options, "arguments", []), *rest] if not _is_argument(word))
        parser.error(f"{wrong!r} is not understood; arguments of the application have the form KEY=VALUE.")
    return options


def _is_argument(word: str) -> bool:
    return word.partition("=")[0].isidentifier() and "=" in word


def _parser(make: Callable[..., Any], name: str, text: str) -> Parser:
    made: Parser = make(
        name,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=EXAMPLES,
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32),
        allow_abbrev=False,
        **({} if make is Parser else {"help": text}),
    )
    return made


def _add_run(parser: Parser) -> None:
    parser.usage = f"{parser.prog} MODULE:NAME [options] [KEY=VALUE …]"
    parser.add_argument("target", metavar="MODULE:NAME", type=_target, help="an application, or what returns one")
    parser.add_argument(
        "arguments", metavar="KEY=VALUE", nargs="*", default=[], help="for a function, which gets them as a dict"
    )
    parser.add_argument("--name", type=_name, default=api.DEFAULT_APP, help="of the application (default)")
    parser.add_argument("--route-prefix", metavar="PATH", type=_prefix, default="/", help="none: without HTTP (/)")
    parser.add_argument("--host", metavar="ADDR", help="0.0.0.0: open to other machines (127.0.0.1)")
    parser.add_argument("--port", type=port, help="0: any that is free (8000)")
    parser.add_argument("--app-dir", metavar="DIR", default=".", help="where modules are looked for first (.)")
    parser.add_argument("--reload", action="store_true", help="deploy again when a source file changes")


def _add_status(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def _add_end(parser: Parser) -> None:
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")


def _target(text: str) -> str:
    module, colon, name = text.partition(":")
    if not colon or not name or not module.replace(".", "x").isidentifier() or module.endswith(".py"):
        meant = f"{module.removesuffix('.py').strip('./').replace('/', '.') or 'hello'}:{name or 'app'}"
        raise argparse.ArgumentTypeError(f"{text!r} has not the form MODULE:NAME, as in {meant}.")
    return text


def _name(text: str) -> str:
    if not text or "/" in text or "#" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no name; it may be any word without '/' and '#'.")
    return text


def _prefix(text: str) -> str | None:
    if text.lower() == "none":
        return None
    if not text.startswith("/") or text.startswith("/-") or "{" in text:
        raise argparse.ArgumentTypeError(f"{text!r} may be a path such as /api, but not below /-; or none.")
    return text


def _address(text: str) -> str:
    if not _is_exact(text) or text.startswith(OUTSIDE):
        host_and_port(text.removeprefix(OUTSIDE))
    return text


# -- run ---------------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    if not os.path.isdir(options.app_dir):
        raise Trouble(f"--app-dir {options.app_dir} is no folder.", "name the one that the module lies in.")
    # Before Skate starts: its workers look for modules where this process does.
    sys.path[0] = os.path.abspath(options.app_dir)
    given = options.address or os.environ.get(ADDRESS_VARIABLE) or "local"
    with _ended_by_signals():
        try:
            used = _join(given)
            return _Foreground(options, used, joined=given != "local").serve()
        finally:
            skate.shutdown()


def _join(address: str, *, quietly: bool = False) -> str:
    """Become a driver; the address with which another process of this machine joins the same cluster."""
    try:
        found = skate.init(address, log_to_driver=not quietly)
    except (ConnectionError, ValueError) as error:
        if not _is_exact(address):  # no node of it runs here
            return _join(OUTSIDE + address, quietly=quietly)
        raise trouble_of(error) from None
    return address if address.startswith(OUTSIDE) else str(found["address"])


def _is_exact(address: str) -> bool:
    """Whether it says how to get in, and not only the HOST:PORT of a cluster."""
    return address in ("auto", "local") or address.startswith((OUTSIDE, "skate-"))


class _Foreground:
    """One application, served for as long as this command runs."""

    def __init__(self, options: argparse.Namespace, address: str, *, joined: bool) -> None:
        self._options = options
        self._joined = joined
        self._found_controller = joined and has_controller()
        self._plan = Plan(
            options.target, os.path.abspath(options.app_dir), options.arguments, options.name, options.route_prefix
        )
        self._reloader = Reloader(self._plan, address) if options.reload else None
        #: When the version was deployed that this command has to delete; None before there is one.
        self._deployed_at: float | None = None
        self._is_told = False

    def serve(self) -> int:
        """Deploy and wait for a signal; the exit code."""
        try:
            self._start_http()
            if self._reloader is None:
                try:
                    self._plan.deploy(self._plan.application())
                finally:
                    self._note()
                self._tell()
            else:
                self._reloader.start()
            while self._look():
                time.sleep(LOOK_EVERY_S)
            print(f"The application {self._plan.name!r} was deleted by another program.")
        except KeyboardInterrupt:
            if not self._is_told:
                return 130
            print("\nEnding: requests in work are answered first (Ctrl-C again ends at once).", flush=True)
        finally:
            self._end()
        return 0

    def _start_http(self) -> None:
        options = self._options
        ask_controller("start", None)  # makes the controller, so that children can join
        if options.route_prefix is None:
            return
        chosen = {name: getattr(options, name) for name in ("host", "port") if getattr(options, name) is not None}
        if chosen or api.status().http_address is None:
            try:
                api.start(http_options=HTTPOptions(**chosen))
            except (ServeError, ImportError) as error:
                raise trouble_of(error) from error

    def _note(self) -> None:
        """Remember the deployment, unless it has failed and what another program had deployed serves on."""
        found = api.status().applications.get(self._plan.name)
        if found is not None and (not found.message or found.status is ApplicationStatus.DEPLOY_FAILED):
            self._deployed_at = found.last_deployed_time_s

    def _look(self) -> bool:
        """Deploy changed files, and say how that went; False once the application was deleted elsewhere."""
        reloader = self._reloader
        if reloader is not None:
            if changed := reloader.changed():
                print(f"{', '.join(map(os.path.relpath, changed))} changed: deploying again.", flush=True)
                reloader.start()
            code = reloader.poll()
            if code is not None:
                self._note()
            if code == 0:
                self._tell()
            elif code is not None:
                before = "the version before it serves on, and " if self._is_told else ""
                print(f"Not deployed: {before}the next change of a file is waited for.", file=sys.stderr, flush=True)
            if reloader.is_deploying:
                return True
        return self._deployed_at is None or self._plan.name in api.status().applications

    def _tell(self) -> None:
        """Say what is served, and where."""
        found = api.status()
        app = found.applications[self._plan.name]
        verb = "Serving" if not self._is_told else "Serving the new version of"
        where = urls(found, app.route_prefix)
        print(f"{verb} {self._plan.target} {where}  (Ctrl-C ends it)")
        width = max(map(len, app.deployments))
        for name, each in app.deployments.items():
            running = each.replica_states.get("RUNNING", 0)
            print(f"  {name:<{width}}   {running} replica{'' if running == 1 else 's'}")
        sys.stdout.flush()
        self._is_told = True

    def _end(self) -> None:
        """Delete the application, and leave others of the cluster as they are."""
        under_way = self._reloader is not None and self._reloader.is_deploying
        if self._reloader is not None:
            self._reloader.end()
        if not self._joined:
            api.shutdown()
            return
        found = api.status().applications.get(self._plan.name)
        if found is not None and (under_way or found.last_deployed_time_s == self._deployed_at):
            with contextlib.suppress(DeploymentUnavailableError):
                api.delete(self._plan.name)
        if not self._found_controller and not api.status().applications:
            api.shutdown()  # nothing was served before, so the port is free again


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """The first Ctrl-C, or TERM signal, is a KeyboardInterrupt, and the second one ends the process."""
    told = False

    def on_signal(number: int, frame: object) -> None:
        nonlocal told
        if told:
            os._exit(128 + number)  # a node of its own ends with this process
        told = True
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- status and shutdown -----------------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> int:
    try:
        _find(options.address)
    except Trouble as trouble:
        if trouble.exit_code != NOTHING_RUNS:
            raise
        print(json.dumps({"running": False}) if options.json else f"{trouble.what}\n  next: {trouble.next}")
        return NOTHING_RUNS
    try:
        found = api.status()
    finally:
        skate.shutdown()
    if options.json:
        print(json.dumps(plain(found), indent=2))
    elif not found.applications:
        print("Nothing is served here.")
    else:
        print((f"HTTP {urls(found, '/')}\n\n" if found.http_address else "") + table(found))
    return 0


def _end(options: argparse.Namespace) -> int:
    joined = _find(options.address)
    try:
        if not has_controller():
            print("Nothing is served here.")
            return 0
        there = ", ".join(api.status().applications) or "no application"
        # A node that was found, and not named, may be that of any program of this user.
        if "@" not in joined and not (options.address or os.environ.get(ADDRESS_VARIABLE)):
            raise Trouble(
                f"{there}: served by a program of its own and not by a cluster, and it ends with that program.",
                f"end the program with Ctrl-C, or skate serve shutdown --address {joined}",
            )
        if not options.yes and not _agreed(f"Delete {there}, and answer no HTTP any more? [y/N] "):
            return 1
        api.shutdown()
        print(f"Deleted: {there}. HTTP is not answered any more.")
        return 0
    finally:
        skate.shutdown()


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise Trouble("there is no terminal to ask in whether to go on.", "skate serve shutdown --yes", exit_code=2)
    return input(question).strip().lower() in ("y", "yes")


def _find(address: str | None) -> str:
    """Become a driver of the cluster that was named, or of one here, rather of one that serves something."""
    named = address or os.environ.get(ADDRESS_VARIABLE)
    if named:
        return _join(named, quietly=True)
    # The newest node that can be joined, which may be that of a program; then the clusters of `skate start`.
    found = ""
    for each in ["auto", *dict.fromkeys(process.cluster for process in find_running() if process.cluster)]:
        try:
            joined = _join(each, quietly=True)
        except Trouble:
            continue
        if has_controller():
            return joined
        skate.shutdown()
        found = found or joined
    if found:
        return _join(found, quietly=True)
    raise Trouble(
        "Nothing is served on this machine, and no cluster runs here.",
        "skate serve run module:app serves an application, and --address H:P asks a cluster elsewhere.",
        exit_code=NOTHING_RUNS,
    )
