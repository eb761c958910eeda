"""Causes: why entries stay open while later ones are acknowledged, told apart by looking at some of them.

Every gap stands behind a *hole*: entries that are still open. What keeps a hole open is what makes its gap, and there
are four kinds (those of Tencent's article on message gaps). The entry itself tells two of them: it is not due yet, or
it is ready. Of a ready one the kind of subscription tells the rest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from timewheel.admin.internals import EntryPosition, Ledger
from timewheel.admin.stats import IN_ORDER_TYPES
from timewheel.ops.gaps.reload import Run

__all__ = ["Cause", "Hole", "OpenEntry", "Share", "cause_of", "holes_of", "shares_of"]

BY_KEY = "Key_Shared"
WAITING_SHARE = 0.1
"""Of the ready entries in holes, from which on they wait for more than an acknowledgement of what is in hand."""
HOT_SHARE = 0.3
"""Of the ready entries in holes that one key has, from which on it is hot or slow."""
LEAST_LOOKED_AT = 5
"""Entries of which the share of a key says anything."""


class Cause(Enum):
    """Why an entry stays open while later ones are acknowledged."""

    DELAYS = "mixed delays"
    """It is not due yet, and later ones were."""
    UNACKNOWLEDGED = "unacknowledged messages"
    """Consumers have it in hand, and acknowledge others first."""
    KEYS = "hot or slow keys"
    """Its key waits for a consumer that is busy; other keys go on."""
    SINGLE = "single acknowledgements"
    """One consumer gets all in order, and does not acknowledge all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Open entries right before a range of acknowledged ones.

    Args:
        topic: A partition, or a topic without partitions.
        run: Those of them that are in the range's ledger, or in the one before.
    """

    topic: str
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEntry:
    """An entry of a hole, as it is stored.

    Args:
        hole_entries: How many the hole has.
        deliver_at_ms: UTC milliseconds; None: it is not delayed.
        publish_at_ms: UTC milliseconds.
        key: None: it has none.
    """

    hole_entries: int
    deliver_at_ms: int | None
    publish_at_ms: int
    key: str | None

    def is_delayed(self, now_ms: int) -> bool:
        return self.deliver_at_ms is not None and self.deliver_at_ms > now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A cause's part of the gaps.

    Args:
        cause: That.
        share: In parts of one.
        error: Of that at 95 %; 0: every hole was looked at.
    """

    cause: Cause
    share: float
    error: float


def holes_of(topic: str, mark_delete: EntryPosition, runs: Sequence[Run], ledgers: Sequence[Ledger]) -> Iterator[Hole]:
    """The hole before each range of acknowledged entries. Ranges that only the end of a ledger parts have one together.

    Args:
        topic: Where they are.
        mark_delete: All up to here is acknowledged.
        runs: Acknowledged entries beyond it, in topic order.
        ledgers: Of the topic, in order.
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
    """Why ready entries stay open.

    Args:
        subscription_type: As the broker writes it.
        ready_entries: About how many there are in all holes.
        unacked: Messages that consumers have in hand.
        hottest: Share of these entries that the most frequent key has; 0: not known.
    """
    if subscription_type in IN_ORDER_TYPES:
        return Cause.SINGLE
    if subscription_type != BY_KEY:
        return Cause.UNACKNOWLEDGED
    waits = ready_entries * (1 - WAITING_SHARE) > unacked
    return Cause.KEYS if waits or hottest >= HOT_SHARE else Cause.UNACKNOWLEDGED


def shares_of(
    looked_at: Sequence[OpenEntry], holes: int, subscription_type: str, unacked: int, now_ms: int
) -> tuple[Share, ...]:
    """The causes at work, the greatest first.

    Args:
        looked_at: One entry of each hole that was drawn; each hole had the same chance.
        holes: How many there are.
        subscription_type: As the broker writes it.
        unacked: Messages that consumers have in hand.
        now_ms: UTC milliseconds.
    """
    if not looked_at:
        return ()
    ready = [entry for entry in looked_at if not entry.is_delayed(now_ms)]
    counts: Counter[Cause] = Counter()
    if ready:
        scale = holes / len(looked_at)
        cause = cause_of(
            subscription_type,
            ready_entries=scale * sum(entry.hole_entries for entry in ready),
            unacked=unacked,
            hottest=hottest_of(entry.key for entry in ready)[1],
        )
        counts[cause] += len(ready)
    counts[Cause.DELAYS] += len(looked_at) - len(ready)
    return tuple(
        Share(cause=cause, share=count / len(looked_at), error=_error(count, len(looked_at), holes))
        for cause, count in counts.most_common()
        if count
    )


def hottest_of(keys: Iterable[str | None]) -> tuple[str, float]:
    """The most frequent key and its share of all entries; ("", 0): too few, or they have no keys."""
    found = list(keys)
    named = Counter(key for key in found if key)
    if len(found) < LEAST_LOOKED_AT or not named:
        return "", 0.0
    ((key, count),) = named.most_common(1)
    return key, count / len(found)


def _error(count: int, looked_at: int, holes: int) -> float:
    """Of a share at 95 %, by Agresti and Coull, which holds for shares near 0 and 1 as well."""
    if looked_at >= holes:
        return 0.0
    share = (count + 2) / (looked_at + 4)
    return 1.96 * math.sqrt(share * (1 - share) / (looked_at + 4))
