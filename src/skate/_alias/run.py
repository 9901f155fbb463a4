"""`python -m skate.as_ray program.py …`: a program runs under the alias, and sees nothing of us.

Its `__main__`, `sys.argv`, `sys.path[0]`, tracebacks and exit code are those of `python program.py …`. The program runs
in the module `__main__` that there is already, emptied first: what has imported that module keeps seeing the right one.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, SourceFileLoader
from types import TracebackType
from typing import Any

from skate._alias.finder import activate

USAGE = """\
usage: python -m skate.as_ray program.py [argument …]
       python -m skate.as_ray -m module [argument …]
       python -m skate.as_ray -c code [argument …]
       python -m skate.as_ray - [argument …]      (the program comes from standard input)

Runs a Python program in which `import ray` finds Skate.
SKATE_RAY_VERSION chooses what ray.__version__ says.
"""


def main(arguments: Sequence[str]) -> None:
    """Run what the command line names."""
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return
    if first in ("-m", "-c") and len(arguments) > 1:
        what, rest = arguments[1], arguments[2:]
    elif first == "-" or (first and not first.startswith("-")):
        what, rest = first, arguments[1:]
    else:
        complaint = f"{first} needs a value." if first in ("-m", "-c") else f"there is no option {first}."
        sys.stderr.write(USAGE if not first else f"python -m skate.as_ray: {complaint}\n{USAGE}")
        sys.exit(2)
    try:
        activate()
    except ValueError as error:
        sys.exit(f"python -m skate.as_ray: {error}")
    if first == "-m":
        sys.argv = ["-m", *rest]
        _run(_run_module, what)
    elif first == "-c":
        sys.argv = ["-c", *rest]
        _set_first_path("")
        _run(_run_code, what)
    elif first == "-":
        sys.argv = ["-", *rest]
        _set_first_path("")
        _run(_run_input, "<stdin>")
    else:
        sys.argv = [what, *rest]
        _run(_run_path, what)


def _has_first_path() -> bool:
    """Whether `python -m` has put the working directory first into the search path."""
    return not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated


def _set_first_path(path: str) -> None:
    """Put what Python would have put there in its place."""
    if _has_first_path():
        sys.path[0] = path


def _run_path(program: str) -> None:
    """A script, or a directory or an archive with a `__main__.py`."""
    path = os.path.join(os.getcwd(), program)
    if pkgutil.get_importer(path) is not None:
        import runpy

        sys.path[: _has_first_path()] = [path]
        _empty_main()
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    names = _empty_main()
    names.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    exec(compile(source, path, "exec", dont_inherit=True), names)


def _run_module(module: str) -> None:
    import runpy

    _empty_main()
    runpy._run_module_as_main(module)  # type: ignore[attr-defined]


def _run_code(code: str) -> None:
    names = _empty_main()
    names.update(__loader__=BuiltinImporter)
    exec(compile(code, "<string>", "exec", dont_inherit=True), names)


def _run_input(name: str) -> None:
    source = sys.stdin.buffer.read()
    names = _empty_main()
    names.update(__file__=name, __cached__=None, __loader__=BuiltinImporter)
    exec(compile(source, name, "exec", dont_inherit=True), names)


def _empty_main() -> dict[str, Any]:
    """The names of `__main__`, as a program finds them."""
    import builtins

    names = vars(sys.modules["__main__"])
    names.clear()
    names.update(__name__="__main__", __doc__=None, __package__=None, __spec__=None, __annotations__={})
    names.update(__builtins__=builtins)
    return names


#: Frames of ours that are above the program's.
_OURS = {function.__code__ for function in (_run_path, _run_module, _run_code, _run_input)}


def _run(run: Any, what: str) -> None:
    """Run the program; what it raises is reported as Python does it, without our frames."""
    try:
        run(what)
    except SystemExit:
        raise
    except BaseException as error:
        shown = _without_ours(error.__traceback__)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, shown
        vars(sys)["last_exc"] = error  # since Python 3.12
        try:
            sys.excepthook(type(error), error.with_traceback(shown), shown)
        except Exception:  # noqa: BLE001 - a hook of the program
            sys.stderr.write("Error in sys.excepthook:\n")
            traceback.print_exc()
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(type(error), error, shown)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = _say_nothing
            raise
        sys.exit(1)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """From the frame below ours on."""
    part: TracebackType | None = trace
    while part is not None:
        if part.tb_frame.f_code in _OURS:
            return part.tb_next
        part = part.tb_next
    return trace


def _say_nothing(*_error: Any) -> None:
    pass
