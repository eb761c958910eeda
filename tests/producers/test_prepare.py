from __future__ import annotations

import datetime as dt
import inspect
import re
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core import Calendar, Envelope, Native, Plan, Ring, Router, Tiered, Wheel
from timewheel.core.durations import MAX_DURATION_MS, parse_duration
from timewheel.core.envelope import MAX_TIME_MS, MIN_DUE_MS
from timewheel.core.errors import (
    BadArgument,
    BadDueTime,
    BadTimerId,
    PayloadTooLarge,
    PlanError,
    ReservedProperty,
    SendRefused,
)
from timewheel.core.names import partition_for_key
from timewheel.core.plan import DelayTooLong
from timewheel.core.topology import topology
from timewheel.producers import SendOptions
from timewheel.producers.prepare import METADATA_ROOM_BYTES, Outgoing, prepare

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_763_700_000_000
DUE_TOPIC = "persistent://acme/crm/reminders"


def plan_of(scheme: Any, **changes: Any) -> Plan:
    return Plan(due_topic=DUE_TOPIC, subscriptions=("billing",), scheme=scheme, partitions=4, **changes)


TIERED = plan_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS)))
PLANS = (
    plan_of(Native()),
    TIERED,
    plan_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS), hold="broker"), readers="any"),
    plan_of(Calendar()),
    plan_of(Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=32)))),
)


def prepared(content: Any = b"x", *, plan: Plan = TIERED, turn: int = 0, **arguments: Any) -> Outgoing:
    limit = arguments.pop("max_message_bytes", 5 * 1024 * 1024)
    return prepare(Router(plan), NOW_MS, turn, lambda now_ms: f"made-{now_ms}", content, bytes, limit, **arguments)


@given(st.text(max_size=5), st.integers(0))
def test_on_a_due_topic_without_partitions_every_timer_takes_the_one_of_ours(key: str, turn: int) -> None:
    plan = replace(TIERED, partitions=0)
    assert prepared(plan=plan, turn=turn, partition_key=key).partition == 0


@pytest.mark.parametrize(
    ("arguments", "due_ms"),
    [
        ({}, NOW_MS),
        ({"deliver_after": dt.timedelta(0)}, NOW_MS),
        ({"deliver_after": dt.timedelta(milliseconds=1)}, NOW_MS + 1),
        ({"deliver_after": dt.timedelta(days=30)}, NOW_MS + 30 * DAY_MS),
        # A fraction of a millisecond rounds up: cut off, it would be early.
        ({"deliver_after": dt.timedelta(microseconds=1)}, NOW_MS + 1),
        ({"deliver_at": NOW_MS + 5}, NOW_MS + 5),
        # The past is delivered now, and stays the due time that was asked for.
        ({"deliver_at": NOW_MS - 5}, NOW_MS - 5),
        ({"deliver_at": MIN_DUE_MS}, MIN_DUE_MS),
        ({"deliver_at": dt.datetime(2025, 11, 22, tzinfo=dt.UTC)}, 1_763_769_600_000),
        ({"deliver_at": dt.datetime(2025, 11, 22, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))}, 1_763_769_600_000),
        ({"deliver_at": dt.datetime(2025, 11, 22, 0, 0, 0, 1, tzinfo=dt.UTC)}, 1_763_769_600_001),
    ],
)
def test_due_time_is_what_was_asked_for(arguments: dict[str, Any], due_ms: int) -> None:
    assert prepared(**arguments).due_ms == due_ms


