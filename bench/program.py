"""How a program of a cell is called: `python <peer>.py ROW KEY=VALUE …`. It prints one line of JSON: its figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def main(rows: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Run the row that the command line names, and print what it measured."""
    arguments = dict(argument.split("=", 1) for argument in sys.argv[2:])
    figures = rows[sys.argv[1]](**{name: _value(text) for name, text in arguments.items()})
    print(json.dumps(figures), flush=True)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
