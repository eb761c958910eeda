"""The reader of a live cluster: concurrent reads with a bound, and a record of everything that could not be read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.http import asked
from timewheel.core.errors import AdminError, AdminMissing

AT_ONCE = 16  # concurrent requests over all brokers; each takes some milliseconds of a broker's web threads

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
ProgressCallback = Callable[[int, int], None]
"""Progress callback: called in the caller's thread with the number of completed reads, and of all reads."""


def no_report(_done: int, _total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A target that could not be read.

    Args:
        what: A topic, namespace or tenant.
        reason: The broker's reason.
        is_target: True if the user named it, or the topic that it is a partition of.
    """

    what: str
    reason: str
    is_target: bool = False


def each(read: Callable[[A], B], items: Iterable[A], at_once: int = AT_ONCE) -> Iterator[tuple[A, B]]:
    """Yield each item with what was read of it, in order; later reads are not created yet. The first error ends it."""
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="timewheel-inspect")
    waiting: deque[tuple[A, Future[B]]] = deque()
    try:
        for item in items:
            if len(waiting) == 2 * at_once:
                first, found = waiting.popleft()
                yield first, found.result()
            waiting.append((item, pool.submit(read, item)))
        while waiting:
            first, found = waiting.popleft()
            yield first, found.result()
    finally:
        pool.shutdown(cancel_futures=True)


def used_parts(names: Iterable[str], read: Callable[[str], T]) -> Iterator[tuple[str, T]]:
    """Yield partitions with what was read of them; brokers create a partition at its first use, so some are missing."""
    for name in names:
        with suppress(AdminMissing):
            yield name, read(name)


@dataclass(slots=True)
class Reader:
    """Reads from a cluster: a subject that cannot be read is recorded, and None. Thread-safe."""

    admin: AdminClient  # its role may read the topics' stats and peek at their messages
    unseen: dict[str, Unseen] = field(default_factory=dict, init=False)

    def ask(self, subject: str, call: Callable[[], T]) -> T | None:
        """Return the result of a call; None if its subject does not exist or cannot be read.

        Raises:
            AdminUnreachable: No broker answers.
        """
        return asked(call, partial(self.cannot, subject))

    def cannot(self, subject: str, error: AdminError) -> None:
        """Record a subject that cannot be read."""
        self.lost(subject, error.reason)

    def lost(self, subject: str, reason: str, *, is_target: bool = False) -> None:
        """Record a subject that cannot be read, for another reason than the broker's."""
        self.unseen[subject] = Unseen(what=subject, reason=reason, is_target=is_target)