def test_a_timer_that_replaces_none_has_no_generation_and_needs_no_stamp() -> None:
    assert prepared(deliver_after=dt.timedelta(days=1)).generation == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"deliver_at": dt.datetime(2025, 11, 22)}, "naive"),  # noqa: DTZ001 - that is the fault
        ({"deliver_at": float("nan")}, "whole milliseconds"),
        ({"deliver_at": 1.5}, "whole milliseconds"),
        ({"deliver_at": True}, "whole milliseconds"),
        ({"deliver_at": "tomorrow"}, "whole milliseconds"),
        ({"deliver_at": dt.date(2025, 11, 22)}, "whole milliseconds"),
        ({"deliver_at": -1}, "before 1978"),
        ({"deliver_at": 0}, "to deliver now, leave deliver_at out"),
        ({"deliver_at": dt.datetime(1969, 12, 31, tzinfo=dt.UTC)}, "before 1978"),
        # Seconds, of today as of the year 9999: as milliseconds they lie in the past, and would be delivered at once.
        ({"deliver_at": NOW_MS // 1_000 + 3_600}, "milliseconds since 1970 are needed, not seconds"),
        ({"deliver_at": MAX_TIME_MS // 1_000}, "not seconds"),
        ({"deliver_at": dt.datetime.fromtimestamp(NOW_MS / 1_000_000, dt.UTC)}, "not seconds"),
        ({"deliver_at": 253_402_300_800_000}, "beyond the year 9999"),
        ({"deliver_at": NOW_MS * 1_000}, "micro"),
        ({"deliver_at": NOW_MS * 1_000_000}, "nano"),
        ({"deliver_after": dt.timedelta(microseconds=-1_000)}, "negative"),
        ({"deliver_after": 60}, "timedelta"),
        ({"deliver_after": True}, "timedelta"),
        ({"deliver_at": NOW_MS, "deliver_after": dt.timedelta(0)}, "not both"),
    ],
)
def test_what_is_no_point_in_time_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadDueTime, match=reason):
        prepared(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"deliver_after": dt.timedelta(days=30, milliseconds=1)},
        {"deliver_after": dt.timedelta.max},
        {"deliver_at": NOW_MS + 30 * DAY_MS + 1},
        {"deliver_at": dt.datetime.max.replace(tzinfo=dt.UTC, microsecond=0)},
    ],
)
def test_beyond_max_delay_is_refused_with_the_limit(arguments: dict[str, Any]) -> None:
    with pytest.raises(DelayTooLong) as caught:
        prepared(**arguments)
    assert caught.value.max_delay_ms == 30 * DAY_MS
    assert "max_delay of 30d" in str(caught.value)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "delay_ms", [31 * DAY_MS, 40 * DAY_MS, 900 * DAY_MS, MAX_DURATION_MS, MAX_DURATION_MS + 1, 74 * 365 * DAY_MS]
)
def test_the_remedy_of_a_delay_that_is_too_long_keeps_every_other_limit(plan: Plan, delay_ms: int) -> None:
    """No plan allows more than ten years, a wheel no more than its coarsest ring, tiers no more than so many hops."""
    with pytest.raises(DelayTooLong, match="beyond the plan's max_delay of 30d") as caught:
        prepared(plan=plan, deliver_after=dt.timedelta(milliseconds=delay_ms))
    written = re.search(r'max_delay = "(\w+)"', str(caught.value))
    if written is None:
        assert "keep it in a store of your own, and send it later" in str(caught.value)
        with pytest.raises(PlanError):
            replace(plan, max_delay_ms=delay_ms)
    else:
        raised = replace(plan, max_delay_ms=parse_duration(written[1]))
        assert prepared(plan=raised, deliver_after=dt.timedelta(milliseconds=delay_ms))


@pytest.mark.parametrize("timer_id", ["", "x" * 257, "\ud800", 42, b"x"])
def test_bad_timer_ids_are_refused(timer_id: Any) -> None:
    with pytest.raises(BadTimerId):
        prepared(timer_id=timer_id)


@pytest.mark.parametrize("timer_id", ["x", "x" * 256, "Überweisung-⏰", " "])
def test_a_callers_timer_id_is_kept_as_it_is(timer_id: str) -> None:
    assert prepared(timer_id=timer_id).timer_id == timer_id


def test_reserved_prefix_is_refused_by_name() -> None:
    with pytest.raises(ReservedProperty) as caught:
        prepared(properties={"tw-id": "mine"})
    assert caught.value.name == "tw-id"


@pytest.mark.parametrize(
    "arguments",
    [
        {"properties": {"a": 1}},
        {"properties": {1: "a"}},
        {"properties": {"a": None}},
        {"properties": [("a", "b")]},
        {"properties": {"a": "\ud800"}},
        {"partition_key": b"key"},
        {"partition_key": "\ud800"},
        {"ordering_key": 7},
        {"event_timestamp": -1},
        {"event_timestamp": 1.0},
        {"event_timestamp": True},
        {"event_timestamp": 2**63},
    ],
)
def test_what_no_message_can_carry_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        prepared(**arguments)


