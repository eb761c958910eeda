"""After the same history a virtual broker has the gaps of a real one, and an unload brings the same messages again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pulsar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.cursor_stage import FORMATS, acknowledge_by_id, backlog_of, fill, stage_of
from tests.support.forgetting import redelivered_exactly
from timewheel.broker.admin.client import AdminClient
from timewheel.core.broker_profile import AckFormat, BrokerProfile
from timewheel.core.durations import DAY_MS
from timewheel.testing.virtual import VirtualPulsar

PROFILE = BrokerProfile(
    name="4.0", gap_limit_ranges=6, metadata_store_limit_ranges=2, ledger_max_entries=10, ledger_min_age_ms=0,
    ledger_max_age_ms=365 * DAY_MS,
)  # fmt: skip
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerMaxLedgerRolloverTimeMinutes": "525600",
    "managedLedgerMaxUnackedRangesToPersist": "6",
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": "2",
}
SUBSCRIPTION = "s"
RECEIVE_MS = 10_000
REAL_HISTORIES = 12
EVERYDAY = 4  # of them; the others are short plays


@dataclass(frozen=True, slots=True)
class Seen:
    """A cursor in numbers of messages: what the mark-delete position covers, the ranges, and what came again."""

    marked: int
    ranges: tuple[tuple[int, int], ...]
    again: tuple[int, ...]


def seen_after(client: Any, admin: AdminClient, topic: str, acknowledged: list[bool]) -> Seen:
    """Send so many messages, acknowledge some, look at the cursor, unload, and receive what is left."""
    admin.topics.create_unpartitioned(topic)
    admin.subscriptions.create(topic, SUBSCRIPTION)
    filled = fill(client, topic, len(acknowledged))
    state = acknowledge_by_id(client, admin, filled, SUBSCRIPTION, np.array(acknowledged))
    places = [(message_id.ledger_id(), message_id.entry_id()) for message_id in filled.ids]
    cursor = admin.topics.internal_stats(topic).cursors[SUBSCRIPTION]
    numbers = {place: number for number, place in enumerate(places)}
    ranges = tuple(
        (numbers[begin.ledger, begin.entry + 1], numbers[end.ledger, end.entry]) for begin, end in cursor.acked_ranges()
    )
    assert state.ranges == cursor.gap_count == len(ranges)

    admin.topics.unload(topic)
    consumer = client.subscribe(topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared)
    left = backlog_of(admin, topic, SUBSCRIPTION)
    received = sorted(int.from_bytes(consumer.receive(RECEIVE_MS).data(), "big") for _ in range(left))
    consumer.close()
    return Seen(
        sum(place <= cursor.mark_delete for place in places),
        ranges,
        tuple(number for number in received if acknowledged[number]),
    )


def seen_on_virtual(acknowledged: list[bool], ack_format: AckFormat) -> Seen:
    profile = replace(PROFILE, ack_format=ack_format)
    with VirtualPulsar(version=profile) as virtual, virtual.admin() as admin:
        topic = "persistent://public/default/history"
        return seen_after(virtual.client(), admin, topic, acknowledged)


@pytest.mark.parametrize("ack_format", FORMATS)
@settings(max_examples=60)
@given(acknowledged=st.lists(st.booleans(), min_size=1, max_size=60))
def test_a_virtual_broker_forgets_what_the_definition_says(ack_format: AckFormat, acknowledged: list[bool]) -> None:
    seen = seen_on_virtual(acknowledged, ack_format)
    assert len(seen.again) == redelivered_exactly(np.array(acknowledged), 10, PROFILE, ack_format)


@pytest.fixture(scope="module", params=FORMATS)
def real(request: pytest.FixtureRequest) -> Iterator[Any]:
    with stage_of(SETTINGS, request.param) as stage:
        yield stage


@pytest.mark.parametrize(
    "seed", [*range(EVERYDAY), *(pytest.param(one, marks=pytest.mark.short) for one in range(EVERYDAY, REAL_HISTORIES))]
)
def test_a_virtual_broker_has_the_gaps_of_a_real_one_and_brings_the_same_again(real: Any, seed: int) -> None:
    rng = random.Random(seed)
    share = rng.random()
    acknowledged = [rng.random() < share for _ in range(rng.randint(1, 60))]
    on_real = seen_after(real.client, real.admin, f"persistent://public/default/history-{seed}", acknowledged)
    assert seen_on_virtual(acknowledged, real.ack_format) == on_real
