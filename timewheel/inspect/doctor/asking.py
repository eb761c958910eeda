"""Read from a broker as far as the role is allowed: a refusal is recorded, and reading continues."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.inspect.doctor.seen import Source, Unread

REMOVED = "it was there, and was removed while it was looked at"

T = TypeVar("T")


class Asking:
    """Calls the broker and records refusals. Thread-safe."""

    def __init__(self) -> None:
        self._unread: dict[tuple[Source, str], Unread] = {}
        self._lock = Lock()

    @property
    def unread(self) -> tuple[Unread, ...]:
        """Each unread subject once, with the first reason."""
        return tuple(self._unread.values())

    def ask(self, source: Source, subject: str, call: Callable[[], T], *, was_there: bool = False) -> T | None:
        """Return the result of the call; None if it was refused, or if its subject does not exist.

        Args:
            source: Kind of the data read.
            subject: A topic, a namespace or the broker.
            call: Reads from the broker.
            was_there: True if the subject existed a moment ago: its absence is then recorded too.

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
        """Record a refusal."""
        self._note(source, subject, error.reason)

    def lost(self, source: Source, subject: str, reason: str = REMOVED) -> None:
        """Record a subject that can no longer be seen: by default because it was removed."""
        self._note(source, subject, reason)

    def _note(self, source: Source, subject: str, reason: str) -> None:
        with self._lock:
            self._unread.setdefault((source, subject), Unread(source=source, subject=subject, reason=reason))
