"""The application that `module:name` means, and how it is served again when its files change.

    parent   holds the node, watches the files            Reloader
      └── child   imports the module and deploys it, once per version, and ends            main

Idea: every version is imported by a process of its own, so no module of the version before lingers. The child ends
after `serve.run`, because what is served belongs to the cluster and not to the program that deployed it.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

import cloudpickle

import skate
from skate.cli.trouble import Trouble
from skate.serve import api
from skate.serve.deployments import Application, Deployment
from skate.serve.exceptions import DeployFailedError, ServeError

__all__ = ["Plan", "Reloader", "load", "sources", "stamp", "trouble_of"]

#: Names that an error lists at most.
NAMES_MAX = 8

Stamps = dict[str, "list[int] | None"]


# -- module:name -------------------------------------------------------------------------------------------------------


def load(target: str, app_dir: str, arguments: Mapping[str, str]) -> Application:
    """Import the application that `module:name` means. Raises Trouble with what is wrong, and what there is instead.

    A function is called with the arguments, as a dict, and returns the application.
    """
    name, _, path = target.partition(":")
    module = _import(name, app_dir, target)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise _no_name(target, name, part, found)
        found = getattr(found, part)
    if callable(found) and not isinstance(found, (Application, Deployment, type)):
        found = _built(target, found, arguments)
    elif arguments:
        raise Trouble(f"{target} takes no arguments, because it is no function.", "leave KEY=VALUE out.", exit_code=2)
    if isinstance(found, Deployment):
        raise Trouble(f"{target} is a deployment and no application.", f"app = {path}.bind(…), and serve that.")
    if not isinstance(found, Application):
        raise Trouble(
            f"{target} is no application but an object of class {type(found).__name__}.",
            "an application is what .bind(…) of a deployment returns, or a function that returns one.",
        )
    return found


def _import(name: str, app_dir: str, target: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(target, error) from error
        there = _modules_in(app_dir)
        raise Trouble(
            f"there is no module {error.name!r} in {os.path.abspath(app_dir)}.",
            f"{_near(error.name, there, 'modules there')} --app-dir DIR looks in another folder.",
        ) from None
    except Exception as error:
        raise _failed(target, error) from error


def _failed(target: str, error: Exception) -> Trouble:
    """An exception of the user's own module, with the traceback from there on."""
    shown = error.__traceback__
    while shown is not None and _is_not_the_users(shown.tb_frame.f_code.co_filename):
        shown = shown.tb_next
    text = "".join(traceback.format_exception(type(error), error, shown)).rstrip()
    return Trouble(f"{target} cannot be imported: {type(error).__name__}: {error}\n{text}")


def _is_not_the_users(file: str) -> bool:
    return file.startswith("<frozen ") or file in (__file__, importlib.__file__)


def _modules_in(folder: str) -> list[str]:
    try:
        entries = sorted(Path(folder).iterdir())
    except OSError:
        return []
    return [
        entry.stem
        for entry in entries
        if entry.stem.isidentifier() and (entry.suffix == ".py" or (entry / "__init__.py").exists())
    ]


def _no_name(target: str, module: str, part: str, found: Any) -> Trouble:
    names = {name: value for name, value in vars(found).items() if not name.startswith("_")}
    apps = [name for name, value in names.items() if isinstance(value, Application)]
    functions = [name for name, value in names.items() if inspect.isfunction(value) and value.__module__ == module]
    deployments = [f"{name}.bind(…)" for name, value in names.items() if isinstance(value, Deployment)]
    return Trouble(
        f"{target}: {module} has no {part!r}.", _near(part, [*apps, *functions, *deployments], "there, to be served")
    )


def _near(word: str, there: list[str], what: str) -> str:
    near = difflib.get_close_matches(word, there, n=1)
    if near:
        return f"did you mean {near[0]}?"
    listed = ", ".join(there[:NAMES_MAX]) + (", …" if len(there) > NAMES_MAX else "")
    return f"{what}: {listed or 'none'}."


def _built(target: str, build: Callable[..., Any], arguments: Mapping[str, str]) -> Any:
    """What a builder function returns: it takes one dict, or a pydantic model of it, or nothing."""
    parameters = list(inspect.signature(build).parameters.values())
    if not parameters and not arguments:
        given: list[Any] = []
    elif len(parameters) == 1:
        hint = _hint(build, parameters[0].name)
        validate = getattr(hint, "model_validate", None)
        given = [dict(arguments) if validate is None else validate(dict(arguments))]
    else:
        raise Trouble(
            f"{target} is a function with {len(parameters)} parameters.",
            "a function that makes an application has one, the dict of the arguments KEY=VALUE.",
        )
    try:
        return build(*given)
    except Exception as error:
        text = "".join(traceback.format_exception(type(error), error, _inside(error))).rstrip()
        raise Trouble(f"{target} raised {type(error).__name__}: {error}\n{text}") from error


def _hint(build: Callable[..., Any], parameter: str) -> Any:
    try:
        return get_type_hints(build).get(parameter)
    except (NameError, TypeError):
        return None


def _inside(error: Exception) -> Any:
    """The traceback of an error without our own frame."""
    return error.__traceback__ and error.__traceback__.tb_next


def trouble_of(error: Exception) -> Trouble:
    """An error of the library as commands show it: the reason in the first line, flags in the place of arguments."""
    what, _, then = str(error).partition("\n  next: ")
    return Trouble(what.replace(".\n  why:  ", ": ").removesuffix("."), _in_flags(then))


def _in_flags(text: str) -> str:
    text = re.sub(r"serve\.run\(…, (\w+)=(?:…|(None))\)", _flag, text).replace("; port=0 ", "; --port 0 ")
    return text.replace("serve.shutdown()", "skate serve shutdown")