def test_every_refusal_is_a_value_error_that_says_nothing_was_sent() -> None:
    with pytest.raises(ValueError, match="bad due time") as caught:
        prepared(deliver_at=-1)
    assert isinstance(caught.value, SendRefused)


def test_payload_and_properties_share_the_limit() -> None:
    limit_bytes = 10_000
    # Envelope: tw-id and its value, tw-timer and its value.
    own = prepared().properties
    own_bytes = sum(len(text) for pair in own.items() for text in pair) + 16 * len(own)
    room_bytes = limit_bytes - METADATA_ROOM_BYTES - own_bytes
    assert prepared(bytes(room_bytes), max_message_bytes=limit_bytes).payload == bytes(room_bytes)
    with pytest.raises(PayloadTooLarge) as caught:
        prepared(bytes(room_bytes + 1), max_message_bytes=limit_bytes)
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (limit_bytes + 1, limit_bytes)
    # One property of one character each takes 2 bytes and 16 of framing.
    with pytest.raises(PayloadTooLarge):
        prepared(bytes(room_bytes - 17), properties={"a": "b"}, max_message_bytes=limit_bytes)
    assert prepared(bytes(room_bytes - 18), properties={"a": "b"}, max_message_bytes=limit_bytes)
    with pytest.raises(PayloadTooLarge):
        prepared(None, properties={"a": "ü" * 5_000}, max_message_bytes=limit_bytes)
    with pytest.raises(PayloadTooLarge):
        prepared(None, partition_key="k" * 10_000, max_message_bytes=limit_bytes)


@pytest.mark.parametrize(
    ("key", "java_hash_code"),
    # String.hashCode() as Java 17 prints it; "polygenelubricants" is known for Integer.MIN_VALUE.
    [
        ("a", 97),
        ("sub-42", -891_598_549),
        ("polygenelubricants", -2_147_483_648),
        ("héllo", 103_094_734),
        ("⏰ wake", 1_428_378_580),
        ("😀 smile", -1_559_691_765),
    ],
)
def test_a_key_goes_to_the_partition_that_java_gives_it(key: str, java_hash_code: int) -> None:
    expected = (java_hash_code & 0x7FFFFFFF) % 4
    assert [prepared(partition_key=key, turn=turn).partition for turn in range(4)] == [expected] * 4


def test_users_properties_are_copied_not_kept() -> None:
    mine = {"a": "b"}
    outgoing = prepared(properties=mine)
    mine["c"] = "d"
    assert set(outgoing.properties) == {"a", "tw-id", "tw-timer"}
    assert set(mine) == {"a", "c"}


@pytest.mark.parametrize(
    ("delay_ms", "plan", "place", "deliver_at_ms"),
    [
        # Within the window: the due topic, 1.5 ticks of 1 s ahead of the due time.
        (HOUR_MS, TIERED, "due", NOW_MS + HOUR_MS - 1_500),
        # A day and the guard: the tier, held by a relay without any broker delay.
        (2 * DAY_MS, TIERED, "relay", 0),
        # The same tier held by the broker: its fixed stay, and no lead.
        (2 * DAY_MS, PLANS[2], "broker", NOW_MS + DAY_MS),
        (0, TIERED, "due", 0),
        (-DAY_MS, TIERED, "due", 0),
    ],
)
def test_place_and_delay_follow_the_plan(delay_ms: int, plan: Plan, place: str, deliver_at_ms: int) -> None:
    outgoing = prepared(plan=plan, deliver_at=NOW_MS + delay_ms)
    assert (outgoing.place, outgoing.deliver_at_ms) == (place, deliver_at_ms)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SENDS = st.fixed_dictionaries(
    {},
    optional={
        "deliver_at": st.integers(MIN_DUE_MS, NOW_MS + 30 * DAY_MS),
        "timer_id": TEXT.filter(bool),
        "properties": st.dictionaries(TEXT.filter(lambda name: not name.startswith("tw-")), TEXT, max_size=5),
        "partition_key": TEXT,
        "ordering_key": TEXT,
        "event_timestamp": st.integers(0, NOW_MS),
    },
)


