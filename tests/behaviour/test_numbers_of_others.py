"""Whoever may produce to a topic can raise the number up to which the broker drops what comes under another's name
(broker-facts: numbers-of-others). Each test has the loss of a plain client, or of the names as they were, beside it.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.broker.due_topic import Handled, backlog, now_ms, running
from tests.broker.relay_stage import BUSINESS, Stage, plan_of
from tests.support.raw_producer import RawProducer, metadata_of
from timewheel.broker.protocol.wire import data_field
from timewheel.client.results import SEEN_BEFORE
from timewheel.client.surface import own_numbers
from timewheel.consumers import DelayedConsumer, DelayedMessage, RetryLater, republisher
from timewheel.core.durations import DAY_MS
from timewheel.core.envelope import FOR_PROPERTY, ID_PROPERTY, MAX_TIME_MS, TIMER_PROPERTY, Envelope
from timewheel.core.errors import SendOutcomeUnknown
from timewheel.core.names import PARKED_SUBSCRIPTION, partition_topic
from timewheel.core.plan import Calendar
from timewheel.producers import DelayedProducer
from timewheel.producers import pool as producer_pool
from timewheel.relay.driver import hop_producers, source
from timewheel.relay.driver.hop_producers import producer_name
from timewheel.testing import Broker, eventually

SOON = timedelta(milliseconds=300)
HIGH = 1 << 62
COMING = 40  # names that a broker will give next


def named_by_the_broker() -> dict[str, Any]:
    """What producers were opened with before they had names of their own."""
    return {"initial_sequence_id": 1}


def use_up(stage: Stage, part: str, names: list[str]) -> None:
    """Have a broker drop whatever comes under these names, whether they are in use or not."""
    with RawProducer(stage.broker.service_url, part, name="pulsar.repl.elsewhere", numbered_from=HIGH) as producer:
        for name in names:
            producer.send(metadata_of(sequence_id=HIGH, more=data_field(1, name) + data_field(5, "elsewhere")))


def names_at(stage: Stage, part: str) -> list[str]:
    """As anybody sees them who may produce there."""
    return [producer.name for producer in stage.admin.topics.stats(part, clients=True).producers]


def use_up_coming_names(stage: Stage, part: str) -> None:
    stranger = stage.client.create_producer(part)
    head, _, number = stranger.producer_name().rpartition("-")
    stranger.close()
    for coming in range(int(number) + 1, int(number) + COMING):
        producer = stage.client.create_producer(part, producer_name=f"{head}-{coming}", batching_enabled=False)
        producer.send(b"", sequence_id=HIGH)
        producer.close()


@pytest.mark.real
@pytest.mark.parametrize("guessable", [False, True], ids=["ours", "control"])
def test_names_that_a_broker_will_give_are_of_no_use_to_whoever_guesses_them(
    guessable: bool, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = partition_topic(stage.plan.due_topic, 0)
    opened = 0

    def counted() -> dict[str, Any]:
        nonlocal opened
        opened += 1
        return named_by_the_broker()

    if guessable:
        monkeypatch.setattr(producer_pool, "own_numbers", counted)
    use_up_coming_names(stage, part)
    before = len(stage.due())
    with DelayedProducer(stage.open_client(), stage.plan) as producer:
        if guessable:
            with pytest.raises(SendOutcomeUnknown, match="seen before"):
                producer.send(b"", deliver_after=SOON)
            assert opened == 4, "each attempt by another producer, and no more of them"
            assert len(stage.due()) == before
        else:
            sent = [producer.send(b"", deliver_after=SOON) for _ in range(5)]
            assert all(timer.message_id.ledger_id() >= 0 for timer in sent)
            assert len(stage.due()) == before + 5


@pytest.mark.real
@pytest.mark.parametrize("delay_ms", [300, 2_500], ids=["due topic", "tier"])
def test_what_is_dropped_under_a_name_that_was_seen_goes_by_another_producer(delay_ms: int, stage: Stage) -> None:
    topic = stage.plan.due_topic if delay_ms < 1_500 else stage.tiers[-1]
    part, delay = partition_topic(topic, 0), timedelta(milliseconds=delay_ms)
    plain = stage.client.create_producer(part)
    told: list[Any] = []
    with DelayedProducer(stage.open_client(), stage.plan) as producer:
        producer.send(b"", deliver_after=delay)
        plain.send(b"")
        names = names_at(stage, part)
        assert len(names) == 2
        use_up(stage, part, names)
        before = len(stage.stored(topic))
        for _ in range(20):
            producer.send_async(b"", lambda error, timer: told.append(error or timer), deliver_after=delay)
        producer.flush()
        assert eventually(lambda: len(told) == 20)
        assert all(timer.message_id.ledger_id() >= 0 for timer in told)
        assert plain.send(b"").ledger_id() < 0, "the control: a plain client's is lost"
        assert len(stage.stored(topic)) == before + 20
        assert len(set(names_at(stage, part)) - set(names)) == 1, "one other producer took them all"


@pytest.mark.real
@pytest.mark.parametrize("is_used_up", [True, False], ids=["used up", "control"])
def test_a_retry_that_is_dropped_is_published_again(
    is_used_up: bool, pulsar_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    handled: list[int] = []

    def known_to_others() -> dict[str, Any]:
        options = own_numbers()
        if is_used_up and not names:
            use_up(stage, retries, [options["producer_name"]])
        names.append(options["producer_name"])
        return options

    def handle(timer: DelayedMessage) -> None:
        handled.append(timer.attempt)
        if timer.attempt == 0:
            raise RetryLater(SOON)

    monkeypatch.setattr(republisher, "own_numbers", known_to_others)
    with Stage(pulsar_broker, plan_of(retry=True)) as stage:
        retries = partition_topic(stage.names.retry(BUSINESS), 0)
        with DelayedProducer(stage.client, stage.plan) as producer:
            producer.send(b"", deliver_after=SOON)
        consumer = DelayedConsumer(
            stage.client, stage.plan, BUSINESS, hooks=(stage.events,), negative_ack_redelivery_delay_ms=1_000
        )
        with running(consumer, handle):
            eventually(lambda: 1 in handled, 60, message=str(handled))
        told = stage.events.named("republish_failed")
        assert [getattr(event, "error", "").partition(": ")[2] for event in told] == [SEEN_BEFORE] * is_used_up
    assert handled[-1] == 1, handled
    assert handled.count(1) == 1
    assert len(names) == 1 + is_used_up, "another producer took it"


def use_up_hops(stage: Stage) -> None:
    """Use the names of all relays' producers on the due topic, while nobody has them."""
    due = partition_topic(stage.plan.due_topic, 0)
    for tier in stage.tiers:
        name = producer_name(partition_topic(tier, 0), due, -1, stage.router.fingerprint)
        producer = stage.client.create_producer(due, producer_name=name, batching_enabled=False)
        producer.send(b"", sequence_id=HIGH)
        producer.close()


