"""The error of a check's own."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

__all__ = ["LogUnreadable"]


class LogUnreadable(TimewheelError, ValueError):
    """A file is no log of checks.

    Attributes:
        path: Of the file.
        line: The number of the line that is wrong; 0: the file itself.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        self.path = path
        self.line = line
        super().__init__(f"log {path}{f', line {line}' if line else ''}: {reason}; it was not written on")