def _flag(argument: re.Match[str]) -> str:
    return f"--{argument[1].replace('_', '-')}{' none' if argument[2] else ''}"


# -- one version -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What is deployed, and how."""

    target: str
    app_dir: str
    arguments: dict[str, str]
    name: str
    route_prefix: str | None

    def application(self) -> Application:
        """Import the application. Its replicas are replaced when any of its source files has changed."""
        application = load(self.target, self.app_dir, self.arguments)
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(sources(self.app_dir)):
            digest.update(Path(path).read_bytes())
        _set_version(application, digest.hexdigest())
        return application

    def deploy(self, application: Application) -> None:
        """Serve it. Raises Trouble with the traceback of a replica that does not start."""
        try:
            api.run(application, name=self.name, route_prefix=self.route_prefix)
        except DeployFailedError as error:
            if "Traceback" not in str(error):
                raise trouble_of(error) from None
            raise Trouble(str(error), "the error is that of the constructor: correct it.") from None
        except (ServeError, TypeError, ValueError, ImportError) as error:
            raise trouble_of(error) from error


class _Deployments(cloudpickle.Pickler):  # type: ignore[misc]
    """Finds the applications in the arguments of another one, wherever they stand."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: list[Application] = []

    def persistent_id(self, value: Any) -> None:
        """Note an application. It is pickled as usual, and with it the applications in its arguments."""
        if isinstance(value, Application):
            self.found.append(value)


def _set_version(application: Application, version: str) -> None:
    """Classes of modules are pickled by name, so their pickles do not tell one version from the next."""
    finder = _Deployments()
    try:
        finder.dump(application)
    except Exception:  # noqa: BLE001 - serve.run says what cannot be pickled
        return
    for each in finder.found:
        options = each._deployment.options
        each._deployment = options(
            version=version if each._deployment.version is None else f"{each._deployment.version} {version}"
        )


def sources(app_dir: str, error: BaseException | None = None) -> Stamps:
    """The files below a folder that were imported, as they are now; and those that an error points at."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    # What is no file has a name of its own there: torch.classes has "_classes.py".
    paths = {file for file in files if file and os.path.isabs(file)}
    while error is not None:
        paths |= {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
        if isinstance(error, SyntaxError):
            paths.add(error.filename)
        elif isinstance(error, ModuleNotFoundError) and error.name:
            # It is imported as soon as one of these is there.
            missing = os.path.join(app_dir, *error.name.split("."))
            paths |= {f"{missing}.py", os.path.join(missing, "__init__.py")}
        error = error.__cause__ or error.__context__
    root = os.path.join(os.path.realpath(app_dir), "")
    real = {os.path.realpath(path) for path in paths if path}
    return {path: stamp(path) for path in real if path.startswith(root) and "site-packages" not in path}


def stamp(path: str) -> list[int] | None:
    """What changes when a file is written; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size, found.st_ino]


def main() -> int:
    """The child: tells the parent what it has imported, deploys it, and ends."""
    address, report, settings = sys.argv[1:]
    plan = Plan(**json.loads(settings))
    sys.path[0] = os.path.abspath(plan.app_dir)
    error: BaseException | None = None
    try:
        try:
            skate.init(address, log_to_driver=False)
            application = plan.application()
        except BaseException as problem:
            error = problem
            raise
        finally:
            os.write(int(report), json.dumps(sources(plan.app_dir, error)).encode())
            os.close(int(report))
        plan.deploy(application)
    except Trouble as trouble:
        sys.stderr.write(trouble.report())
        return 1
    finally:
        skate.shutdown()
    return 0


class Reloader:
    """The parent: starts a child per version, and another one when a file has changed."""

    def __init__(self, plan: Plan, address: str) -> None:
        self._words = [address, json.dumps(asdict(plan))]
        self._child: subprocess.Popen[bytes] | None = None
        self._report = -1
        self._stamps: Stamps = {}
        self._told = b""

    def start(self) -> None:
        """Deploy the files as they are now; a deployment that is under way is given up."""
        self.end()
        # A file that is gone is watched, too: it may come back.
        self._stamps = {path: stamp(path) for path in self._stamps}
        address, settings = self._words
        self._report, told = os.pipe()
        os.set_blocking(self._report, False)
        self._told = b""
        code = "import sys; from skate.serve.reload import main; sys.exit(main())"
        # A compiled file is taken for fresh if its source was written in the same second with the same size.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        # In a session of its own, Ctrl-C reaches the parent alone, which ends the child in order.
        self._child = subprocess.Popen(
            [sys.executable, "-c", code, address, str(told), settings],
            pass_fds=[told],
            env=environment,
            start_new_session=True,
        )
        os.close(told)

    def poll(self) -> int | None:
        """The exit code of the child, once, when it has ended."""
        self._listen()
        code = None if self._child is None else self._child.poll()
        if code is not None:
            self.end()
        return code

    def changed(self) -> list[str]:
        """The files that are not as the last child has found them."""
        return [path for path, before in self._stamps.items() if stamp(path) != before]

    @property
    def is_deploying(self) -> bool:
        """Whether a version is being deployed."""
        return self._child is not None

    def end(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
        if self._report >= 0:
            self._listen()
            os.close(self._report)
            self._report = -1

    def _listen(self) -> None:
        """Take what the child has told of its files."""
        try:
            while self._report >= 0 and (part := os.read(self._report, 1 << 16)):
                self._told += part
        except BlockingIOError:
            return
        try:
            self._stamps.update(json.loads(self._told or b"{}"))
        except ValueError:  # the child was ended while it wrote
            pass
        self._told = b""
