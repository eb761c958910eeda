"""An inbox in this process's memory: for tests, and to keep two threads from handling the same timer at once."""

from __future__ import annotations

import heapq
import threading
from typing import NamedTuple

from timewheel.core.clock import Clock, SystemClock

from .protocol import DONE, MINE, Claim, InboxFull, check_least, taken

DEFAULT_MAX_KEYS = 100_000  # some 40 MB
_STORE = "in memory"


class _Record(NamedTuple):
    owner: str
    ends_ms: int


class MemoryInbox:
    """Claims and done keys of this process; a restart forgets them.

    When it is full, the oldest done keys are forgotten before their time: `forgotten_early` counts them.

    Args:
        max_keys: Maximum number of keys, claimed and done together.
        clock: Its monotonic time governs leases and the forgetting of keys.
    """

    def __init__(self, max_keys: int = DEFAULT_MAX_KEYS, *, clock: Clock | None = None) -> None:
        check_least("max_keys", max_keys, 1)
        self.max_keys = max_keys
        self.forgotten_early = 0
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._claimed: dict[str, _Record] = {}
        self._done: dict[str, _Record] = {}
        # (end time, key): an entry is stale once the record of its key ends at another time.
        self._ends: list[tuple[int, str]] = []

    def __len__(self) -> int:
        """Number of keys that are claimed or done, including ended keys that are not removed yet."""
        return len(self._claimed) + len(self._done)

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """See `Inbox.claim`.

        Raises:
            InboxFull: ``max_keys`` are claimed.
        """
        check_least("lease_ms", lease_ms, 1)
        with self._lock:
            now_ms = self._forget()
            if key in self._done:
                return DONE
            held = self._claimed.get(key)
            if held is not None and held.owner != owner:
                return taken(held.ends_ms - now_ms)
            if held is None:
                self._make_room()
            self._keep(self._claimed, key, owner, now_ms + lease_ms)
            return MINE

    def renew(self, key: str, owner: str, lease_ms: int) -> bool:
        """See `Inbox.renew`."""
        check_least("lease_ms", lease_ms, 1)
        with self._lock:
            now_ms = self._forget()
            held = self._claimed.get(key)
            if held is None or held.owner != owner:
                return False
            self._keep(self._claimed, key, owner, now_ms + lease_ms)
            return True

    def done(self, key: str, owner: str, forget_ms: int) -> bool:
        """See `Inbox.done`."""
        check_least("forget_ms", forget_ms, 0)
        with self._lock:
            now_ms = self._forget()
            held = self._claimed.get(key) or self._done.get(key)
            if held is not None and held.owner != owner:
                return False
            if held is None:
                self._make_room()
            self._claimed.pop(key, None)
            self._keep(self._done, key, owner, now_ms + forget_ms)
            return True

    def release(self, key: str, owner: str) -> None:
        """See `Inbox.release`."""
        with self._lock:
            self._forget()
            held = self._claimed.get(key)
            if held is not None and held.owner == owner:
                del self._claimed[key]

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _keep(self, records: dict[str, _Record], key: str, owner: str, ends_ms: int) -> None:
        records[key] = _Record(owner, ends_ms)
        heapq.heappush(self._ends, (ends_ms, key))
        if len(self._ends) > 2 * self.max_keys + len(self):  # renewals and early forgetting leave stale entries
            both = (*self._claimed.items(), *self._done.items())
            self._ends = [(record.ends_ms, name) for name, record in both]
            heapq.heapify(self._ends)

    def _forget(self) -> int:
        """Drop ended records; return the time."""
        now_ms = self._clock.monotonic_ms()
        while self._ends and self._ends[0][0] <= now_ms:
            ends_ms, key = heapq.heappop(self._ends)
            for records in (self._claimed, self._done):
                record = records.get(key)
                if record is not None and record.ends_ms == ends_ms:
                    del records[key]
        return now_ms

    def _make_room(self) -> None:
        if len(self) < self.max_keys:
            return
        if not self._done:
            raise InboxFull(
                _STORE, self.max_keys, "keys", "all are claimed: raise max_keys, or have fewer handlers at work"
            )
        del self._done[next(iter(self._done))]
        self.forgotten_early += 1
