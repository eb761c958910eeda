"""The TLS settings of a client, made anew when one of their files was renewed."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from timewheel.core.clock import Clock, SystemClock

__all__ = ["TlsReader"]

PAUSE_MS = 5_000
"""Files that did not fit, and have not changed since, are left alone for so long: to read authorities takes time."""

_Mark = tuple[int, ...] | None
"""What tells one content of a file from the next; None: it is not there now."""


class TlsReader:
    """Gives the TLS settings of now to whoever connects; for any number of threads.

    An `ssl.SSLContext` keeps what it once read, and a certificate that is renewed each day would be shown until it
    expires. So the files are looked at before each use, which costs less than one packet of a handshake; they are read
    again when one has changed. Files that do not fit (of certificate and key only one is written yet) leave the
    settings as they were: those are still good, and the next use finds the rest.

    Args:
        read: Makes the settings from the files.
        paths: The files.
        clock: Paces the attempts at files that do not fit.

    Raises:
        OSError: A file cannot be read now (ssl.SSLError: it does not hold what it should).
    """

    __slots__ = ("_clock", "_lock", "_marks", "_paths", "_read", "_refused", "_settings", "_try_again_at_ms")

    def __init__(
        self, read: Callable[[], ssl.SSLContext], paths: Sequence[Path], *, clock: Clock | None = None
    ) -> None:
        self._read = read
        self._paths = tuple(paths)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._refused: tuple[_Mark, ...] | None = None
        self._try_again_at_ms = 0
        # Marked before they are read: what changes in between is read once too often, and never passed over.
        self._marks = self._marked()
        self._settings = self._read()

    def __call__(self) -> ssl.SSLContext:
        """The settings as the files have them now; the same object as long as there are no others that fit."""
        with self._lock:
            marks = self._marked()
            if marks != self._marks and not self._is_too_early(marks):
                self._renew(marks)
            return self._settings

    def _renew(self, marks: tuple[_Mark, ...]) -> None:
        try:
            settings = self._read()
        except OSError:
            # Tried again even if nothing changes: a file may have been marked and read while it was being written.
            self._refused, self._try_again_at_ms = marks, self._clock.monotonic_ms() + PAUSE_MS
            return
        self._settings, self._marks, self._refused = settings, marks, None

    def _is_too_early(self, marks: tuple[_Mark, ...]) -> bool:
        return marks == self._refused and self._clock.monotonic_ms() < self._try_again_at_ms

    def _marked(self) -> tuple[_Mark, ...]:
        return tuple(map(_mark_of, self._paths))


def _mark_of(path: Path) -> _Mark:
    try:
        found = path.stat()  # of what a link points to: Kubernetes renews a secret by another link
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
