"""What goes wrong in a command, as people are told: what happened and why in one line, what to do in the next."""

from __future__ import annotations


class Trouble(Exception):
    """Ends the command. Both texts are sentences without a full stop missing; `next` may be empty."""

    def __init__(self, what: str, next: str = "", *, exit_code: int = 1) -> None:
        super().__init__(what, next)
        self.what = what
        self.next = next
        self.exit_code = exit_code

    def report(self) -> str:
        """For the terminal."""
        return f"skate: {self.what}\n" + (f"  next: {self.next}\n" if self.next else "")

    def __str__(self) -> str:
        return self.what
