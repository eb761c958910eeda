"""The timers that this process has handled.

After a reload of a due topic, the broker redelivers acknowledged messages that it forgot; a consumer that remembers the
timer drops it. The window here is this process's memory: it knows neither the timers that another replica handled, nor
those handled before a crash.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from timewheel.core.envelope import Envelope

DEFAULT_HANDLED = 100_000
"""Timers remembered: some 20 MB with generated ids, and ten times the number of acknowledged ranges that a broker
stores by default.
"""


def timer_key(envelope: Envelope) -> str:
    """Return the key of a timer that is to be handled once: (timer id, generation, attempt), as text.

    The text itself, never a hash of it: a collision would lose the second timer.
    """
    attempt = envelope.life.attempt
    if attempt:
        return f"{envelope.generation}.{attempt}:{envelope.timer_id}"
    return f"{envelope.generation}:{envelope.timer_id}"


class HandledTimers(Protocol):
    """Remembers keys of handled timers: checked before a timer is handed out, extended when its handler is done."""

    def __contains__(self, key: object) -> bool: ...
    def add(self, key: str) -> None: ...


class HandledWindow:
    """The last keys, in memory.

    Args:
        size: Maximum number of keys; the oldest key is forgotten first.
    """

    __slots__ = ("_keys", "_order", "size")

    def __init__(self, size: int = DEFAULT_HANDLED) -> None:
        self.size = size
        self._keys: set[str] = set()
        self._order: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Remember a key."""
        if key in self._keys:
            return
        if len(self._order) >= self.size:
            self._keys.discard(self._order.popleft())
        self._keys.add(key)
        self._order.append(key)
