"""Which entries are lifted: a table of each reason, and the definition for random ones."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.binary_protocol.entries import Compression, Entry, Marker
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.envelope import Envelope
from timewheel.core.plan import Plan, Tiered
from timewheel.shadow.machine.lifting import EARLIER_TICKS, Fate, Lifting, fence_number, lifted_from
from timewheel.wire.positions import EntryPosition

NOW_MS = 1_800_000_000_000
PLAN = Plan(
    due_topic="persistent://acme/crm/reminders",
    subscriptions=("billing",),
    scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS)),
    max_delay_ms=30 * DAY_MS,
    relay="service",
    readers="any",
    intake=True,
)
FAR_MS = DAY_MS + 10 * MINUTE_MS
"""The longest stay, a day and the guard of five minutes, and the guard again."""
PART = "persistent://acme/crm/reminders-partition-0"


def entry(**facts: Any) -> Entry:
    usual: dict[str, Any] = {
        "consumer_id": 0,
        "position": EntryPosition(12, 34),
        "redeliveries": 0,
        "publish_ms": NOW_MS - 1_000,
        "deliver_at_ms": NOW_MS + 10 * DAY_MS,
        "batch_size": 0,
        "properties": {},
        "partition_key": None,
        "key_is_base64": False,
        "ordering_key": None,
        "event_ms": None,
        "producer": "p",
        "sequence_id": 1,
        "replicated_from": None,
        "schema_version": None,
        "compression": Compression.NONE,
        "is_encrypted": False,
        "chunk": None,
        "chunk_count": None,
        "marker": None,
        "has_null_value": False,
        "transaction": None,
        "payload": b"x",
        "payload_bytes": 1,
        "uncompressed_bytes": 0,
    }
    return Entry(**(usual | facts))


TIMER = Envelope("order-7", NOW_MS + 10 * DAY_MS, NOW_MS, hops=2)


@pytest.mark.parametrize(
    ("facts", "fate"),
    [
        ({}, Fate.LIFT),
        ({"deliver_at_ms": None}, Fate.UNDELAYED),
        ({"deliver_at_ms": 0}, Fate.UNDELAYED),
        ({"defect": "a field with tag 0", "deliver_at_ms": None}, Fate.DEFECT),
        ({"deliver_at_ms": NOW_MS - 1}, Fate.NEAR),
        ({"deliver_at_ms": NOW_MS + FAR_MS - 1}, Fate.NEAR),
        ({"deliver_at_ms": NOW_MS + FAR_MS}, Fate.LIFT),
        ({"deliver_at_ms": NOW_MS + 30 * DAY_MS}, Fate.LIFT),
        ({"deliver_at_ms": NOW_MS + 30 * DAY_MS + 1}, Fate.BEYOND),
        ({"marker": Marker.SNAPSHOT}, Fate.MARKER),
        ({"properties": {"tw-stir": "1"}}, Fate.STIR),
        ({"properties": {"tw-stir": "1"}, "deliver_at_ms": NOW_MS}, Fate.STIR),
        ({"batch_size": 1}, Fate.BATCH),
        ({"is_encrypted": True}, Fate.ENCRYPTED),
        ({"chunk": 0, "chunk_count": 2}, Fate.CHUNK),
        ({"chunk": 0, "chunk_count": 1}, Fate.LIFT),
        ({"key_is_base64": True, "partition_key": "AA=="}, Fate.KEY_BYTES),
        ({"transaction": (1, 2)}, Fate.TRANSACTION),
        ({"partition_key": "caf\udce9"}, Fate.NO_TEXT),
        ({"properties": {"place": "caf\udce9"}}, Fate.NO_TEXT),
        ({"ordering_key": uuid.UUID(int=255 << 120).bytes}, Fate.NO_TEXT),
        ({"ordering_key": "日".encode()}, Fate.LIFT),
        ({"schema_version": bytes(8)}, Fate.LIFT),
        ({"schema_version": b"\x7f" + b"\xff" * 7}, Fate.LIFT),
        ({"schema_version": b"\x80" + bytes(7)}, Fate.SCHEMA),
        ({"schema_version": b""}, Fate.SCHEMA),
        ({"schema_version": b"\x01" * 200}, Fate.SCHEMA),
        ({"properties": {"caf\udce9": "place"}}, Fate.NO_TEXT),
        ({"properties": {"café": "naïve"}, "partition_key": "日"}, Fate.LIFT),
        ({"compression": 9}, Fate.COMPRESSION),
        *(({"compression": one}, Fate.LIFT) for one in Compression),
        ({"position": EntryPosition(12, 1 << 20)}, Fate.LIFT),
        ({"properties": {"tw-timer": "?"}}, Fate.UNREADABLE),
        ({"properties": {"tw-id": "alone"}}, Fate.UNREADABLE),
        ({"properties": {"tw-colour": "red", "tw-due": "?", "tw-for": "me"}}, Fate.LIFT),
        ({"properties": TIMER.properties()}, Fate.LIFT),
        ({"properties": {**TIMER.properties(), "tw-for": "billing"}}, Fate.UNREADABLE),
        ({"is_encrypted": True, "deliver_at_ms": NOW_MS}, Fate.NEAR),
    ],
)
def test_what_becomes_of_an_entry(facts: dict[str, Any], fate: Fate) -> None:
    assert Lifting(PLAN).fate(entry(**facts), NOW_MS) is fate


def test_a_plain_message_is_a_timer_by_its_place() -> None:
    properties = Lifting(PLAN).copy(entry(properties={"colour": "red", "tw-due": "1"}), PART, NOW_MS)
    made = Envelope.read(properties)
    assert made is not None
    assert made == Envelope(f"{PART}:12:34", NOW_MS + 10 * DAY_MS, NOW_MS, revision=PLAN.revision)
    kept = {"colour": "red", "tw-from": f"12:34 {NOW_MS - 1_000}"}
    assert properties == {**kept, **made.properties()}


ASKED_EARLIER = [0, 1_500, 4_000, EARLIER_TICKS * PLAN.tick_ms]


@pytest.mark.parametrize("earlier_ms", ASKED_EARLIER)
def test_a_timer_that_was_put_back_stays_the_same_timer(earlier_ms: int) -> None:
    back = entry(properties={**TIMER.properties(), "colour": "red"}, deliver_at_ms=TIMER.due_ms - earlier_ms)
    properties = Lifting(PLAN).copy(back, PART, NOW_MS)
    made = Envelope.read(properties)
    assert made is not None
    assert properties["colour"] == "red"
    assert (made.timer_id, made.due_ms, made.generation) == (TIMER.timer_id, TIMER.due_ms, TIMER.generation)
    assert (made.hops, made.entered_ms) == (3, NOW_MS)


@pytest.mark.parametrize("later_ms", [1, HOUR_MS, -EARLIER_TICKS * PLAN.tick_ms - 1])
def test_what_a_client_sends_on_with_the_properties_of_what_it_was_given_is_another_timer(later_ms: int) -> None:
    given = Envelope("order-7", NOW_MS + 10 * DAY_MS - later_ms, NOW_MS - DAY_MS, hops=2).properties()
    again = entry(properties={**given, "tw-for": "billing", "tw-from": "1:2 3", "colour": "red"})
    assert Lifting(PLAN).fate(again, NOW_MS) is Fate.LIFT
    properties = Lifting(PLAN).copy(again, PART, NOW_MS)
    made = Envelope.read(properties)
    assert made is not None
    assert made == Envelope(f"{PART}:12:34", NOW_MS + 10 * DAY_MS, NOW_MS, revision=PLAN.revision)
    assert properties == {"colour": "red", "tw-from": f"12:34 {NOW_MS - 1_000}", **made.properties()}


@given(delay_ms=st.integers(-DAY_MS, 60 * DAY_MS))
def test_by_its_delay_alone_an_entry_is_near_far_or_beyond(delay_ms: int) -> None:
    fate = Lifting(PLAN).fate(entry(deliver_at_ms=NOW_MS + delay_ms), NOW_MS)
    assert (fate is Fate.NEAR) is (delay_ms < FAR_MS)
    assert (fate is Fate.BEYOND) is (delay_ms > PLAN.max_delay_ms)


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
    assert lifted_from(f"{ledger}:{number} {published}") == (EntryPosition(ledger, number), published)


@pytest.mark.parametrize(
    "text",
    ["", "1", "1:2", "1:2 x", "a:2 3", "1:-2 3", ":2 3", "1: 3", "9" * 5_000 + ":2 3", "1:2 " + "9" * 19, "²:2 3"],
)
def test_what_no_shadow_writes_is_none(text: str) -> None:
    assert lifted_from(text) is None
