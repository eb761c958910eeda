"""Asking a broker for what not every role may see: a refusal is written down, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.ops.doctor.seen import Source, Unread

__all__ = ["REMOVED", "Asking"]

REMOVED = "it was there, and was removed while it was looked at"

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

    def ask(self, source: Source, subject: str, call: Callable[[], T], *, was_there: bool = False) -> T | None:
        """What the call returns; None if it was refused, or if what it is about is not there.

        Args:
            source: Of what kind it is.
            subject: A topic, a namespace or the broker.
            call: Asks.
            was_there: It was seen a moment ago: that it is not there now is written down, too.

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
            if was_there:
                self.lost(source, subject)
        except AdminError as error:
            self.refused(source, subject, error)
        return None

    def refused(self, source: Source, subject: str, error: AdminError) -> None:
        """Write a refusal down."""
        self._note(source, subject, error.reason)

    def lost(self, source: Source, subject: str, reason: str = REMOVED) -> None:
        """Write down that something is not to be seen: it was there, and is no more, unless the reason is another."""
        self._note(source, subject, reason)

    def _note(self, source: Source, subject: str, reason: str) -> None:
        with self._lock:
            self._unread.setdefault((source, subject), Unread(source=source, subject=subject, reason=reason))
