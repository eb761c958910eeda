"""Sends that the broker refuses, ends or leaves without an answer."""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.broker.due_topic import DAY_MS, HOUR_MS, TIER_1D, make_plan, now_ms, stored_entries, stored_messages
from tests.support.checkout import ROOT
from tests.support.processes import ran
from tests.support.through import Through
from timewheel.broker.admin.client import AdminClient
from timewheel.client import producer_pool as client_pool
from timewheel.client.results import Outcome
from timewheel.client.surface import own_numbers
from timewheel.core import Calendar, Plan, SystemClock
from timewheel.core.errors import ClientMisuse, SendFailed, SendOutcomeUnknown, TimewheelError
from timewheel.core.names import Names, partition_topic
from timewheel.producers import DelayedProducer, Timer, base_producer
from timewheel.producers import pool as producer_pool
from timewheel.testing import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from timewheel.hooks import Event
    from timewheel.testing import Broker, LocalPulsar

SEND_TIMEOUT_MS = 1_500


class SetClock(SystemClock):
    """The wall clock is what a test sets; waiting and durations stay real."""

    def __init__(self, *readings_ms: int) -> None:
        self._readings_ms = list(readings_ms)

    def now_ms(self) -> int:
        """The next reading; the last one stays."""
        return self._readings_ms.pop(0) if len(self._readings_ms) > 1 else self._readings_ms[0]


def test_without_an_answer_the_outcome_is_unknown_and_the_same_id_may_be_sent_again(
    mortal: LocalPulsar, connect: Callable[..., Any], topic: str
) -> None:
    plan = make_plan(mortal, topic)
    client = connect(mortal)
    told: list[tuple[TimewheelError | None, Timer]] = []
    with DelayedProducer(client, plan, send_timeout_millis=SEND_TIMEOUT_MS) as producer:
        producer.send(b"opens the producers", deliver_after=dt.timedelta(days=17))
        producer.send(b"opens the producers")
        mortal.pause()
        for delay in (dt.timedelta(0), dt.timedelta(days=17)):
            with pytest.raises(SendOutcomeUnknown) as caught:
                producer.send(b"x", timer_id="sub-42", deliver_after=delay)
            assert caught.value.timer_id == "sub-42"
            assert caught.value.cause == "Timeout"
            assert isinstance(caught.value, TimeoutError)
            assert "never with a new one" in str(caught.value)
        producer.send_async(b"x", lambda error, timer: told.append((error, timer)), timer_id="sub-43")
        producer.flush()
        [(error, timer)] = told
        assert isinstance(error, SendOutcomeUnknown)
        assert (timer.id, timer.message_id) == ("sub-43", None)

        mortal.resume()
        again = producer.send(b"x", timer_id="sub-42")
        assert (again.id, again.message_id is not None) == ("sub-42", True)
    # Unknown is not failed: here the frozen broker stored it after all, and one id names both copies.
    ids = [message.properties()["tw-id"] for message in stored_messages(client, topic, 4)]
    assert ids[1:] == ["sub-42", "sub-43", "sub-42"]


class PausesAtFirst(Through):
    """A client whose broker stands still as soon as its first producer is open: nothing is acknowledged to it."""

    def __init__(self, inner: Any, broker: LocalPulsar) -> None:
        super().__init__(inner)
        self._broker: LocalPulsar | None = broker

    def create_producer(self, *arguments: Any, **options: Any) -> Any:
        producer = self._inner.create_producer(*arguments, **options)
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.pause()
        return producer


def clients_own() -> dict[str, Any]:
    """The client as it comes."""
    return {}


