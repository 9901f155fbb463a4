"""How the interpreters of daemons and zygotes are started: they run Skate, and no code of users.

So they look for modules where Skate and what it is made of are, and nowhere else. With the user's own directories in
their path, the daemon imported an `nt.py` that lay beside the script (`pathlib` asks for that name on every system); if
that used Skate, the daemon started another one, and so on. A worker gets the path of its program when it takes it up
(`_worker/surroundings.py`).
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

#: Where this package was found.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: What Skate needs of others, or shares between workers; it can lie in a directory of the user's choice.
_NEEDED = ("msgspec", "cloudpickle", "cryptography", "numpy")
#: How the directories end that interpreters have for what is installed: nobody's scripts lie there.
_INSTALLED = ("site-packages", "dist-packages", ".egg")
#: Paths are handed over explicitly, and the site's set-up is skipped: a fifth of an interpreter's start. No garbage is
#: collected before the modules are imported: there is none.
_CODE = (
    "import gc, sys; gc.disable(); sys.path[:] = sys.argv.pop().split(':::'); "
    "sys.prefix, sys.exec_prefix = sys.argv.pop().split(':::'); "
    "from skate._node import interpreter; interpreter.runs_no_user_code = True; from {module} import main; main()"
)

#: This process is a daemon or a zygote: whatever code of users gets into it by mistake, it must not start another node.
runs_no_user_code = False


def command(module: str, *arguments: str) -> list[str]:
    """How an interpreter is told to run the `main` of that module."""
    prefixes = f"{sys.prefix}:::{sys.exec_prefix}"
    return [sys.executable, "-S", "-c", _CODE.format(module=module), *arguments, prefixes, ":::".join(own_path())]


def own_path() -> list[str]:
    """Where Skate's own modules are found, and those that it needs.

    The standard library comes first: this package may lie beside the user's script, whose directory is then here too.
    """
    library = os.path.dirname(os.__file__)
    paths = [path for path in sys.path if isinstance(path, str)]
    standard = [path for path in paths if path == library or path.endswith("lib-dynload")]
    needed = [home for name in _NEEDED if (home := _home(name))]
    installed = [path for path in paths if path.endswith(_INSTALLED)]
    return list(dict.fromkeys([*standard, _PACKAGE, *needed, *installed]))


def _home(name: str) -> str:
    """The directory that a package is imported from; empty if there is none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None and (found := PathFinder.find_spec(name)) is not None:
        file = found.origin
    return os.path.dirname(os.path.dirname(os.path.abspath(file))) if file else ""
