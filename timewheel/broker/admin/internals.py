"""The internal stats of a topic: its ledgers, and each subscription's cursor with its acknowledged ranges."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from timewheel.broker.admin.names import subscription_of
from timewheel.client.positions import EntryPosition

DEDUPLICATION = "pulsar.dedup"
"""The cursor under which a broker stores producers' names; written every thousand entries."""
TERMINATED = "Terminated"
"""State of a terminated topic's ledgers: it accepts no more messages."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_RANGE = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")


class AckedRange(NamedTuple):
    """Acknowledged entries: those after ``after``, up to and including ``upto``."""

    after: EntryPosition
    upto: EntryPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A ledger; ``entries`` counts written entries, also in the ledger that is still open."""

    ledger_id: int
    entries: int
    size_bytes: int
    offloaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorStats:
    """A subscription's cursor.

    Args:
        mark_delete: All entries up to here are acknowledged.
        read: Next entry to read from the ledgers.
        gap_count: Ranges behind ``mark_delete``.
        entries_since_mark_delete: Entries from the first unacknowledged entry to the read position.
        consumed: Entries acknowledged, in ranges or below, since the topic was loaded.
        cursor_ledger: Ledger in which the cursor itself is stored; -1: none is open.
        state: The cursor's state, as the broker names it.
        acked_text: The ranges as the broker writes them, hundreds of kB for an unhealthy topic; see `acked_ranges`.
        property_count: Numbers stored beside the position; the broker's own cursor of deduplication (`DEDUPLICATION`)
            stores a number for each producer's name.
    """

    mark_delete: EntryPosition
    read: EntryPosition
    gap_count: int
    entries_since_mark_delete: int
    consumed: int
    cursor_ledger: int
    state: str
    acked_text: str
    property_count: int = 0

    def acked_ranges(self) -> tuple[AckedRange, ...]:
        """Parse the ranges, in topic order; parsed at each call."""
        return tuple(
            AckedRange(
                EntryPosition(int(found[1]), int(found[2])),
                EntryPosition(int(found[3]), int(found[4])),
            )
            for found in _RANGE.finditer(self.acked_text)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalStats:
    """Internal stats of a partition, or of a topic without partitions.

    Args:
        entries: Entries on disk.
        entries_added: Entries written since the topic was loaded.
        size_bytes: Size of all ledgers.
        last_confirmed: The last entry that is safely written.
        state: The managed ledger's state, as the broker names it (``LedgerOpened``, ``Terminated``).
        ledgers: The ledgers, in order.
        cursors: By subscription, under the name that its users know; also the broker's own cursors, such as that of
            deduplication.
        ledger_since_ms: Time when the last ledger was created, UTC milliseconds, by the broker's clock; None: unknown.
    """

    entries: int
    entries_added: int
    size_bytes: int
    last_confirmed: EntryPosition
    state: str
    ledgers: tuple[Ledger, ...]
    cursors: Mapping[str, CursorStats]
    ledger_since_ms: int | None = None

    @property
    def newest_ledger(self) -> int:
        """The ledger that is written to; a broker that loads a topic begins a new ledger. -1: there is none."""
        return self.ledgers[-1].ledger_id if self.ledgers else -1


def read_internal_stats(stored: Mapping[str, Any]) -> InternalStats:
    """Parse internal stats from the broker's JSON."""
    ledgers = [
        Ledger(
            ledger_id=ledger["ledgerId"],
            entries=ledger["entries"],
            size_bytes=ledger["size"],
            offloaded=ledger.get("offloaded", False),
        )
        for ledger in stored.get("ledgers", ())
    ]
    if ledgers and ledgers[-1].entries == 0:
        # Brokers list the open ledger with 0 entries and count its entries elsewhere.
        ledgers[-1] = Ledger(
            ledger_id=ledgers[-1].ledger_id,
            entries=stored.get("currentLedgerEntries", 0),
            size_bytes=stored.get("currentLedgerSize", 0),
            offloaded=False,
        )
    return InternalStats(
        entries=stored["numberOfEntries"],
        entries_added=stored["entriesAddedCounter"],
        size_bytes=stored["totalSize"],
        last_confirmed=EntryPosition.parse(stored["lastConfirmedEntry"]),
        state=stored["state"],
        ledgers=tuple(ledgers),
        cursors={subscription_of(name): _cursor(cursor) for name, cursor in stored.get("cursors", {}).items()},
        ledger_since_ms=_read_ms(stored.get("lastLedgerCreatedTimestamp")),
    )


def _read_ms(text: str | None) -> int | None:
    """Parse a time as brokers write it; an invalid time is unknown."""
    try:
        found = dt.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return None if found.tzinfo is None else (found - _EPOCH) // dt.timedelta(milliseconds=1)


def _cursor(stored: Mapping[str, Any]) -> CursorStats:
    return CursorStats(
        mark_delete=EntryPosition.parse(stored["markDeletePosition"]),
        read=EntryPosition.parse(stored["readPosition"]),
        gap_count=stored["totalNonContiguousDeletedMessagesRange"],
        entries_since_mark_delete=stored["numberOfEntriesSinceFirstNotAckedMessage"],
        consumed=stored["messagesConsumedCounter"],
        cursor_ledger=stored["cursorLedger"],
        state=stored["state"],
        acked_text=stored["individuallyDeletedMessages"],
        property_count=len(stored.get("properties") or ()),
    )