@given(arguments=SENDS, content=st.none() | st.binary(), plan=st.sampled_from(PLANS), turn=st.integers(0, 1_000))
def test_whatever_is_taken_is_carried_whole(
    arguments: dict[str, Any], content: bytes | None, plan: Plan, turn: int
) -> None:
    outgoing = prepared(content, plan=plan, turn=turn, **arguments)

    assert outgoing.payload == content
    assert outgoing.partition_key == (arguments.get("partition_key") or None)
    assert outgoing.ordering_key == (arguments.get("ordering_key") or None)
    assert outgoing.event_timestamp_ms == arguments.get("event_timestamp")
    assert arguments.get("properties", {}).items() <= outgoing.properties.items()
    envelope = Envelope.read(outgoing.properties)
    assert envelope == Envelope(
        arguments.get("timer_id", f"made-{NOW_MS}"), arguments.get("deliver_at", NOW_MS), NOW_MS
    )
    key = outgoing.partition_key
    assert outgoing.partition == (partition_for_key(key, 4) if key else turn % 4)


@given(due_ms=st.integers(MIN_DUE_MS, NOW_MS + 30 * DAY_MS), plan=st.sampled_from(PLANS))
def test_every_message_goes_where_the_topology_has_a_topic_and_never_after_its_due_time(
    due_ms: int, plan: Plan
) -> None:
    outgoing = prepared(plan=plan, deliver_at=due_ms)
    assert outgoing.topic in topology(plan, NOW_MS)
    assert outgoing.deliver_at_ms <= max(due_ms, 0)
    assert outgoing.release_at_ms <= due_ms
    # Only a relay's topics are batched, and nothing in them is delayed by the broker.
    assert outgoing.place != "relay" or outgoing.deliver_at_ms == 0


def test_what_encode_raises_comes_through_unchanged() -> None:
    def refuse(_: object) -> bytes:
        raise TypeError("not a record")

    with pytest.raises(TypeError, match="not a record"):
        prepare(Router(TIERED), NOW_MS, 0, str, object(), refuse)


def test_a_new_id_is_asked_for_only_if_needed() -> None:
    ids = count()
    prepare(Router(TIERED), NOW_MS, 0, lambda _: str(next(ids)), b"", bytes, timer_id="mine")
    assert next(ids) == 0


def test_every_option_of_a_send_is_an_argument_here() -> None:
    # The type checkers know that each option is taken, not that each argument is an option.
    keywords = {
        name
        for name, argument in inspect.signature(prepare).parameters.items()
        if argument.kind == argument.KEYWORD_ONLY
    }
    assert keywords == set(SendOptions.__annotations__)


SPREAD = replace(TIERED, jitter_ms=HOUR_MS)


def test_jitter_spreads_due_times_evenly_after_what_was_asked_for() -> None:
    asked_ms = NOW_MS + DAY_MS
    later_ms = sorted(
        prepared(plan=SPREAD, deliver_at=asked_ms, timer_id=f"t-{number}").due_ms - asked_ms for number in range(2_000)
    )
    assert 0 <= later_ms[0] < 0.01 * HOUR_MS
    assert 0.99 * HOUR_MS < later_ms[-1] <= HOUR_MS
    assert later_ms[1_000] == pytest.approx(HOUR_MS / 2, rel=0.06)


def test_a_timer_that_is_sent_again_is_due_at_the_same_time() -> None:
    due_ms = {
        prepared(plan=SPREAD, deliver_at=NOW_MS + DAY_MS, timer_id="renew-17", turn=turn).due_ms for turn in range(5)
    }
    assert len(due_ms) == 1
    (only,) = due_ms
    assert only != NOW_MS + DAY_MS
    outgoing = prepared(plan=SPREAD, deliver_at=NOW_MS + DAY_MS, timer_id="renew-17")
    envelope = Envelope.read(outgoing.properties)
    assert envelope is not None
    assert envelope.due_ms == only


def test_jitter_touches_neither_what_is_due_now_nor_the_limit() -> None:
    assert prepared(plan=SPREAD, deliver_at=NOW_MS, timer_id="a").due_ms == NOW_MS
    assert prepared(plan=SPREAD, deliver_at=NOW_MS - DAY_MS, timer_id="a").due_ms == NOW_MS - DAY_MS
    longest_ms = NOW_MS + SPREAD.max_delay_ms
    assert {prepared(plan=SPREAD, deliver_at=longest_ms, timer_id=f"{n}").due_ms for n in range(20)} == {longest_ms}
    with pytest.raises(DelayTooLong):
        prepared(plan=SPREAD, deliver_at=longest_ms + 1)
