"""A look at gaps as plain values, for JSON and CSV, with the messages in the entries that a reload would repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import TIMER_PROPERTY
from timewheel.inspect.gaps.gap_status import GapStatus, SubscriptionGaps
from timewheel.inspect.gaps.log import GapHistory
from timewheel.inspect.gaps.reload import Run
from timewheel.inspect.gaps.snapshot import GapSnapshot
from timewheel.inspect.profile import Limit
from timewheel.inspect.sample import Place, draw, inspect


def snapshot_facts(
    snapshot: GapSnapshot, limit: Limit, snapshots: GapHistory, messages: Mapping[tuple[str, str], AgainMessages]
) -> dict[str, Any]:
    """Return all values of a snapshot.

    Args:
        snapshot: The snapshot.
        limit: The broker's limit and its source.
        snapshots: This look and earlier snapshots, for growth.
        messages: Messages that a reload repeats, by topic and subscription, as far as they were counted.
    """
    return {
        "at_ms": snapshot.at_ms,
        "level": snapshot.level.word,
        "gap_limit": limit.profile.gap_limit_ranges,
        "gap_limit_source": limit.source,
        "topics": snapshot.topics,
        "subscriptions": [
            {
                **subscription_facts(one, snapshots),
                "shadow": snapshot.shadowed.get(one.topic),
                **_messages(messages.get((one.topic, one.subscription))),
                "partitions": [_part(part) for part in one.parts],
            }
            for one in snapshot.subscriptions
        ],
        "without_subscription": list(snapshot.bare),
        "gone": list(snapshot.gone),
        "missing": list(snapshot.missing),
        "unseen": [asdict(one) for one in snapshot.unseen],
    }


def subscription_facts(one: SubscriptionGaps, snapshots: GapHistory) -> dict[str, Any]:
    """Return a row: sums over partitions, and the worst partition."""
    growth, worst = snapshots.growth(one), one.worst
    return {
        "topic": one.topic,
        "subscription": one.subscription,
        "type": worst.type,
        "level": one.level.word,
        "worst": worst.topic,
        "gaps_of_worst": worst.gap_count,
        "share_of_worst": round(worst.share, 4),
        "form_of_worst": worst.form,
        "gaps": one.gap_count,
        "backlog": one.backlog,
        "delayed": one.delayed,
        "stale_at_least": one.stale_entries,
        "unacked": one.unacked,
        "ready": one.ready,
        "unknown": one.unknown,
        "index_bytes": one.index_bytes,
        "pinned_bytes": one.pinned_bytes,
        "again_entries": one.again_entries,
        "growth_per_hour": None if growth is None else round(growth.per_hour, 1),
        "hours_to_limit": None if growth is None or growth.hours_to_limit is None else round(growth.hours_to_limit, 2),
    }


def _part(part: GapStatus) -> dict[str, Any]:
    return {
        "topic": part.topic,
        "level": part.level.word,
        "gaps": part.gap_count,
        "share": round(part.share, 4),
        "acked_entries": part.acked_entries,
        "span_entries": part.span_entries,
        "backlog": part.backlog,
        "delayed": part.delayed,
        "stale_at_least": part.stale_entries,
        "unacked": part.unacked,
        "ready": part.ready,
        "unknown": part.unknown,
        "index_bytes": part.index_bytes,
        "written_bytes": part.written_bytes,
        "form": part.form,
        "keeps_parts_of_batches": part.keeps_parts,
        "pinned_ledgers": part.pinned_ledgers,
        "pinned_bytes": part.pinned_bytes,
        "again_entries": part.again_entries,
    }


def _messages(found: AgainMessages | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "again_messages": found.messages,
        "again_messages_error": found.error,
        "again_originals": found.originals,
    }


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
