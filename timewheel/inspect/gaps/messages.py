"""Count the messages in the entries that a reload would deliver again: a batch is a single entry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.internals import EntryPosition
from timewheel.core.envelope import TIMER_PROPERTY
from timewheel.inspect.gaps.gap_status import SubscriptionGaps
from timewheel.inspect.gaps.reload import Run
from timewheel.inspect.sample import Place, draw, inspect

MAX_READ = 2_000
"""Entries to read; of more entries a sample. Each takes a call of some milliseconds, eight concurrently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainMessages:
    """Messages that a reload would deliver again.

    Args:
        messages: Number of messages.
        error: Error of `messages` at 95 %; 0 if all entries were read.
        read: Entries read.
        originals: Messages among these that a shadow has moved and that are not due yet: only a shadow acknowledges a
            message before it is due, and it acknowledges these messages again before a consumer gets them.
    """

    messages: int
    error: int
    read: int
    originals: int = 0


def messages_again(
    admin: AdminClient, one: SubscriptionGaps, *, shadowed: bool = False, max_read: int = MAX_READ
) -> AgainMessages:
    """Read the entries that a reload would deliver again.

    Args:
        admin: Client whose role may peek at the topic's messages.
        one: Gaps of a subscription, from the same snapshot.
        shadowed: True if the topic has a shadow, whose originals are counted separately.
        max_read: Number of entries up to which all are read.

    Raises:
        NothingToSample: More than a tenth of the entries disappeared too soon.
        AdminError: A call failed for another reason.
    """
    runs = [(part.topic, run) for part in one.parts for run in part.again]
    total = one.again_entries
    if not total:
        return AgainMessages(messages=0, error=0, read=0)
    now_ms = admin.clock.now_ms()

    def read(_place: Place, entry: StoredEntry) -> tuple[int, bool]:
        is_plain = TIMER_PROPERTY not in entry.properties
        return entry.batch_messages or 1, shadowed and is_plain and (entry.deliver_at_ms or 0) > now_ms

    places = list(_places(runs, sorted(draw(total, max_read, 0))))
    found, _ = inspect(admin, one.topic, places, len(places), read, lambda _done, _total: None)
    sizes = [size for size, _ in found]
    originals = round(total * sum(is_original for _, is_original in found) / len(found))
    mean = sum(sizes) / len(sizes)
    if len(sizes) == total:
        return AgainMessages(messages=sum(sizes), error=0, read=total, originals=originals)
    spread = math.sqrt(sum((size - mean) ** 2 for size in sizes) / max(len(sizes) - 1, 1))
    error = 1.96 * spread / math.sqrt(len(sizes)) * math.sqrt(1 - len(sizes) / total)
    return AgainMessages(messages=round(total * mean), error=round(total * error), read=len(sizes), originals=originals)


def _places(runs: Sequence[tuple[str, Run]], numbers: Sequence[int]) -> list[Place]:
    """Return the places of the entries with these ascending numbers, counted through all runs."""
    found: list[Place] = []
    wanted = iter(numbers)
    number = next(wanted, None)
    before = 0
    for topic, run in runs:
        while number is not None and number < before + run.entries:
            found.append(Place(topic, EntryPosition(run.ledger, run.first + number - before)))
            number = next(wanted, None)
        before += run.entries
    return found
