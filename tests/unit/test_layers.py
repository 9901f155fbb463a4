"""Imports point inwards.

    _core                    decisions: no input, no output, no clock
      ↑
    exceptions, _config …    the leaves: what every layer may name
      ↑
    _wire   _serialize       bytes between processes; values as bytes
      ↑
    _store                   objects in shared memory
      ↑
    _control                 what the cluster as a whole knows; `_control/state` is as pure as `_core`
      ↑
    _node   _worker          the daemon of a machine; the runtime inside every process
      ↑
    public modules           what users import
      ↑
    libraries                use only what users can use

A module may import from its own package and from every layer below its own, and from nothing else of Skate. The rare
import that must break the rule stands in EXCEPTIONS with its reason. Imports inside functions count; imports for type
checkers do not, since they run nowhere.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skate.cli.parser import LIBRARY_COMMANDS

SOURCE = Path(__file__).resolve().parents[2] / "src"

#: From the innermost layer outwards. A name is a package or a module directly under `skate`.
LAYERS: list[set[str]] = [
    {"_core"},
    {
        "_alias",
        "_bounded_text",
        "_config",
        "_error_base",
        "_error_text",
        "_control_groups",
        "_message_limits",
        "_no_effect",
        "_object_ref",
        "_option_errors",
        "_options",
        "_ray_exceptions",
        "_system_limits",
        "exceptions",
        "ids",
        "strategies",
    },
    {"_wire", "_serialize"},
    {"_store"},
    {"_control"},
    {"_node", "_worker"},
]

#: Packages that are built on Skate as any user could build them.
LIBRARIES = {"collective", "dashboard", "rl", "serve", "train", "util"}

#: What decisions may be made of: nothing here reads, writes, waits or knows the time.
PURE = {
    "__future__",
    "_blake2",
    "abc",
    "array",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "msgspec",
    "operator",
    "re",
    "string",
    "struct",
    "types",
    "typing",
}

#: The control state decides as `_core` does, and speaks the messages of the protocol, which lie above `_core`.
PURE_ABOVE_CORE = "skate._control.state"
RECORDS = (
    "skate._core",
    PURE_ABOVE_CORE,
    "skate._control.storage.errors",
    "skate._wire.cluster",
    "skate._wire.messages",
    "skate._wire.protocol_error",
)

#: (importing module, what it imports): why that is right all the same.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("skate._core.ids", "os"): "random ids come from os.urandom, which is neither a clock nor a channel",
    ("skate._control.state.actors", "signal"): "the names of signals, for people",
    (
        "skate._control.state.control",
        "skate._wire.complaints",
    ): "words of a peer are made harmless before they are shown",
    ("skate._worker.driver", "skate._node.main"): "a driver starts the daemon of its machine and writes its settings",
    ("skate._worker.driver", "skate._node.interpreter"): "in an interpreter that finds Skate and nothing of the user's",
    ("skate._worker.driver", "skate._node.lobby"): "or finds one that it can join",
    ("skate._worker.arguments", "skate._streaming"): "the runtime hands generators of references to users",
    ("skate._worker.produce", "skate._streaming"): "so does a task that returns one",
    ("skate.util", "skate._alias.absent"): "what Ray has and Skate has not is said in one place",
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((SOURCE / "skate").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(module: str, path: Path) -> Iterator[str]:
    """Every module that `path` imports, by its full name."""

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                yield from visit(child)
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: write imports in full, so that they can be found"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if is_module(full) else str(node.module)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    return visit(ast.parse(path.read_text()))


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def part(module: str) -> str:
    """The name directly under `skate` that a module belongs to: `_wire` for `skate._wire.messages`."""
    return module.split(".")[1] if "." in module else ""


def layer(name: str) -> int:
    """How far out a part lies; public modules are beyond all the layers that are listed."""
    return next((depth for depth, names in enumerate(LAYERS) if name in names), len(LAYERS))


def broken_rule(module: str, imported: str) -> str | None:
    """Why `module` must not import `imported`, or None if it may."""
    inside, outside = part(module), part(imported)
    is_state = module.startswith(PURE_ABOVE_CORE)
    if not imported.startswith("skate"):
        if (inside == "_core" or is_state) and imported.split(".")[0] not in PURE:
            return f"{module} is pure, and {imported} is not among what decisions may be made of"
        return None
    if is_state and not imported.startswith(RECORDS):
        return f"{module} is pure, and {imported} is neither a decision nor a record"
    if inside in LIBRARIES:
        if outside.startswith("_"):
            return f"{inside} is a library, and {imported} is not public: let the core grow a public door"
        return None
    if outside == inside:
        return None
    if layer(inside) == len(LAYERS):
        return f"{outside} is built on the public API, not below it" if outside in LIBRARIES else None
    if layer(outside) < layer(inside) or (layer(inside) == layer(outside) == 1):
        return None
    return f"{outside or 'skate itself'} does not lie below {inside}"


def test_imports_point_inwards() -> None:
    wrong = [
        f"{module} imports {imported}: {reason}"
        for module, path in modules()
        for imported in sorted(set(imports(module, path)))
        if (reason := broken_rule(module, imported)) and (module, imported) not in EXCEPTIONS
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_command_line_knows_libraries_by_one_table_alone() -> None:
    """`skate rl` and `skate serve` belong to libraries. `cli` names their modules as text alone."""
    library = re.compile(rf"skate\.({'|'.join(LIBRARIES)})\b")
    named = {
        node.value
        for module, path in modules()
        if part(module) == "cli"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and library.match(node.value)
    }
    assert named == set(LIBRARY_COMMANDS.values()) == {"skate.rl.command", "skate.serve.command"}
    assert all(is_module(module) for module in named)


def test_every_exception_is_still_needed() -> None:
    made = {(module, imported) for module, path in modules() for imported in imports(module, path)}
    assert not EXCEPTIONS.keys() - made


@pytest.mark.parametrize(
    ("module", "imported", "allowed"),
    [
        ("skate._core.scheduler", "heapq", True),
        ("skate._core.scheduler", "skate._core.task", True),
        ("skate._core.scheduler", "time", False),
        ("skate._core.scheduler", "socket", False),
        ("skate._core.scheduler", "skate.exceptions", False),
        ("skate.exceptions", "skate._core.ids", True),
        ("skate._control.state.control", "time", False),
        ("skate._control.state.control", "skate._control.ledger", False),
        ("skate._control.state.control", "skate._wire.link", False),
        ("skate._control.state.control", "skate._wire.cluster", True),
        ("skate._control.state.control", "skate._core.membership", True),
        ("skate._wire.messages", "skate._core.task", True),
        ("skate._wire.messages", "skate._store.layout", False),
        ("skate._wire.channel", "socket", True),
        ("skate._store.client", "skate._wire.messages", True),
        ("skate._node.daemon", "skate._worker.runtime", False),
        ("skate._worker.runtime", "skate._node.daemon", False),
        ("skate._worker.runtime", "skate", False),
        ("skate._api", "skate._worker.runtime", True),
        ("skate._api", "skate.util.queue", False),
        ("skate.util.queue", "skate", True),
        ("skate.util.queue", "skate.exceptions", True),
        ("skate.util.queue", "skate._worker.runtime", False),
    ],
)
def test_the_rule_itself(module: str, imported: str, allowed: bool) -> None:
    assert (broken_rule(module, imported) is None) == allowed


def test_importing_skate_loads_nothing_that_is_optional() -> None:
    """What is slow to import is imported when it is needed: the time to a first result is a promise."""
    optional = {"IPython", "asyncio", "cryptography", "matplotlib", "numpy", "pandas", "pyarrow", "rich", "torch"}
    optional |= {"gymnasium", "hiredis", "redis", "safetensors", "sqlite3"}
    code = "import sys, skate; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert not optional & set(loaded.split())
