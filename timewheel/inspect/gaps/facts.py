"""Convert a look at gaps to plain values, for JSON and CSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from timewheel.inspect.gaps.gap_status import GapStatus, SubscriptionGaps
from timewheel.inspect.gaps.limit import Limit
from timewheel.inspect.gaps.log import GapHistory
from timewheel.inspect.gaps.messages import AgainMessages
from timewheel.inspect.gaps.snapshot import GapSnapshot


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
