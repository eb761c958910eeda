"""Every odd message that can be stored, between good ones, in every place: the good ones come, once and not early."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import pulsar
import pytest

from tests.broker.due_topic import now_ms
from tests.broker.odd_neighbours import GOOD, Handled, unacknowledged
from tests.broker.relay_stage import BUSINESS, plan_of
from tests.broker.shadow_stage import ShadowStage
from tests.support.odd_messages import FAR_MS, KILLING, ODD, SHARED, STALLING, WHOLE, Odd, Texts, put, put_good
from tests.support.raw_producer import RawProducer
from timewheel.broker.admin.client import AdminClient
from timewheel.core.envelope import Envelope, Life
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Calendar, Plan, Ring, Tiered, Wheel
from timewheel.core.routing import Hold
from timewheel.core.topology import topology
from timewheel.shadow.content import timers_in
from timewheel.shadow.desired_state import State
from timewheel.testing import Broker, eventually

if TYPE_CHECKING:
    from tests.conftest import Evidence

AHEAD_MS = 25_000
"""So much later than the play begins is all due: longer than sending takes."""
PATIENCE_S = 90
TIERS = Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000))


class Place(NamedTuple):
    """Where the messages are put.

    Args:
        plan: Of the topics.
        topic: Into which they go, without a partition suffix, for what is due then.
        asks: What a message there has: properties and the delivery that is asked for; by its id and due time.
        is_plain: Whether a plain client reads the due topic, beside a shadow.
        odd: Which are put there.
    """

    plan: Callable[[], Plan]
    topic: Callable[[ShadowStage, int], str]
    asks: Callable[[ShadowStage, str, int], tuple[Texts, int]]
    is_plain: bool = False
    odd: Sequence[Odd] = SHARED


def encoded(properties: dict[str, str]) -> Texts:
    return tuple((name.encode(), text.encode()) for name, text in properties.items())


def timer(stage: ShadowStage, timer_id: str, due_ms: int) -> tuple[Texts, int]:
    """Of a timer that is sent now; where the broker delays, it is asked to."""
    at_ms = now_ms()
    route = stage.router.route(due_ms, at_ms)
    return encoded(Envelope(timer_id, due_ms, at_ms).properties()), route.deliver_at_ms if isinstance(
        route, Hold
    ) else 0


def due_timer(stage: ShadowStage, timer_id: str, due_ms: int) -> tuple[Texts, int]:
    at_ms = now_ms()
    return encoded(Envelope(timer_id, due_ms, at_ms).properties()), stage.router.to_due(due_ms, at_ms).deliver_at_ms


def again(stage: ShadowStage, timer_id: str, due_ms: int) -> tuple[Texts, int]:
    at_ms = now_ms()
    life = Life(attempt=1, first_due_ms=at_ms, only_for=BUSINESS)
    due = stage.router.to_due(due_ms, at_ms, BUSINESS)
    return encoded(Envelope(timer_id, due_ms, at_ms, life=life).properties()), due.deliver_at_ms


def held_in(stage: ShadowStage, due_ms: int) -> str:
    route = stage.router.route(due_ms, now_ms())
    assert isinstance(route, Hold)
    return route.topic


def of_intake(_: ShadowStage, timer_id: str, due_ms: int) -> tuple[Texts, int]:
    return ((b"tw-id", timer_id.encode()), (b"tw-due", b"%d" % due_ms)), 0


def shadowed() -> Plan:
    return plan_of(TIERS, relay="service", readers="any", intake=True)


PLACES = {
    "tier": Place(lambda: plan_of(TIERS), held_in, timer, odd=ODD),
    "tier that the broker holds": Place(
        lambda: plan_of(Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000), hold="broker")),
        held_in,
        timer,
        odd=WHOLE,
    ),
    "slot": Place(
        lambda: plan_of(Wheel(rings=(Ring(slot_ms=4_000, slots=10, headstart_ms=500),)), max_delay_ms=30_000),
        held_in,
        timer,
        odd=ODD,
    ),
    "due topic": Place(lambda: plan_of(TIERS), lambda stage, _: stage.plan.due_topic, due_timer),
    "day of a calendar": Place(
        lambda: plan_of(Calendar(interval_ms=60_000), max_delay_ms=120_000),
        lambda stage, due_ms: stage.names.calendar_topic(due_ms // stage.router.interval_ms),
        due_timer,
    ),
    "topic of retries": Place(lambda: plan_of(TIERS, retry=True), lambda stage, _: stage.names.retry(BUSINESS), again),
    "intake": Place(shadowed, lambda stage, _: stage.names.intake, of_intake, odd=ODD),
    "topic with a shadow": Place(
        shadowed,
        lambda stage, _: stage.plan.due_topic,
        lambda *asked: ((), asked[-1]),
        is_plain=True,
    ),
}
SHORT = ("tier", "slot")
"""Those that CI plays too."""


def put_all(stage: ShadowStage, place: Place, odd: Sequence[Odd], due_ms: int) -> list[str]:
    """Store all of them, a good one before and behind each; returns the names of those that the broker refused."""
    refused = []
    topic = stage.names.part(place.topic(stage, due_ms), 0)
    with RawProducer(stage.broker.service_url, topic) as producer:
        for number, one in enumerate(odd):
            good = f"{GOOD}{number}"
            put_good(producer, *place.asks(stage, good, due_ms), good.encode())
            try:
                put(producer, one, *place.asks(stage, f"odd-{number}", due_ms))
            except ConnectionError:
                refused.append(one.name)
        good = f"{GOOD}{len(odd)}"
        put_good(producer, *place.asks(stage, good, due_ms), good.encode())
    return refused


def await_rest(stage: ShadowStage) -> int:
    """Wait until relays hold only timers due in the year 9999, which go from tier to tier until they have made as many
    hops as any timer may; returns their number.
    """
    counts: list[int] = []

    def only_far() -> bool:
        held = [topic.name for topic in topology(stage.plan, now_ms()).holding]
        waiting = [(name, entry) for name in held for entry in unacknowledged(stage, name, RELAY_SUBSCRIPTION)]
        dues = [(name, entry.position.text, [one.due_ms for one in timers_in(entry)]) for name, entry in waiting]
        assert [due for due in dues if set(due[-1]) != {FAR_MS}] == []
        counts.append(sum(len(due) for *_, due in dues))
        return True

    eventually(only_far, PATIENCE_S, poll=0.5)
    return counts[-1]


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(name, id=f"{name}-short" if name in SHORT else name) for name in PLACES])
def test_no_odd_message_keeps_a_good_one_from_coming_once_and_in_its_time(
    pulsar_broker: Broker, name: str, say: Callable[[object], None], evidence: Evidence
) -> None:
    place = PLACES[name]
    odd = place.odd
    with ShadowStage(pulsar_broker, place.plan()) as stage, ExitStack() as stack:
        if stage.plan.intake:
            stage.desired(State.SHADOWING)
        due_ms = now_ms() + AHEAD_MS
        refused = put_all(stage, place, odd, due_ms)
        say(f"stored {len(odd) - len(refused)} of {len(odd)} odd messages; refused by the broker: {refused}")
        if stage.plan.intake:
            stage.shadow()
        elif stage.plan.needs_relay:
            stage.relay()
        if place.is_plain:
            discard = pulsar.ConsumerCryptoFailureAction.DISCARD
            handled = Handled.plainly_by(stage, due_ms, stack, crypto_failure_action=discard)
        else:
            handled = Handled.by(stage, due_ms, stack)
        wanted = [f"{GOOD}{number}" for number in range(len(odd) + 1)]
        try:
            figures = handled.await_good(wanted, PATIENCE_S)
        finally:
            missing = [number for number, good in enumerate(wanted) if good not in handled.good]
            if missing:
                say(f"{len(missing)} good ones are missing, the first behind: {odd[max(missing[0] - 1, 0)].name}")
            say(f"{name}: handled {handled.odd.total()} odd ones")
            say(Counter(event.name for event in stage.events.events))
        far = await_rest(stage)
        evidence(
            f"odd messages: {name}",
            {"kinds": len(odd), "refused by the broker": len(refused), **figures, "held for the year 9999": far},
        )


READS_ON = """
import pulsar, sys
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
consumer = client.subscribe(sys.argv[2], "plain", initial_position=pulsar.InitialPosition.Earliest)
while (message := consumer.receive(60_000)).data() != b"last":
    consumer.acknowledge(message)
