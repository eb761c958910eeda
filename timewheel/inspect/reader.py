"""The reader of a live cluster: concurrent reads with a bound, and a record of everything that could not be read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from timewheel.broker.admin.client import AdminClient
from timewheel.core.errors import AdminError, AdminMissing, AdminUnreachable

AT_ONCE = 16  # concurrent requests over all brokers; each takes some milliseconds of a broker's web threads

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
ProgressCallback = Callable[[int, int], None]
"""Progress callback: called in the caller's thread with the number of completed reads, and of all reads."""


def no_report(_done: int, _total: int) -> None:
    """Report no progress."""


class Source(StrEnum):
    """Source of the data that the doctor's checks judge by."""

    SETTINGS = "the broker's settings"
    BOOKIES = "the list of bookies"
    BROKERS = "the brokers' list and health"
    NAMESPACES = "policies of namespaces"
    POLICIES = "policies of topics"
    TOPICS = "topics and their stats"
    ENTRIES = "stored messages"
    TIME = "the broker's clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Data that could not be read.

    Args:
        what: A topic, namespace, tenant or the broker.
        reason: The broker's reason.
        source: Kind of the data.
        is_target: True if the user named it, or the topic that it is a partition of.
    """

    what: str
    reason: str
    source: Source = Source.TOPICS
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


REMOVED = "it was there, and was removed while it was looked at"


@dataclass(slots=True)
class Reader:
    """Reads from a cluster: a subject that cannot be read is recorded, and None. Thread-safe."""

    admin: AdminClient  # its role may read the topics' stats and peek at their messages
    _unseen: dict[tuple[str, Source], Unseen] = field(default_factory=dict, init=False)

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """Each unread subject of a source once, with the first reason."""
        return tuple(self._unseen.values())

    def is_unseen(self, subject: str, source: Source = Source.TOPICS) -> bool:
        return (subject, source) in self._unseen

    def ask(
        self, subject: str, call: Callable[[], T], source: Source = Source.TOPICS, *, was_there: bool = False
    ) -> T | None:
        """Return the result of a call; None if its subject does not exist or cannot be read. The absence of a subject
        that was there a moment ago is recorded, too.

        Raises:
            AdminUnreachable: No broker answers.
        """
        try:
            return call()
        except AdminUnreachable:
            raise
        except AdminMissing:
            if was_there:
                self.lost(subject, source=source)
        except AdminError as error:
            self.lost(subject, error.reason, source)
        return None

    def cannot(self, subject: str, error: AdminError) -> None:
        """Record a subject that cannot be read."""
        self.lost(subject, error.reason)

    def lost(
        self, subject: str, reason: str = REMOVED, source: Source = Source.TOPICS, *, is_target: bool = False
    ) -> None:
        """Record a subject that cannot be read, for another reason than the broker's."""
        one = Unseen(what=subject, reason=reason, source=source, is_target=is_target)
        self._unseen.setdefault((subject, source), one)
