"""What is logged of those who do not behave: a line of each kind, however often it happens and whatever they send.

Who is on the other end of a connection chooses the words that we would show, and how often. A log must neither be
filled by that, nor hold lines that look like ours: so text of others is made harmless, and kinds count, not words.
"""

from __future__ import annotations

#: Lines of one process; at the last it says that there will be no more. A stranger may have a lot of addresses.
LINES_MAX = 1000
#: Of the text of somebody else.
SHOWN_MAX = 200


def harmless(text: str) -> str:
    """Printable ASCII on one line, and not too much of it: nothing that a terminal would obey."""
    shown = "".join(letter if " " <= letter <= "~" else "?" for letter in text[:SHOWN_MAX])
    return shown + "…" if len(text) > SHOWN_MAX else shown


class Complaints:
    def __init__(self) -> None:
        self._made: set[tuple[str, str]] = set()

    def make(self, who: str, kind: str, text: str) -> None:
        """Log the text, once for each of `who` and `kind`; neither may be something that a stranger can invent."""
        if (who, kind) in self._made or len(self._made) >= LINES_MAX:
            return
        self._made.add((who, kind))
        import logging  # most programs start and end without it

        log = logging.getLogger("skate")
        log.warning("%s", text)
        if len(self._made) == LINES_MAX:
            log.warning("there were %d such lines; what else is refused is not logged any more.", LINES_MAX)
