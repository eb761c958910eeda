"""Which entries are moved: a table of each reason, and the definition for random ones."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plans import shadow_of
from tests.support.stored_entry import entry_of
from timewheel.broker.protocol.entries import Compression, Entry, Marker
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.envelope import Envelope
from timewheel.core.plan import Tiered
from timewheel.shadow.machine.move_decider import (
    EARLIER_TICKS,
    LARGEST_BYTES,
    MoveDecider,
    MoveDecision,
    fence_number,
    moved_from,
)

NOW_MS = 1_800_000_000_000
PLAN = shadow_of(Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS)), max_delay_ms=30 * DAY_MS)
FAR_MS = DAY_MS + 10 * MINUTE_MS  # the longest stay, a day and the guard of five minutes, and the guard again
PART = "persistent://acme/crm/reminders-partition-0"


def entry(**facts: Any) -> Entry:
    usual = {"publish_ms": NOW_MS - 1_000, "deliver_at_ms": NOW_MS + 10 * DAY_MS, "payload": b"x"}
    return entry_of(12, 34, **(usual | facts))


TIMER = Envelope("order-7", NOW_MS + 10 * DAY_MS, NOW_MS, hops=2)


@pytest.mark.parametrize(
    ("facts", "decision"),
    [
        ({}, MoveDecision.MOVE),
        ({"deliver_at_ms": None}, MoveDecision.UNDELAYED),
        ({"deliver_at_ms": 0}, MoveDecision.UNDELAYED),
        ({"defect": "a field with tag 0", "deliver_at_ms": None}, MoveDecision.DEFECT),
        ({"deliver_at_ms": NOW_MS - 1}, MoveDecision.NEAR),
        ({"deliver_at_ms": NOW_MS + FAR_MS - 1}, MoveDecision.NEAR),
        ({"deliver_at_ms": NOW_MS + FAR_MS}, MoveDecision.MOVE),
        ({"deliver_at_ms": NOW_MS + 30 * DAY_MS}, MoveDecision.MOVE),
        ({"deliver_at_ms": NOW_MS + 30 * DAY_MS + 1}, MoveDecision.BEYOND),
        ({"marker": Marker.SNAPSHOT}, MoveDecision.MARKER),
        ({"properties": {"tw-nudge": "1"}}, MoveDecision.NUDGE),
        ({"properties": {"tw-nudge": "1"}, "deliver_at_ms": NOW_MS}, MoveDecision.NUDGE),
        ({"batch_size": 1}, MoveDecision.BATCH),
        ({"is_encrypted": True}, MoveDecision.ENCRYPTED),
        ({"chunk": 0, "chunk_count": 2}, MoveDecision.CHUNK),
        ({"chunk": 0, "chunk_count": 1}, MoveDecision.MOVE),
        ({"key_is_base64": True, "partition_key": "AA=="}, MoveDecision.KEY_BYTES),
        ({"transaction": (1, 2)}, MoveDecision.TRANSACTION),
        ({"partition_key": "caf\udce9"}, MoveDecision.NO_TEXT),
        ({"properties": {"place": "caf\udce9"}}, MoveDecision.NO_TEXT),
        ({"ordering_key": uuid.UUID(int=255 << 120).bytes}, MoveDecision.NO_TEXT),
        ({"ordering_key": "日".encode()}, MoveDecision.MOVE),
        ({"schema_version": bytes(8)}, MoveDecision.MOVE),
        ({"schema_version": b"\x7f" + b"\xff" * 7}, MoveDecision.MOVE),
        ({"schema_version": b"\x80" + bytes(7)}, MoveDecision.SCHEMA),
        ({"schema_version": b""}, MoveDecision.SCHEMA),
        ({"schema_version": b"\x01" * 200}, MoveDecision.SCHEMA),
        ({"properties": {"caf\udce9": "place"}}, MoveDecision.NO_TEXT),
        ({"properties": {"café": "naïve"}, "partition_key": "日"}, MoveDecision.MOVE),
        ({"compression": 9}, MoveDecision.COMPRESSION),
        *(({"compression": one}, MoveDecision.MOVE) for one in Compression),
        ({"position": EntryPosition(12, 1 << 20)}, MoveDecision.MOVE),
        ({"properties": {"tw-timer": "?"}}, MoveDecision.UNREADABLE),
        ({"properties": {"tw-id": "alone"}}, MoveDecision.UNREADABLE),
        ({"properties": {"tw-colour": "red", "tw-due": "?", "tw-for": "me"}}, MoveDecision.MOVE),
        ({"properties": TIMER.properties()}, MoveDecision.MOVE),
        ({"properties": {**TIMER.properties(), "tw-for": "billing"}}, MoveDecision.UNREADABLE),
        ({"is_encrypted": True, "deliver_at_ms": NOW_MS}, MoveDecision.NEAR),
        ({"payload_bytes": LARGEST_BYTES}, MoveDecision.MOVE),
        ({"payload_bytes": LARGEST_BYTES + 1}, MoveDecision.LARGE),
        ({"uncompressed_bytes": LARGEST_BYTES + 1}, MoveDecision.LARGE),
    ],
)
def test_what_becomes_of_an_entry(facts: dict[str, Any], decision: MoveDecision) -> None:
    assert MoveDecider(PLAN).decision(entry(**facts), NOW_MS) is decision


def test_a_plain_message_is_a_timer_by_its_place() -> None:
    properties = MoveDecider(PLAN).copy(entry(properties={"colour": "red", "tw-due": "1"}), PART, NOW_MS)
    made = Envelope.read(properties)
    assert made is not None
    assert made == Envelope(f"{PART}:12:34", NOW_MS + 10 * DAY_MS, NOW_MS, revision=PLAN.revision)
    kept = {"colour": "red", "tw-from": f"12:34 {NOW_MS - 1_000}"}
    assert properties == {**kept, **made.properties()}


ASKED_EARLIER = [0, 1_500, 4_000, EARLIER_TICKS * PLAN.tick_ms]


@pytest.mark.parametrize("earlier_ms", ASKED_EARLIER)
def test_a_timer_that_was_put_back_stays_the_same_timer(earlier_ms: int) -> None:
    back = entry(properties={**TIMER.properties(), "colour": "red"}, deliver_at_ms=TIMER.due_ms - earlier_ms)
    properties = MoveDecider(PLAN).copy(back, PART, NOW_MS)
    made = Envelope.read(properties)
    assert made is not None
    assert properties["colour"] == "red"
    assert (made.timer_id, made.due_ms, made.generation) == (TIMER.timer_id, TIMER.due_ms, TIMER.generation)
    assert (made.hops, made.entered_ms) == (3, NOW_MS)


@pytest.mark.parametrize("later_ms", [1, HOUR_MS, -EARLIER_TICKS * PLAN.tick_ms - 1])
def test_what_a_client_sends_on_with_the_properties_of_what_it_was_given_is_another_timer(later_ms: int) -> None:
    given = Envelope("order-7", NOW_MS + 10 * DAY_MS - later_ms, NOW_MS - DAY_MS, hops=2).properties()
    again = entry(properties={**given, "tw-for": "billing", "tw-from": "1:2 3", "colour": "red"})
    assert MoveDecider(PLAN).decision(again, NOW_MS) is MoveDecision.MOVE
    properties = MoveDecider(PLAN).copy(again, PART, NOW_MS)
    made = Envelope.read(properties)
    assert made is not None
    assert made == Envelope(f"{PART}:12:34", NOW_MS + 10 * DAY_MS, NOW_MS, revision=PLAN.revision)
    assert properties == {"colour": "red", "tw-from": f"12:34 {NOW_MS - 1_000}", **made.properties()}


@given(delay_ms=st.integers(-DAY_MS, 60 * DAY_MS))
def test_by_its_delay_alone_an_entry_is_near_far_or_beyond(delay_ms: int) -> None:
    decision = MoveDecider(PLAN).decision(entry(deliver_at_ms=NOW_MS + delay_ms), NOW_MS)
    assert (decision is MoveDecision.NEAR) is (delay_ms < FAR_MS)
    assert (decision is MoveDecision.BEYOND) is (delay_ms > PLAN.max_delay_ms)


@given(
    clocks_ms=st.lists(st.integers(0, 2 * NOW_MS), min_size=2, max_size=20),
    copies=st.lists(st.integers(0, 1_000_000), min_size=20, max_size=20),
)
def test_each_fence_shuts_out_all_that_was_sent_before_whatever_the_clocks_say(
    clocks_ms: list[int], copies: list[int]
) -> None:
    mark = sent = -1
    for now_ms, count in zip(clocks_ms, copies, strict=False):
        fence = fence_number(mark, now_ms)
        assert sent < fence < 2**63 - 1_000_000
        # Of what follows it the broker has stored some, or nothing.
        mark, sent = fence + count // 2, fence + count
    assert fence_number(-1, NOW_MS) > fence_number(-1, NOW_MS - 1_000) + 1_000_000, "forgotten by the broker"


@given(ledger=st.integers(0, 2**40), number=st.integers(0, 2**30), published=st.integers(0, 2**45))
def test_where_it_was_lifted_from_reads_back(ledger: int, number: int, published: int) -> None:
    assert moved_from(f"{ledger}:{number} {published}") == (EntryPosition(ledger, number), published)


@pytest.mark.parametrize(
    "text",
    ["", "1", "1:2", "1:2 x", "a:2 3", "1:-2 3", ":2 3", "1: 3", "9" * 5_000 + ":2 3", "1:2 " + "9" * 19, "²:2 3"],
)
def test_what_no_shadow_writes_is_none(text: str) -> None:
    assert moved_from(text) is None
