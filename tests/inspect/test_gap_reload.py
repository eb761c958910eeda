"""What a reload would repeat, from a cursor as brokers write it, against the rule acted out entry by entry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forgetting import redelivered_exactly
from timewheel.broker.admin.stats import CursorStats, Ledger
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.inspect.gaps.reload import Run, reload_of, runs_of

PROFILE = replace(BrokerProfile.named("4.0"), gap_limit_ranges=3, metadata_store_limit_ranges=1)
LEDGER_ENTRIES = 7
FIRST_LEDGER = 100


def ledgers(entries: int, each: int = LEDGER_ENTRIES) -> list[Ledger]:
    """So many entries in ledgers that are full, but for the last."""
    sizes = [min(each, entries - first) for first in range(0, entries, each)]
    return [
        Ledger(ledger_id=FIRST_LEDGER + 3 * number, entries=size, size_bytes=10 * size, offloaded=False)
        for number, size in enumerate(sizes)
    ]


def cursor(acknowledged: list[bool], *, state: str = "Open", cursor_ledger: int = 7) -> CursorStats:
    """As a broker tells of it: ranges end with their ledger, and the mark-delete position is before the first hole."""
    at = [
        (FIRST_LEDGER + 3 * (number // LEDGER_ENTRIES), number % LEDGER_ENTRIES) for number in range(len(acknowledged))
    ]
    hole = acknowledged.index(False) if False in acknowledged else len(acknowledged)
    texts = []
    first: int | None = None
    for number in range(hole, len(acknowledged) + 1):
        inside = number < len(acknowledged) and acknowledged[number]
        ends = first is not None and (not inside or at[number][1] == 0)
        if ends and first is not None:
            (ledger, low), (_, high) = at[first], at[number - 1]
            texts.append(f"({ledger}:{low - 1}..{ledger}:{high}]")
            first = None
        if inside and first is None:
            first = number
    mark = EntryPosition(*at[hole - 1]) if hole else EntryPosition(FIRST_LEDGER, -1)
    return CursorStats(
        mark_delete=mark,
        read=mark,
        gap_count=len(texts),
        entries_since_mark_delete=0,
        consumed=0,
        cursor_ledger=cursor_ledger,
        state=state,
        acked_text=f"[{','.join(texts)}]",
    )


@pytest.mark.parametrize("version", ["4.0", "4.2", "5.0"])
@given(acknowledged=st.lists(st.booleans(), max_size=60), limit=st.integers(0, 12), few=st.integers(0, 6))
def test_what_comes_again_is_what_the_brokers_rule_leaves_out(
    version: str, acknowledged: list[bool], limit: int, few: int
) -> None:
    named = BrokerProfile.named(version)
    profile = replace(named, gap_limit_ranges=limit, metadata_store_limit_ranges=few)

    found = reload_of(cursor(acknowledged), ledgers(len(acknowledged)), profile)

    expected = redelivered_exactly(np.array(acknowledged, np.bool_), LEDGER_ENTRIES, profile, profile.ack_format)
    assert found.again_entries == expected
    assert found.kept_entries + found.again_entries == found.acked_entries
    hole = acknowledged.index(False) if False in acknowledged else len(acknowledged)
    beyond = [number for number, is_acked in enumerate(acknowledged) if is_acked and number > hole]
    assert found.acked_entries == len(beyond)
    assert found.span_entries == (beyond[-1] - hole + 1 if beyond else 0)
    if found.counted_to_limit <= limit and version != "5.0":
        assert found.again_entries == 0
    if found.again_entries and version != "5.0":
        assert found.counted_to_limit > limit


BITMAP = replace(PROFILE, ack_format="bitmap")
ALTERNATING = [False, True] * 14
"""Four ledgers with 3, 4, 3 and 4 ranges of one entry."""


@pytest.mark.parametrize(
    ("state", "cursor_ledger", "form", "again"),
    [
        # The first ledger is kept, and the second since those before it have 3, which is within the limit.
        ("Open", 7, "bitmap", 7),
        # Into the metadata store, which takes ranges only: the first four.
        ("NoLedger", 7, "ranges", 10),
        ("Open", -1, "ranges", 10),
    ],
)
def test_a_cursor_without_a_ledger_of_its_own_is_written_as_ranges(
    state: str, cursor_ledger: int, form: str, again: int
) -> None:
    found = reload_of(cursor(ALTERNATING, state=state, cursor_ledger=cursor_ledger), ledgers(28), BITMAP)

    assert (found.form, found.again_entries) == (form, again)


def test_a_range_over_several_ledgers_is_cut_at_their_ends() -> None:
    """As brokers write them that keep no bitmaps in memory."""
    text = "[(100:4..106:1],(106:3..106:4]]"
    ranges = replace(cursor([False]), acked_text=text).acked_ranges()

    assert list(runs_of(ranges, ledgers(21))) == [Run(100, 5, 6), Run(103, 0, 6), Run(106, 0, 1), Run(106, 4, 4)]
