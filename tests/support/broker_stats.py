"""What brokers answer about a topic, with only those facts that a test is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timewheel.broker.admin.stats import CursorStats
from timewheel.client.positions import EntryPosition

START = EntryPosition(3, -1)


def cursor_stats(mark_delete: EntryPosition = START, **facts: Any) -> CursorStats:
    """A cursor that has acknowledged nothing."""
    whole: dict[str, Any] = {
        "read": mark_delete, "gap_count": 0, "entries_since_mark_delete": 0, "consumed": 0, "cursor_ledger": 1,
        "state": "Open", "acked_text": "[]", **facts,
    }  # fmt: skip
    return CursorStats(mark_delete=mark_delete, **whole)


def internal_json(ledgers: Iterable[tuple[int, int, int]] = (), **facts: Any) -> dict[str, Any]:
    """Internal stats with ledgers, each with its entries and bytes."""
    stored = [{"ledgerId": ledger, "entries": entries, "size": size} for ledger, entries, size in ledgers]
    return {
        "numberOfEntries": 0, "entriesAddedCounter": 0, "totalSize": 0, "lastConfirmedEntry": "9:-1",
        "state": "LedgerOpened", "ledgers": stored, **facts,
    }  # fmt: skip
