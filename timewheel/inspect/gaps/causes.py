"""Causes: why entries stay open while later entries are acknowledged, determined from a sample of entries.

Every gap follows a *hole*: entries that are still open. The reason that keeps a hole open is the cause of its gap, and
four kinds exist (those of Tencent's article on message gaps). The entry itself shows whether it is not due yet or
ready. For a ready entry, the subscription type decides among the other three.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from timewheel.broker.admin.internals import EntryPosition, Ledger
from timewheel.broker.admin.stats import IN_ORDER_TYPES
from timewheel.inspect.gaps.reload import Run

BY_KEY = "Key_Shared"
WAITING_SHARE = 0.1
"""Fraction of the ready entries in holes from which they wait for more than acknowledgements of messages in flight."""
HOT_SHARE = 0.3
"""Fraction of the ready entries in holes with the same key from which the key is hot or slow."""
LEAST_INSPECTED = 5
"""Least number of entries from which the share of a key is estimated."""


class Cause(Enum):
    """Cause of an entry's staying open while later entries are acknowledged."""

    DELAYS = "mixed delays"
    """The entry is not due yet, and later entries were due."""
    UNACKNOWLEDGED = "unacknowledged messages"
    """Consumers have the entry in flight, and acknowledge others first."""
    KEYS = "hot or slow keys"
    """The entry's key waits for a busy consumer; other keys proceed."""
    SINGLE = "single acknowledgements"
    """A single consumer gets all entries in order, and does not acknowledge all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Open entries right before a range of acknowledged entries.

    Args:
        topic: A partition, or a topic without partitions.
        run: The open entries within the range's ledger, or within the ledger before.
    """

    topic: str
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEntry:
    """A stored entry of a hole.

    Args:
        hole_entries: Number of entries in the hole.
        deliver_at_ms: Delivery time, UTC milliseconds; None if not delayed.
        publish_at_ms: Publish time, UTC milliseconds.
        key: Key; None without a key.
    """

    hole_entries: int
    deliver_at_ms: int | None
    publish_at_ms: int
    key: str | None

    def is_delayed(self, now_ms: int) -> bool:
        return self.deliver_at_ms is not None and self.deliver_at_ms > now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A cause's share of the gaps.

    Args:
        cause: The cause.
        share: Fraction of the gaps.
        error: Error of `share` at 95 %; 0 if every hole was read.
    """

    cause: Cause
    share: float
    error: float


def holes_of(topic: str, mark_delete: EntryPosition, runs: Sequence[Run], ledgers: Sequence[Ledger]) -> Iterator[Hole]:
    """Yield the hole before each range of acknowledged entries. Ranges split only by the end of a ledger share a hole.

    Args:
        topic: Topic of the ranges.
        mark_delete: Everything up to this position is acknowledged.
        runs: Acknowledged entries beyond it, in topic order.
        ledgers: Ledgers of the topic, in order.
    """
    entries = {ledger.ledger_id: ledger.entries for ledger in ledgers if ledger.entries}
    before = {later: earlier for earlier, later in zip(entries, list(entries)[1:], strict=False)}
    acked_upto = {mark_delete.ledger: mark_delete.entry}
    for run in runs:
        first = acked_upto.get(run.ledger, -1) + 1
        if first < run.first:
            yield Hole(topic=topic, run=Run(run.ledger, first, run.first - 1))
        elif not run.first and (earlier := before.get(run.ledger)) is not None and earlier >= mark_delete.ledger:
            first = acked_upto.get(earlier, -1) + 1
            if first < entries[earlier]:
                yield Hole(topic=topic, run=Run(earlier, first, entries[earlier] - 1))
        acked_upto[run.ledger] = run.last


def cause_of(subscription_type: str, *, ready_entries: float, unacked: int, hottest: float) -> Cause:
    """Decide why ready entries stay open.

    Args:
        subscription_type: Type as the broker writes it.
        ready_entries: Estimated number of ready entries in all holes.
        unacked: Messages that consumers have in flight.
        hottest: Share of these entries with the most frequent key; 0 if unknown.
    """
    if subscription_type in IN_ORDER_TYPES:
        return Cause.SINGLE
    if subscription_type != BY_KEY:
        return Cause.UNACKNOWLEDGED
    waits = ready_entries * (1 - WAITING_SHARE) > unacked
    return Cause.KEYS if waits or hottest >= HOT_SHARE else Cause.UNACKNOWLEDGED


def shares_of(
    inspected: Sequence[OpenEntry], holes: int, subscription_type: str, unacked: int, now_ms: int
) -> tuple[Share, ...]:
    """Return the causes that were found, the greatest share first.

    Args:
        inspected: An entry of each sampled hole; each hole had the same chance.
        holes: Number of all holes.
        subscription_type: Type as the broker writes it.
        unacked: Messages that consumers have in flight.
        now_ms: Present time, UTC milliseconds.
    """
    if not inspected:
        return ()
    ready = [entry for entry in inspected if not entry.is_delayed(now_ms)]
    counts: Counter[Cause] = Counter()
    if ready:
        scale = holes / len(inspected)
        cause = cause_of(
            subscription_type,
            ready_entries=scale * sum(entry.hole_entries for entry in ready),
            unacked=unacked,
            hottest=hottest_of(entry.key for entry in ready)[1],
        )
        counts[cause] += len(ready)
    counts[Cause.DELAYS] += len(inspected) - len(ready)
    return tuple(
        Share(cause=cause, share=count / len(inspected), error=_error(count, len(inspected), holes))
        for cause, count in counts.most_common()
        if count
    )


def hottest_of(keys: Iterable[str | None]) -> tuple[str, float]:
    """Return the most frequent key and its share of all entries; ("", 0) if the entries are too few or have no keys."""
    found = list(keys)
    named = Counter(key for key in found if key)
    if len(found) < LEAST_INSPECTED or not named:
        return "", 0.0
    ((key, count),) = named.most_common(1)
    return key, count / len(found)


def _error(count: int, inspected: int, holes: int) -> float:
    """Return the error of a share at 95 %, by Agresti and Coull, which holds for shares near 0 and 1 as well."""
    if inspected >= holes:
        return 0.0
    share = (count + 2) / (inspected + 4)
    return 1.96 * math.sqrt(share * (1 - share) / (inspected + 4))
