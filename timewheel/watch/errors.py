"""Errors of a check."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

__all__ = ["LogUnreadable"]


class LogUnreadable(TimewheelError, ValueError):
    """A file is not a log of checks.

    Attributes:
        path: Path of the file.
        line: Number of the invalid line; 0 for the file itself.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        self.path = path
        self.line = line
        super().__init__(f"log {path}{f', line {line}' if line else ''}: {reason}; it was not written on")
