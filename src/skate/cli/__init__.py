"""The command line: `skate start`, `stop`, `status`, `list`, `submit`, `store`, `alias`, `rl`, `serve`.

    skate start --head             control service + first node, each a process of its own; this command ends
    skate start --address H:P      one more node
    skate stop                     what `skate start` started on this machine

It keeps no state of its own: which processes were started here it reads from the kernel (`running.py`), everything else
it asks the cluster (`asking.py`). Every command ends with one of these codes:

    0  done      1  it failed, and says why      2  the command line is wrong      3  status: no cluster runs here

An error is one line that says what happened and why, and one that says what to do; never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    from skate.cli.parser import parse
    from skate.cli.trouble import Trouble

    parsed = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except Trouble as trouble:
        sys.stdout.flush()
        sys.stderr.write(trouble.report())
        return trouble.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130
    except BrokenPipeError:
        # Whoever read our output (`skate list | head`) has enough. What is left in the buffer must not be written at
        # the end of the interpreter, which would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
