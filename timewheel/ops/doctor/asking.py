"""Asking a broker for what not every role may see: a refusal is written down, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.ops.doctor.seen import Source, Unread

__all__ = ["Asking"]

T = TypeVar("T")


class Asking:
    """Asks, and remembers what was refused. Safe to share between threads."""

    def __init__(self) -> None:
        self._unread: dict[tuple[Source, str], Unread] = {}
        self._lock = Lock()

    @property
    def unread(self) -> tuple[Unread, ...]:
        """Each once, with the first reason."""
        return tuple(self._unread.values())

    def ask(self, source: Source, subject: str, call: Callable[[], T]) -> T | None:
        """What the call returns; None if it was refused, or if what it is about is not there.

        Raises:
            AdminUnreachable: No broker answers.
        """
        try:
            return call()
        except (AdminUnreachable, AdminDenied) as error:
            if isinstance(error, AdminUnreachable):
                raise
            self.refused(source, subject, error)
        except AdminMissing:
            pass  # removed since it was listed, or a partition that was never used
        except AdminError as error:
            self.refused(source, subject, error)
        return None

    def refused(self, source: Source, subject: str, error: AdminError) -> None:
        """Write a refusal down."""
        with self._lock:
            self._unread.setdefault((source, subject), Unread(source=source, subject=subject, reason=error.reason))
