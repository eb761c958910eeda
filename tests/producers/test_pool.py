"""Options of producers; how many are kept open, and for how long."""

from __future__ import annotations

from typing import Any

import pulsar
import pulsar.schema
import pytest
from hypothesis import given

from tests.core.plan_space import NOW_MS, plans
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.errors import ClientMisuse
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.topology import topology
from timewheel.producers.base_producer import idle_ms
from timewheel.producers.pool import MAX_PRODUCERS, OWNED, ProducerOptions, room_for_all

BYTES = pulsar.schema.BytesSchema()


@pytest.mark.parametrize("name", sorted(OWNED))
def test_options_that_timewheel_sets_are_refused_by_name_and_reason(name: str) -> None:
    with pytest.raises(ClientMisuse, match=name) as caught:
        ProducerOptions(BYTES, {name: None})
    assert OWNED[name] in str(caught.value)


def test_an_unknown_option_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        TypeError, match=r"did you mean send_timeout_millis\?; these pass through: batching_max_allowed"
    ):
        ProducerOptions(BYTES, {"send_timeout_ms": 1})
    with pytest.raises(TypeError, match=r"did you mean max_pending\?"):
        ProducerOptions(BYTES, {"maxpending": 1})


def test_batches_are_no_larger_than_a_relay_takes() -> None:
    ProducerOptions(BYTES, {"batching_max_messages": LARGEST_BATCH})
    with pytest.raises(ClientMisuse, match=f"{LARGEST_BATCH} messages"):
        ProducerOptions(BYTES, {"batching_max_messages": LARGEST_BATCH + 1})


def test_batched_and_compressed_only_where_a_relay_holds() -> None:
    options = ProducerOptions(BYTES, {"batching_max_messages": 7, "send_timeout_millis": 1})
    held = options.of("relay")
    assert held["batching_enabled"] is True
    assert held["batching_max_messages"] == 7
    assert held["compression_type"] == pulsar.CompressionType.LZ4
    for place in ("due", "broker"):
        delayed = options.of(place)
        assert not {name for name in delayed if name.startswith("batching")}
        assert "compression_type" not in delayed
        assert delayed["send_timeout_millis"] == 1


def test_a_compression_that_the_user_asks_for_is_used_everywhere() -> None:
    options = ProducerOptions(BYTES, {"compression_type": pulsar.CompressionType.ZSTD})
    assert {options.of(place)["compression_type"] for place in ("relay", "due")} == {pulsar.CompressionType.ZSTD}


def test_the_users_schema_goes_to_every_topic_and_takes_bytes_as_they_are() -> None:
    schema = pulsar.schema.StringSchema()
    options = ProducerOptions(schema, {})
    for place in ("relay", "due"):
        used = options.of(place)["schema"]
        assert used.schema_info() is schema.schema_info()
        assert used.encode(b"\xff\x00") == b"\xff\x00"


def plan(scheme: Scheme, **more: Any) -> Plan:
    return Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), scheme=scheme, **more)


@pytest.mark.parametrize(
    ("value", "room"),
    [
        (plan(Native(), partitions=64), 64),
        (plan(Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS)), partitions=64), 192),
        (plan(Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=32))), partitions=4), 252),
        (plan(Calendar(), max_delay_ms=30 * DAY_MS), 33),
        (plan(Native(), partitions=1_024), 1_024),
        (plan(Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS)), partitions=0), 3),
        (plan(Wheel(rings=(Ring(slot_ms=DAY_MS, slots=1_000),)), partitions=64), MAX_PRODUCERS),
    ],
)
def test_the_room_by_scheme(value: Plan, room: int) -> None:
    assert room_for_all(value) == room


@given(plans())
def test_there_is_room_for_every_partition_of_every_topic(plan: Plan) -> None:
    sent_to = [spec for spec in topology(plan, NOW_MS).topics if spec.role in {"due", "tier", "slot", "cancellations"}]
    needed = min(sum(len(spec.parts) for spec in sent_to), MAX_PRODUCERS)
    assert needed <= room_for_all(plan) <= needed + plan.own_partitions


def test_a_producer_stays_open_for_hours_but_in_a_calendar() -> None:
    assert idle_ms(plan(Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)))) >= 4 * HOUR_MS
    assert idle_ms(plan(Calendar())) < HOUR_MS