client.close()
"""
"""A plain consumer without anything of timewheel's."""


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_some_odd_messages_end_the_process_of_any_client(pulsar_broker: Broker, evidence: Evidence) -> None:
    """What the page about security says of pulsar-client; who mends the client makes this red."""
    ended: dict[str, int] = {}
    controls = [one for one in ODD if one.name in {"LZ4", "SNAPPY", "a batch of three"}]
    for number, one in enumerate([*KILLING, *controls]):
        topic = f"persistent://public/default/ends-{now_ms()}-{number}"
        with RawProducer(pulsar_broker.service_url, topic) as producer:
            put(producer, one, (), 0)
            put_good(producer, (), 0, b"last")
        child = [sys.executable, "-c", READS_ON, pulsar_broker.service_url, topic]
        ended[one.name] = subprocess.run(child, capture_output=True, timeout=120, check=False).returncode
    assert [ended[one.name] for one in controls] == [0] * len(controls), "the same, but honest"
    by_signal = sorted(name for name, code in ended.items() if code < 0)
    assert set(by_signal) <= {one.name for one in KILLING}
    assert len(by_signal) >= 3
    evidence(
        "messages that end a plain client",
        {"pulsar-client": version("pulsar-client"), "kinds": len(KILLING), "ended by a signal": "; ".join(by_signal)},
    )


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_parts_of_a_message_alone_stop_the_shared_subscription_of_any_client(
    pulsar_broker: Broker, pulsar_client: Any, evidence: Evidence
) -> None:
    """Why these are not put where a Shared subscription reads; a broker that is mended makes this red."""
    named = {one.name: one for one in ODD}
    first, batch = named["the first of three parts, alone"], named["a batch of three"]
    shared, by_key = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
    stopping = [(one, shared, False) for one in STALLING]
    stopping += [(one, shared, True) for one in (first, named["a part of a message of 64 MB"])]
    controls = [(batch, shared, False), (batch, shared, True), (first, shared, False)]
    stopped = []
    with AdminClient(pulsar_broker.admin_url) as admin:
        for number, (one, consumer_type, anew) in enumerate([*stopping, *controls, (STALLING[0], by_key, False)]):
            topic = f"persistent://public/default/stops-{now_ms()}-{number}"
            subscribe = partial(pulsar_client.subscribe, topic, "plain", consumer_type=consumer_type)
            consumer = subscribe(receiver_queue_size=1 if anew else 1_000)
            with RawProducer(pulsar_broker.service_url, topic) as producer:
                put(producer, one, (), 0)
                if anew:  # Two of them, so that its queue is full when it closes.
                    for _ in range(2):
                        put_good(producer, (), 0, b"first")
                    consumer.receive(20_000)
                    eventually(partial(is_full, admin, topic), 20)
                    consumer.close()
                    consumer = subscribe(receiver_queue_size=1)
                put_good(producer, (), 0, b"last")
            if not comes(consumer, b"last", 5_000):
                stopped.append((one, consumer_type, anew))
                admin.subscriptions.skip(topic, "plain", 1)
                assert comes(consumer, b"last", 60_000), "what the page about security says that helps"
            consumer.close()
    assert stopped == stopping
    evidence(
        "parts of a message that stop a plain Shared subscription",
        {"cases": len(stopping), "stopped": len(stopped), "gone on once skipped": len(stopped)},
    )


def is_full(admin: AdminClient, topic: str) -> bool:
    """Whether its consumer has room for nothing more."""
    consumers = admin.topics.stats(topic, clients=True).subscriptions["plain"].consumers or ()
    return bool(consumers) and consumers[0].permits <= 0


def comes(consumer: Any, payload: bytes, within_ms: int) -> bool:
    """Whether a message with this payload comes to a plain consumer, which acknowledges all."""
    try:
        while (message := consumer.receive(within_ms)).data() != payload:
            consumer.acknowledge(message)
    except pulsar.Timeout:
        return False
    return True


def test_kinds_have_one_name_each() -> None:
    names = Counter(one.name for one in ODD)
    assert max(names.values()) == 1
    assert len(names) >= 60
