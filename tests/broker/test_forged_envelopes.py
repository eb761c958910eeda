"""Envelopes that nobody of this plan wrote, by somebody who may produce to one topic: others' timers come on time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.due_topic import Handled, backlog, now_ms, running
from tests.broker.relay_stage import BUSINESS, Stage, plan_of
from timewheel.consumers import DelayedConsumer
from timewheel.core.durations import DAY_MS
from timewheel.core.envelope import FOR_PROPERTY, ID_PROPERTY, MAX_TIME_MS, TIMER_PROPERTY, Envelope
from timewheel.core.names import PARKED_SUBSCRIPTION
from timewheel.core.plan import Calendar
from timewheel.testing import Broker, eventually

MAX_HELD = 100
FORGED = 3 * MAX_HELD
GOOD = 5


def forge(stage: Stage, topic: str, properties: dict[str, str]) -> None:
    """Send so many with these properties, and behind them timers that are due now."""
    producer = stage.producer(topic)
    for number in range(FORGED):
        producer.send_async(b"", stage._confirmed, properties={ID_PROPERTY: f"forged{number}", **properties})
        stage._unconfirmed += 1
    stage.flush()
    for number in range(GOOD):
        stage.put(topic, Envelope(f"good{number}", now_ms(), now_ms()))
    stage.flush()


def consumer_of(stage: Stage, **options: Any) -> DelayedConsumer:
    return DelayedConsumer(
        stage.client,
        stage.plan,
        BUSINESS,
        max_held=MAX_HELD,
        relay=False,
        hooks=(stage.events,),
        negative_ack_redelivery_delay_ms=1_000,
        **options,
    )


def good_of(handled: Handled) -> int:
    return sum(str(timer_id).startswith("good") for timer_id in handled.times)


@pytest.mark.parametrize("retry", [True, False])
def test_timers_for_a_subscription_that_the_plan_has_not_are_handed_out_as_unreadable(
    pulsar_broker: Broker, retry: bool
) -> None:
    """Each was published again for ever, to a topic that nobody knows; a hundred of them stopped a consumer."""
    with Stage(pulsar_broker, plan_of(retry=retry)) as stage:
        line = f"2 {MAX_TIME_MS} 0 0 0 1 1 1"
        forge(stage, stage.plan.due_topic, {TIMER_PROPERTY: line, FOR_PROPERTY: "nobody"})
        handled = Handled()
        with running(consumer := consumer_of(stage), handled):
            eventually(lambda: good_of(handled) == GOOD, 60)
            eventually(lambda: backlog(pulsar_broker, stage.plan.due_topic) == 0, 60)
        assert consumer.counts.envelope_errors == FORGED
        assert stage.events.named("envelope_unreadable")
        assert not stage.events.named("republish_failed")


@pytest.mark.parametrize("retry", [True, False])
def test_lines_of_a_later_version_keep_nobody_waiting(pulsar_broker: Broker, retry: bool) -> None:
    with Stage(pulsar_broker, plan_of(retry=retry)) as stage:
        forge(stage, stage.plan.due_topic, {TIMER_PROPERTY: "3 anything"})
        handled = Handled()
        with running(consumer := consumer_of(stage), handled):
            eventually(lambda: good_of(handled) == GOOD, 60)
            if retry:
                eventually(lambda: consumer.counts.parked == FORGED, 60, message="what came again and again is parked")
                eventually(lambda: backlog(pulsar_broker, stage.plan.due_topic) == 0, 60)
        if retry:
            assert backlog(pulsar_broker, stage.names.parked(BUSINESS), PARKED_SUBSCRIPTION) == FORGED
        assert stage.events.named("timer_too_new")


def test_in_a_calendar_what_is_due_beyond_its_topics_goes_back_to_where_it_came_from(pulsar_broker: Broker) -> None:
    """It was published again for ever, to a topic that is not there."""
    plan = plan_of(Calendar(interval_ms=DAY_MS), max_delay_ms=DAY_MS)
    with Stage(pulsar_broker, plan) as stage:
        topic = stage.names.calendar_topic(now_ms() // DAY_MS)
        forge(stage, topic, {TIMER_PROPERTY: f"1 {now_ms() + 40 * DAY_MS} 0 0 0 1"})
        handled = Handled()
        with running(consumer := consumer_of(stage), handled):
            eventually(lambda: good_of(handled) == GOOD, 60)
            eventually(lambda: consumer.counts.republished == FORGED, 60)
        assert backlog(pulsar_broker, topic) == FORGED, "under the broker's delay"
        assert set(handled.times) == {f"good{number}" for number in range(GOOD)}


def test_one_that_entered_in_1970_hops_no_more_often_than_others(pulsar_broker: Broker) -> None:
    """It made 10,000 hops, as fast as groups fill, and was a dead letter then."""
    with Stage(pulsar_broker, plan_of()) as stage:
        began_ms = now_ms()
        stage.put(stage.tiers[0], Envelope("forged", MAX_TIME_MS, 0))
        soon = Envelope("soon", began_ms + 20_000, 0)
        stage.put(stage.tiers[0], soon)
        stage.flush()
        relay = stage.relay(hop_linger_ms=20)
        eventually(lambda: "soon" in stage.copies(), 60, poll=0.2)
        (due,) = stage.due()
        assert due.publish_timestamp() < soon.due_ms, "in time"
        stored = [message.properties() for topic in stage.tiers for message in stage.stored(topic)]
        copies = sum(properties[ID_PROPERTY] == "forged" for properties in stored)
        assert copies <= 2 + (now_ms() - began_ms) // 1_500, "one for each stay, the first, and one by the clock"
        assert relay.status().total("dead") == 0