@pytest.mark.real
@pytest.mark.parametrize(
    "delay",
    [
        pytest.param(dt.timedelta(0), id="due topic", marks=pytest.mark.short),
        pytest.param(dt.timedelta(days=17), id="tier, batched"),
    ],
)
@pytest.mark.parametrize(
    ("options", "stored"),
    [pytest.param(own_numbers, 60, id="ours"), pytest.param(clients_own, 50, id="control", marks=pytest.mark.short)],
)
def test_a_producer_that_loses_its_broker_before_the_first_acknowledgement_uses_no_number_twice(
    delay: dt.timedelta,
    options: Callable[[], dict[str, Any]],
    stored: int,
    mortal: LocalPulsar,
    connect: Callable[..., Any],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """broker-facts: numbers-used-twice. The control is the client as it comes, and its Ok: ten are dropped."""
    monkeypatch.setattr(producer_pool, "own_numbers", options)
    monkeypatch.setattr(client_pool, "AWAY_ROUNDS", 1_000)  # by the same producer, that connects again
    if options is clients_own:  # else what is dropped is sent again (broker-facts: numbers-of-others)
        monkeypatch.setattr(base_producer, "outcome_of_result", lambda *_, **__: Outcome.OK)
    plan = make_plan(mortal, topic)
    client = connect(mortal)
    pauses: Any = PausesAtFirst(client, mortal)
    told: list[TimewheelError | None] = []
    with DelayedProducer(pauses, plan, send_timeout_millis=120_000) as producer:

        def send(count: int, name: str) -> None:
            for number in range(count):
                producer.send_async(
                    b"x", lambda error, _: told.append(error), timer_id=f"{name}-{number}", deliver_after=delay
                )

        send(50, "before")
        mortal.kill()
        mortal.start()
        eventually(lambda: len(told) == 50, 60)
        send(10, "after")
        producer.flush()
    assert told == [None] * 60
    reader = client.create_reader(partition_topic(topic + (TIER_1D if delay else ""), 0), pulsar.MessageId.earliest)
    ids = []
    while reader.has_message_available():
        ids.append(reader.read_next(10_000).properties()["tw-id"])
    assert len(ids) == len(set(ids)) == stored


def test_never_more_in_flight_than_the_bound_and_none_dropped(
    mortal: LocalPulsar, connect: Callable[..., Any], topic: str
) -> None:
    plan = make_plan(mortal, topic)
    client = connect(mortal)
    told: list[TimewheelError | None] = []
    with DelayedProducer(client, plan, max_pending=8) as producer:
        producer.send(b"opens the producer")
        mortal.pause()
        handed_over: list[int] = []

        def send_twenty() -> None:
            for number in range(20):
                producer.send_async(b"x", lambda error, _: told.append(error), timer_id=str(number))
                handed_over.append(number)

        sending = threading.Thread(target=send_twenty)
        sending.start()
        assert eventually(lambda: len(handed_over) == 8)
        sending.join(0.3)
        assert len(handed_over) == 8, "the ninth waits"
        assert told == []
        mortal.resume()
        sending.join(30)
        producer.flush()
    assert told == [None] * 20
    assert stored_entries(mortal, topic) == 21


def test_close_waits_until_its_deadline_and_says_how_many_are_unknown(mortal: LocalPulsar, topic: str) -> None:
    plan = make_plan(mortal, topic)
    client = pulsar.Client(mortal.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    events: list[Event] = []
    told: list[TimewheelError | None] = []
    producer = DelayedProducer(client, plan, hooks=(events.append,))
    producer.send(b"opens the producer")
    mortal.pause()
    for _ in range(5):
        producer.send_async(b"x", lambda error, _: told.append(error))
    began_ms = SystemClock().monotonic_ms()
    assert producer.close(timeout_s=0.5) == 5
    assert SystemClock().monotonic_ms() - began_ms >= 500
    assert [type(error) for error in told] == [SendOutcomeUnknown] * 5
    assert [(event.name, event.level, event.fields) for event in events if event.name != "producer_close_failed"] == [
        ("producer_closed_with_unknown_outcomes", "error", {"unknown_count": 5})
    ]
    mortal.resume()
    with suppress(Exception):  # the client may still be closing the producer that a frozen broker did not let go
        client.close()


def test_a_send_into_a_terminated_interval_goes_to_the_running_one(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    noon_ms = now_ms() // DAY_MS * DAY_MS + DAY_MS // 2
    plan = make_plan(pulsar_broker, topic, Calendar(), at_ms=noon_ms, max_delay_ms=3 * DAY_MS)
    today, tomorrow = (Names(plan).calendar_topic(noon_ms // DAY_MS + days) for days in (0, 1))
    due_ms = noon_ms + HOUR_MS
    # Prepared today, and judged after midnight: meanwhile the topic of today was terminated under an open producer.
    clock = SetClock(noon_ms)
    with DelayedProducer(pulsar_client, plan, clock=clock) as producer:
        producer.send(b"opens the producer", deliver_at=due_ms)
        with AdminClient(pulsar_broker.admin_url) as admin:
            admin.topics.terminate(today)
        clock._readings_ms = [noon_ms, noon_ms + DAY_MS]
        timer = producer.send(b"late", deliver_at=due_ms, timer_id="sub-42")
    assert timer.due_ms == due_ms
    [message] = stored_messages(pulsar_client, tomorrow, 1)
    assert (message.data(), message.properties()["tw-id"]) == (b"late", "sub-42")


def test_a_terminated_running_interval_is_a_failure_and_never_retried(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    noon_ms = now_ms() // DAY_MS * DAY_MS + DAY_MS // 2
    plan = make_plan(pulsar_broker, topic, Calendar(), at_ms=noon_ms, max_delay_ms=3 * DAY_MS)
    today = Names(plan).calendar_topic(noon_ms // DAY_MS)
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.topics.terminate(today)
    with DelayedProducer(pulsar_client, plan, clock=SetClock(noon_ms)) as producer:
        for _ in range(2):  # once when the producer is opened, once again: nothing was cached
            with pytest.raises(SendFailed, match="TopicTerminated"):
                producer.send(b"x", deliver_at=noon_ms + HOUR_MS)


def test_no_producer_is_opened_for_a_passed_interval(pulsar_broker: Broker, pulsar_client: Any, topic: str) -> None:
    noon_ms = now_ms() // DAY_MS * DAY_MS + DAY_MS // 2
    plan = make_plan(pulsar_broker, topic, Calendar(), at_ms=noon_ms + DAY_MS, max_delay_ms=3 * DAY_MS)
    yesterday, today = (Names(plan).calendar_topic(noon_ms // DAY_MS + days) for days in (0, 1))
    # Prepared before midnight, and the producer is opened after it, when the topic of that day is long removed.
    clock = SetClock(noon_ms, noon_ms + DAY_MS)
    with DelayedProducer(pulsar_client, plan, clock=clock) as producer:
        producer.send(b"x", deliver_at=noon_ms + HOUR_MS)
    assert [message.data() for message in stored_messages(pulsar_client, today, 1)] == [b"x"]
    with AdminClient(pulsar_broker.admin_url) as admin:
        assert not [name for name in admin.topics.list("public/default") if name.startswith(yesterday)]


class Interrupted(Exception):
    """Raised in the main thread by a signal, as Ctrl-C is."""


@pytest.mark.real
def test_an_interrupted_wait_does_not_lose_track_of_the_send(
    mortal: LocalPulsar, connect: Callable[..., Any], topic: str
) -> None:
    plan = make_plan(mortal, topic)

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with DelayedProducer(connect(mortal), plan) as producer:
            producer.send(b"opens the producer")
            mortal.pause()
            interrupter = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
            interrupter.start()
            with pytest.raises(Interrupted):
                producer.send(b"x", timer_id="sub-42")
            interrupter.join()
            assert producer._limiter.inside == 1, "its outcome is still awaited"
            mortal.resume()
            producer.flush()
            assert producer._limiter.inside == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stored_entries(mortal, topic) == 2


def test_one_failure_to_open_is_told_to_all_threads_that_waited_for_it(
    mortal: LocalPulsar, connect: Callable[..., Any], topic: str
) -> None:
    plan = make_plan(mortal, topic)
    failed: list[str] = []
    client = connect(mortal, operation_timeout_seconds=3)
    client.get_topic_partitions(topic)  # connected, so that the operation's time-out is what fails
    with DelayedProducer(client, plan) as producer:

        def send(number: int) -> None:
            with pytest.raises(SendFailed) as caught:
                producer.send(b"x", timer_id=str(number))
            failed.append(caught.value.timer_id)

        mortal.pause()
        threads = [threading.Thread(target=send, args=(number,)) for number in range(10)]
        began_ms = SystemClock().monotonic_ms()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert SystemClock().monotonic_ms() - began_ms < 28_000, "one time-out of 3 s for all, not 10 of them"
        mortal.resume()
    assert sorted(failed) == [str(number) for number in range(10)]


FORK = """
import os, sys
import pulsar
from timewheel.core import Plan
from timewheel.core.errors import ClientMisuse
from timewheel.producers import DelayedProducer

client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
producer = DelayedProducer(client, Plan(due_topic=sys.argv[2], subscriptions=("billing",)))
producer.send(b"from the parent")
child = os.fork()
if child == 0:
    try:
        producer.send(b"from the child")
    except ClientMisuse as error:
        producer.close()
        os._exit(0 if "fork" in str(error) else 2)
    os._exit(1)
_, status = os.waitpid(child, 0)
producer.send(b"from the parent again")
producer.close()
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.real
def test_a_forked_child_is_refused_at_once_and_its_parent_goes_on(
    pulsar_broker: Broker, pulsar_client: Any, topic: str
) -> None:
    make_plan(pulsar_broker, topic)
    done = ran([sys.executable, "-c", FORK, pulsar_broker.service_url, topic], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert [m.data() for m in stored_messages(pulsar_client, topic, 2)] == [
        b"from the parent",
        b"from the parent again",
    ]


def test_limits_below_one_are_refused(pulsar_client: Any, topic: str) -> None:
    plan = Plan(due_topic=topic, subscriptions=("billing",))
    with pytest.raises(ClientMisuse, match="at least 1"):
        DelayedProducer(pulsar_client, plan, max_pending=0)
    with pytest.raises(ClientMisuse, match="at least 1"):
        DelayedProducer(pulsar_client, plan, max_producers=0)


def test_a_broker_that_restarts_is_waited_for(mortal: LocalPulsar, connect: Callable[..., Any], topic: str) -> None:
    plan = make_plan(mortal, topic)
    client = connect(mortal)
    told: list[TimewheelError | None] = []
    with DelayedProducer(client, plan) as producer:
        for number in range(200):
            producer.send_async(b"x", lambda error, _: told.append(error), timer_id=str(number))
        mortal.kill()
        for number in range(200, 400):
            producer.send_async(b"x", lambda error, _: told.append(error), timer_id=str(number))
        mortal.start()
        producer.flush()
    # Whatever was told to be stored is stored; whatever is not known is called so.
    assert len(told) == 400
    assert {type(error) for error in told} <= {type(None), SendOutcomeUnknown}
    with AdminClient(mortal.admin_url) as admin:
        entries = admin.topics.internal_stats(partition_topic(topic, 0)).entries
    stored = {message.properties()["tw-id"] for message in stored_messages(client, topic, entries)}
    assert len(stored) >= told.count(None)