@pytest.mark.real
@pytest.mark.parametrize("believed", [False, True], ids=["ours", "control"])
def test_names_of_hops_that_somebody_used_first_lose_nothing(
    believed: bool, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    if believed:
        monkeypatch.setattr(hop_producers, "highest_number", lambda _: HIGH)
    use_up_hops(stage)
    before = len(stage.due())
    stage.hold([2_500 + 100 * number for number in range(20)])
    relay = stage.relay()
    stage.await_all_acknowledged(40)
    assert len(stage.due()) - before == (0 if believed else 20)
    told = stage.events.named("relay_numbers_used_up")
    assert bool(told) is not believed
    assert relay.status().total("failures") == 0


@pytest.mark.real
def test_names_of_hops_that_somebody_uses_meanwhile_lose_nothing(stage: Stage) -> None:
    due = partition_topic(stage.plan.due_topic, 0)
    stage.relay()
    sent = {timer.timer_id for timer in stage.hold([2_500 + 100 * number for number in range(60)])}

    def names() -> list[str]:
        return [name for name in names_at(stage, due) if name.startswith("tw|")]

    use_up(stage, due, eventually(names, poll=0.01))
    stage.await_all_acknowledged(40)
    came = Counter(message.properties().get("tw-id") for message in stage.due())
    assert {timer for timer in came if timer} == sent
    assert stage.events.named("relay_numbers_used_up")


@pytest.mark.real
def test_names_of_hops_that_a_stranger_holds_keep_no_timer_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hops into the due topic waited for the name as long as the stranger was connected."""
    monkeypatch.setattr(source, "HELD_MS", 2_000)
    due = partition_topic(stage.plan.due_topic, 0)
    for tier in stage.tiers:
        name = producer_name(partition_topic(tier, 0), due, -1, stage.router.fingerprint)
        stage.client.create_producer(due, producer_name=name)
    sent = stage.hold([2_500 + 100 * number for number in range(20)])
    relay = stage.relay()
    stage.await_all_acknowledged(40)
    assert stage.copies() == Counter(timer.timer_id for timer in sent)
    assert stage.events.named("relay_waits_for_lease")
    assert stage.events.named("relay_numbers_used_up")
    assert relay.status().total("failures") == 0


MAX_HELD = 100
FORGED = 3 * MAX_HELD
GOOD = 5


def forge(stage: Stage, topic: str, properties: dict[str, str]) -> None:
    """Send so many with these properties, and behind them timers that are due now."""
    producer = stage.producer(topic)
    for number in range(FORGED):
        stage.send_counted(producer, b"", properties={ID_PROPERTY: f"forged{number}", **properties})
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


@pytest.mark.short
def test_one_that_entered_in_1970_hops_no_more_often_than_others(stage: Stage) -> None:
    """It made 10,000 hops, as fast as groups fill, and was a dead letter then."""
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
