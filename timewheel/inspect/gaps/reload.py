"""Predict a reload: the acknowledged ranges that a broker would store if it unloaded a topic now, and the entries that
it would deliver again.

A cursor is written in either of two forms when its topic is unloaded (broker-facts: persisted-ranges):

- as ranges: the first ``limit + 1`` ranges;
- as a bitmap: whole ledgers, the oldest first, as long as the acknowledged entries of earlier ledgers are within the
  limit. This form is used only with more ranges than the metadata store accepts, and only in the cursor's own ledger: a
  cursor without an open ledger, as after a reload without an acknowledgement since, is written as ranges.

Acknowledged entries that are not written are delivered again. The prediction is exact for whole entries. The admin API
does not show acknowledgements inside a batch; brokers restore them if the cursor was in its own ledger, but not from
the metadata store (broker-facts: parts-of-batches).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from timewheel.broker.admin.stats import AckedRange, CursorStats, Ledger
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import AckFormat, BrokerProfile

NO_LEDGER = "NoLedger"
"""State of a cursor that has been loaded but not written since."""


class Run(NamedTuple):
    """Acknowledged entries of a ledger, from ``first`` to ``last`` inclusive."""

    ledger: int
    first: int
    last: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """Effect that an unload would have on a cursor right now.

    Args:
        form: Form in which the cursor would be written.
        in_metadata_store: True if it would be written to the metadata store instead of the cursor's own ledger. Then
            acknowledged messages inside a partly acknowledged batch are delivered again, too.
        acked_entries: Acknowledged entries beyond the mark-delete position.
        span_entries: Entries from the first after that position to the last acknowledged entry.
        counted_to_limit: Count to compare with the limit, by `form`: ranges less 1, or acknowledged entries before the
            last ledger with any; up to the limit nothing is forgotten.
        forgotten: Acknowledged entries that would not be written, in topic order.
    """

    form: AckFormat
    in_metadata_store: bool
    acked_entries: int
    span_entries: int
    counted_to_limit: int
    forgotten: tuple[Run, ...]

    @property
    def again_entries(self) -> int:
        """Acknowledged entries that would be delivered again."""
        return sum(run.entries for run in self.forgotten)

    @property
    def kept_entries(self) -> int:
        """Acknowledged entries that would not be delivered again."""
        return self.acked_entries - self.again_entries


def reload_of(cursor: CursorStats, ledgers: Sequence[Ledger], profile: BrokerProfile) -> Reload:
    """Predict the effect that an unload would have on a cursor right now.

    Args:
        cursor: Cursor with its ranges.
        ledgers: Ledgers of the topic, in order.
        profile: The broker's limit, format and rule.
    """
    runs = list(runs_of(cursor.acked_ranges(), ledgers))
    in_metadata_store = (
        len(runs) <= profile.metadata_store_limit_ranges or cursor.cursor_ledger < 0 or cursor.state == NO_LEDGER
    )
    # The metadata store accepts ranges only.
    form: AckFormat = "ranges" if in_metadata_store else _form(runs, profile)
    acked = sum(run.entries for run in runs)
    kept, counted = (_kept_as_bitmap if form == "bitmap" else _kept_as_ranges)(runs, profile)
    return Reload(
        form=form,
        in_metadata_store=in_metadata_store,
        acked_entries=acked,
        span_entries=_span(cursor.mark_delete, runs, ledgers),
        counted_to_limit=counted,
        forgotten=tuple(runs[kept:]),
    )


def runs_of(ranges: Iterable[AckedRange], ledgers: Sequence[Ledger]) -> Iterator[Run]:
    """Split ranges by ledger, in topic order. Brokers that cache bitmaps end a range with its ledger."""
    last_entry = {ledger.ledger_id: ledger.entries - 1 for ledger in ledgers}
    for after, upto in ranges:
        if after.ledger == upto.ledger:
            yield Run(after.ledger, after.entry + 1, upto.entry)
            continue
        if after.entry < last_entry.get(after.ledger, -1):
            yield Run(after.ledger, after.entry + 1, last_entry[after.ledger])
        for ledger_id, last in last_entry.items():
            if after.ledger < ledger_id < upto.ledger and last >= 0:
                yield Run(ledger_id, 0, last)
        yield Run(upto.ledger, 0, upto.entry)


def _form(runs: Sequence[Run], profile: BrokerProfile) -> AckFormat:
    if profile.ack_format == "bitmap" and not _kept_as_bitmap(runs, profile)[0]:
        # Pulsar 5.0 development: if the first ledger alone exceeds the limit, only ranges can be written.
        return "ranges"
    return profile.ack_format


def _kept_as_ranges(runs: Sequence[Run], profile: BrokerProfile) -> tuple[int, int]:
    """Return (number of kept runs, count to compare with the limit)."""
    return profile.gap_limit_ranges + 1, max(len(runs) - 1, 0)


def _kept_as_bitmap(runs: Sequence[Run], profile: BrokerProfile) -> tuple[int, int]:
    acked = _summed(runs)
    with_it = list(accumulate(acked.values()))
    before = [0, *with_it[:-1]]
    compared = before if profile.keeps_crossing_ledger else with_it
    kept = {ledger for ledger, entries in zip(acked, compared, strict=True) if entries <= profile.gap_limit_ranges}
    return sum(run.ledger in kept for run in runs), compared[-1] if compared else 0


def _summed(runs: Sequence[Run]) -> dict[int, int]:
    acked: dict[int, int] = {}
    for run in runs:
        acked[run.ledger] = acked.get(run.ledger, 0) + run.entries
    return acked


def _span(mark_delete: EntryPosition, runs: Sequence[Run], ledgers: Sequence[Ledger]) -> int:
    if not runs:
        return 0
    end = runs[-1]
    between = sum(ledger.entries for ledger in ledgers if mark_delete.ledger <= ledger.ledger_id < end.ledger)
    own = mark_delete.entry + 1 if any(ledger.ledger_id == mark_delete.ledger for ledger in ledgers) else 0
    return between + end.last + 1 - own
