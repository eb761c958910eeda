"""Runs: sends that are handed over to one producer of the client together, and how each has an outcome of its own.

A callback in Python waits for the interpreter's lock on the client's own thread, and each of its copies too: that costs
more than the rest of a send. So only the last send of a run has one. A producer answers in order, so the others have
their answers when it is called:

- Where the broker delays, each message is an entry. Its answer goes to a method of a dictionary.
- Where a relay holds, messages are batched, and the client is asked about the first and the last of a run alone. The
  place of a message says how far it is from the beginning and the end of its entry. If both parts together are as long
  as the run, all of it is stored in these entries, and each message's place is known. Otherwise a third entry lies
  between them, or the client refused a message: the others may be stored, and are sent again under their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import _pulsar

from timewheel.client.native import batch_size_of, tells_entries
from timewheel.client.results import Outcome

if TYPE_CHECKING:
    from .base_producer import Send

TOGETHER = 128  # messages handed over together; preparing that many takes about a millisecond
MOST_BATCHED = 64
"""Longest run whose ends tell of the others: short, so that a batch timer seldom cuts it twice."""


class Runs:
    """Splits sends into runs of one producer that do not reach into a third entry, as far as that is known beforehand.

    Args:
        messages: The client's limit on messages of a batch.
        size_bytes: Its limit on the payloads of a batch.
        in_order: Whether the client batches messages in the order in which they are sent.
    """

    def __init__(self, messages: int, size_bytes: int, *, in_order: bool) -> None:
        self._most = min(messages, MOST_BATCHED)
        self._size_bytes = size_bytes
        self._in_order = in_order
        self._now = self._most

    def of(self, sends: Iterable[Send]) -> Iterator[list[Send]]:
        """Return the sends in runs, in their order within each producer."""
        by_producer: dict[Any, list[Send]] = {}
        for send in sends:
            by_producer.setdefault(send.pooled, []).append(send)
        for of_one in by_producer.values():
            if self.is_batched(of_one[0]):
                yield from self._split(of_one)
            else:
                yield of_one

    def is_batched(self, send: Send) -> bool:
        """Return whether the first and the last of a run tell of the others."""
        return self._in_order and send.outgoing.place == "relay" and tells_entries(send.pooled.producer)

    def _split(self, sends: Iterable[Send]) -> Iterator[list[Send]]:
        run: list[Send] = []
        left_bytes = self._size_bytes
        for send in sends:
            size_bytes = len(send.outgoing.payload or b"")
            if run and (len(run) >= self._now or size_bytes > left_bytes):
                yield run
                run, left_bytes = [], self._size_bytes
            run.append(send)
            left_bytes -= size_bytes
        if run:
            yield run

    def tell(self, run: Sequence[Send], last: Send) -> None:
        """Give the unheard sends of a run that ``last`` ends what follows from the two ends: a place, or the result of
        an end whose outcome is not known, or no result: it must be sent again.
        """
        unheard = [send for send in run if send.is_unheard]
        if not unheard:
            return
        first = run[0]
        places = None
        if first.is_answered() and first.outcome is last.outcome is Outcome.OK:
            places = places_between(Place.of(first.message_id), Place.of(last.message_id), len(unheard))
        # A batch timer cuts a run in many pieces where other threads keep the interpreter's lock for long.
        self._now = max(self._now // 2, 2) if places is None else min(self._now + 1, self._most)
        if places is not None:
            partition = last.message_id.partition()
            for send, place in zip(unheard, places, strict=True):
                send.result, send.message_id = last.result, _pulsar.MessageId(partition, *place)
            return
        unknown = next((end.result for end in (first, last) if end.outcome is Outcome.UNKNOWN), None)
        for send in unheard:
            send.result = unknown


class Place(NamedTuple):
    """Place of a batched message."""

    ledger: int
    entry: int
    at: int  # number of the message in its entry
    size: int  # messages of its entry

    @classmethod
    def of(cls, message_id: Any) -> Place:
        """Return the place that the client told."""
        return cls(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index(), batch_size_of(message_id))


def places_between(first: Place, last: Place, count: int) -> list[tuple[int, int, int]] | None:
    """Return ledger, entry and index of the ``count`` messages that were sent between two others; None: not all of them
    lie in the entries of these two.
    """
    ledger, entry, at, size = first
    if (ledger, entry) == last[:2]:
        rest = range(at + 1, last.at)
        beginning = range(0)
    else:
        rest = range(at + 1, size)
        beginning = range(last.at)
    if len(rest) + len(beginning) != count:
        return None
    return [*((ledger, entry, n) for n in rest), *((last.ledger, last.entry, n) for n in beginning)]
