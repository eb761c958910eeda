"""Timers that are cancelled, replaced and rescheduled, on a real broker: what was promised is kept in every scheme."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.broker.conftest import Connect
from tests.broker.due_topic import SUBSCRIPTION, Events, Handled, ShiftedClock, left_in, now_ms, running
from tests.support.checkout import ROOT
from tests.support.processes import ran
from tests.support.reschedule_worker import NEW, arguments
from tests.support.through import Through
from tests.support.wrong_cuts import step_unasked
from timewheel.broker.admin import AdminClient
from timewheel.broker.admin.policies import SIZE_QUOTA, BacklogQuota
from timewheel.consumers import AsyncDelayedConsumer, DelayedConsumer, DelayedMessage
from timewheel.consumers import receiver as questions
from timewheel.core.cancellations import Answer, CancelResult
from timewheel.core.clock import SystemClock
from timewheel.core.durations import MINUTE_MS, SECOND_MS
from timewheel.core.envelope import Envelope
from timewheel.core.errors import BadArgument, CancelRefused, TimewheelError, TopologyError
from timewheel.core.names import RELAY_SUBSCRIPTION, Names, partition_topic
from timewheel.core.plan import Calendar, Cancel, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.core.topology import topology
from timewheel.errors import CancelFailed
from timewheel.producers import AsyncDelayedProducer, DelayedProducer, Timer
from timewheel.provision import FormerTopics, ensure
from timewheel.testing import Broker, eventually

SOON = dt.timedelta(seconds=4)
WAIT_S = 60
TIERED = Tiered(window_ms=1_500, tiers_ms=(1_500, 3_000))
SCHEMES: dict[str, Scheme] = {
    "native": Native(),
    "tiered": TIERED,
    "broker-held": replace(TIERED, hold="broker"),
    "wheel": Wheel(rings=(Ring(slot_ms=1_000, slots=62, headstart_ms=100),)),
    "calendar": Calendar(interval_ms=MINUTE_MS),
}

EVERYDAY = {"native", "tiered"}


def plan_on(topic: str, scheme: Scheme | None = None, **changes: Any) -> Plan:
    return Plan(
        **{
            "due_topic": topic,
            "subscriptions": (SUBSCRIPTION,),
            "scheme": scheme or Native(),
            "partitions": 2,
            "guard_ms": 100,
            "max_delay_ms": MINUTE_MS,
            "cancel": Cancel(skew_ms=100),
            **changes,
        }
    )


def provisioned(broker: Broker, plan: Plan) -> Plan:
    with AdminClient(broker.admin_url) as admin:
        ensure(admin, plan, now_ms=now_ms())
    return plan


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    return provisioned(pulsar_broker, plan_on(topic))


def nothing_is_left(broker: Broker, plan: Plan, subscription: str = SUBSCRIPTION) -> bool:
    due = [spec.name for spec in topology(plan, now_ms()).topics if spec.role == "due"]
    return left_in(broker, due, subscription) == 0


def handed_out(client: Any, broker: Broker, plan: Plan, subscription: str = SUBSCRIPTION) -> dict[str | None, int]:
    """How often a consumer hands out each timer until nothing is left."""
    handled = Handled()
    with running(DelayedConsumer(client, plan, subscription), handled):
        eventually(lambda: nothing_is_left(broker, plan, subscription), WAIT_S)
    return dict(handled.times)


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param(scheme, id=name, marks=() if name in EVERYDAY else pytest.mark.short)
        for name, scheme in SCHEMES.items()
    ],
)
def test_what_is_cancelled_in_time_is_never_handed_out(
    client: Any, pulsar_broker: Broker, topic: str, scheme: Scheme
) -> None:
    plan = provisioned(pulsar_broker, plan_on(topic, scheme))
    handled = Handled()
    with DelayedProducer(client, plan) as producer:
        timers = [producer.send(b"x", deliver_after=SOON, timer_id=f"t{number}") for number in range(30)]
        certain = [producer.cancel(timer).answer for timer in timers[:10]]
        unseen = [producer.cancel(timer.id).answer for timer in timers[10:20]]
        consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
        with running(consumer, handled):
            eventually(lambda: len(handled.times) >= 10, WAIT_S)
            eventually(lambda: nothing_is_left(pulsar_broker, plan), WAIT_S)
        late = producer.cancel(timers[25])
    assert dict(handled.times) == {f"t{number}": 1 for number in range(20, 30)}
    assert certain == [Answer.CERTAIN] * 10
    assert unseen == [Answer.UNSEEN] * 10
    assert late.answer is Answer.TOO_CLOSE
    assert producer.counts.stored == 30
    assert producer.counts.cut == 21


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "event loop"])
def test_no_handler_begins_after_a_cancel_of_its_timer_was_confirmed(client: Any, plan: Plan, is_async: bool) -> None:
    """All are due at once and queue for eight handlers, while they are cancelled from the last to the first."""
    count, handler_s = 400, 0.05
    began: dict[str | None, float] = {}
    confirmed: dict[str, float] = {}

    def handle(message: DelayedMessage) -> None:
        began[message.timer_id] = time.monotonic()
        time.sleep(handler_s)

    async def handle_soon(message: DelayedMessage) -> None:
        began[message.timer_id] = time.monotonic()
        await asyncio.sleep(handler_s)

    on_a_loop = AsyncDelayedConsumer(client, plan, SUBSCRIPTION)
    on_threads = DelayedConsumer(client, plan, SUBSCRIPTION)
    consumer = on_a_loop if is_async else on_threads

    async def play() -> None:
        async with on_a_loop:
            await on_a_loop.run(handle_soon, concurrency=8, stops_on_signals=False)

    def run() -> None:
        if is_async:
            asyncio.run(play())
            return
        with on_threads:
            on_threads.run(handle)

    with DelayedProducer(client, plan) as producer:
        due_ms = now_ms() + 2 * SECOND_MS
        timers = [producer.send(b"x", deliver_at=due_ms, timer_id=f"t{number}") for number in range(count)]
        thread = threading.Thread(target=run)
        thread.start()
        try:
            eventually(lambda: len(began) > 8, WAIT_S)
            for timer in reversed(timers):
                producer.cancel(timer)
                confirmed[timer.id] = time.monotonic()
            eventually(lambda: consumer.counts.done + consumer.counts.cancelled == count, WAIT_S)
        finally:
            consumer.stop()
            thread.join(WAIT_S)
    late_s = [at - confirmed[name] for name, at in began.items() if name]
    # An answer may be 15 ms old, and a busy machine notes all of it late; who does not ask is late by seconds.
    assert [late for late in late_s if late > 0.5] == []
    assert consumer.counts.cancelled > 0


def test_cancels_that_were_made_before_a_consumer_began_are_honoured_by_each_subscription(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    plan = provisioned(pulsar_broker, plan_on(topic, subscriptions=(SUBSCRIPTION, "audit")))
    with DelayedProducer(client, plan) as producer:
        timers = [
            producer.send(b"x", deliver_after=dt.timedelta(seconds=2), timer_id=f"t{number}") for number in range(6)
        ]
        for timer in timers[:3]:
            producer.cancel(timer)
    eventually(lambda: now_ms() > timers[-1].due_ms)
    for subscription in plan.subscriptions:
        assert handed_out(client, pulsar_broker, plan, subscription) == {"t3": 1, "t4": 1, "t5": 1}


def test_what_is_replaced_moved_or_cancelled_as_a_group_comes_once_as_the_last_one_or_not_at_all(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    came: defaultdict[str | None, list[tuple[bytes, int | None]]] = defaultdict(list)
    with DelayedProducer(client, plan) as producer:
        ended = threading.Semaphore(0)
        for number in range(20):
            timer = producer.send(b"%d" % number, deliver_after=SOON, timer_id="debounced", replace=True)
            assert timer.superseded is not None
            assert timer.superseded.answer is Answer.UNSEEN
        errors: list[TimewheelError | None] = []

        def told(error: TimewheelError | None, timer: Timer) -> None:
            errors.append(error)
            assert timer.superseded is not None
            ended.release()

        producer.send_async(b"last", told, deliver_after=SOON, timer_id="debounced", replace=True)
        assert ended.acquire(timeout=WAIT_S)
        assert errors == [None]

        first = producer.send(b"first", deliver_after=dt.timedelta(seconds=3), timer_id="moved")
        second = producer.reschedule(first, b"second", deliver_after=dt.timedelta(seconds=5))
        third = producer.reschedule(second, b"third", deliver_after=dt.timedelta(seconds=4))
        assert first.generation < second.generation < third.generation
        answers = [timer.superseded and timer.superseded.answer for timer in (first, second, third)]
        assert answers == [None, Answer.CERTAIN, Answer.CERTAIN]
        with pytest.raises(CancelRefused, match="was sent to"):
            producer.reschedule(third._replace(due_topic="persistent://public/default/other"), b"")

        for number in range(40):
            group = "order 7" if number % 2 else "order 8"
            producer.send(b"x", deliver_after=SOON, timer_id=f"t{number}", group=group)
        assert producer.cancel_group("order 7").answer is Answer.UNSEEN
        producer.send(b"x", deliver_after=SOON, timer_id="joined later", group="order 7")

    def handle(message: DelayedMessage) -> None:
        came[message.timer_id].append((message.data(), message.generation))

    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    with running(consumer, handle):
        eventually(lambda: nothing_is_left(pulsar_broker, plan), WAIT_S)
        assert consumer.counts.cancelled == 20 + 2 + 20
    assert [data for data, _ in came.pop("debounced")] == [b"last"]
    assert came.pop("moved") == [(b"third", third.generation)]
    assert {name: len(each) for name, each in came.items()} == {
        **{f"t{number}": 1 for number in range(0, 40, 2)},
        "joined later": 1,
    }


def test_the_asyncio_producer_cancels_and_replaces_as_well(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    async def send_and_cancel() -> list[CancelResult | None]:
        async with AsyncDelayedProducer(client, plan) as producer:
            one, two, three = await asyncio.gather(
                *(producer.send(b"x", deliver_after=SOON, timer_id=name, group="g") for name in ("one", "two", "three"))
            )
            four = await producer.reschedule(three, b"x", deliver_after=SOON, group="other")
            five = await producer.send(b"x", deliver_after=SOON, timer_id="five", replace=True)
            first = await producer.cancel(one)
            group = await producer.cancel_group("g")
            with pytest.raises(CancelRefused):
                await producer.cancel("")
            assert (producer.counts.stored, producer.counts.cut, producer.counts.refused) == (5, 4, 1)
            assert two.superseded is None
            return [first, group, four.superseded, five.superseded]

    answers = asyncio.run(send_and_cancel())
    assert [one and one.answer for one in answers] == [Answer.CERTAIN, Answer.UNSEEN, Answer.CERTAIN, Answer.UNSEEN]
    assert handed_out(client, pulsar_broker, plan) == {"three": 1, "five": 1}


def test_what_cannot_be_cancelled_is_refused_with_the_reason(client: Any, plan: Plan) -> None:
    events = Events()
    with DelayedProducer(client, plan, hooks=(events,)) as producer:
        wrong: dict[Any, str] = {"": "not empty", "x" * 257: "at most 256", b"x": "is text", "\ud800": "surrogate"}
        for name, reason in wrong.items():
            for cancel in (producer.cancel, producer.cancel_group):
                with pytest.raises(CancelRefused, match=reason):
                    cancel(name)
        foreign = Timer("a", now_ms(), due_topic="persistent://public/default/other")
        with pytest.raises(CancelRefused, match="was sent to persistent://public/default/other"):
            producer.cancel(foreign)
        with pytest.raises(BadArgument, match="give the timer_id that it replaces"):
            producer.send(b"x", replace=True)
        assert producer.cancel("nobody has sent it").answer is Answer.UNSEEN
        assert producer.counts.refused == 10
    without = replace(plan, cancel=None)
    with DelayedProducer(client, without) as producer:
        for cancel in (producer.cancel, producer.cancel_group):
            with pytest.raises(CancelRefused, match=r"no \[cancel\]"):
                cancel("a")
        with pytest.raises(BadArgument, match=r"no \[cancel\]"):
            producer.send(b"x", group="g")
        with pytest.raises(BadArgument, match=r"no \[cancel\]"):
            producer.send(b"x", timer_id="a", replace=True)


def test_without_the_log_consumers_and_cancels_say_how_to_make_it(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    before = provisioned(pulsar_broker, plan_on(topic, cancel=None))
    plan = replace(before, cancel=Cancel())
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION)
    with pytest.raises(TopologyError, match="timewheel topics ensure"):
        consumer.start()
    with DelayedProducer(client, plan) as producer:
        with pytest.raises(TopologyError, match="timewheel topics ensure"):
            producer.cancel("a")
        timer = producer.send(b"x", timer_id="a")
        provisioned(pulsar_broker, plan)
        producer.cancel(timer)
    consumer.start()
    eventually(lambda: consumer.ready)
    consumer.close()


def test_what_comes_later_than_cut_offs_are_kept_is_parked_and_said(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    plan = provisioned(pulsar_broker, plan_on(topic, cancel=Cancel(keep_ms=MINUTE_MS)))
    events, handled = Events(), Handled()
    due_ms = now_ms() - 2 * MINUTE_MS
    late = client.create_producer(partition_topic(topic, 0))
    late.send(b"old", properties={"mine": "1", **Envelope("old", due_ms, due_ms - 1).properties()})
    with DelayedProducer(client, plan) as producer:
        producer.send(b"sent late", deliver_at=due_ms, timer_id="sent late")
        producer.send(b"new", timer_id="new")
    consumer = DelayedConsumer(client, plan, SUBSCRIPTION, hooks=(events,))
    with running(consumer, handled):
        eventually(lambda: nothing_is_left(pulsar_broker, plan), WAIT_S)
        assert consumer.counts.parked == 1
    assert dict(handled.times) == {"new": 1, "sent late": 1}
    assert events.named("timer_parked")
    parked = client.subscribe(
        [partition_topic(Names(plan).parked(SUBSCRIPTION), number) for number in range(plan.partitions)],
        "timewheel-parked",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    message = parked.receive(timeout_millis=WAIT_S * SECOND_MS)
    assert message.data() == b"old"
    properties = message.properties()
    assert (properties["mine"], properties["tw-id"]) == ("1", "old")
    assert "it may have been cancelled" in properties["tw-parked-reason"]
    assert plan.due_topic in properties["tw-parked-from"]
    parked.close()


class Blindfold(Through):
    """The user's client; while it is put on, the reader of the log gets no answer."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.on = threading.Event()

    def create_reader(self, *args: Any, **options: Any) -> Any:
        return _BlindReader(self._inner.create_reader(*args, **options), self.on)


class _BlindReader(Through):
    def __init__(self, reader: Any, on: threading.Event) -> None:
        super().__init__(reader)
        self._on = on

    def has_message_available(self) -> bool:
        if self._on.is_set():
            raise pulsar.Timeout("as a broker that does not answer")
        return bool(self._inner.has_message_available())


@pytest.mark.parametrize("on_log_unavailable", ["hold", pytest.param("deliver", marks=pytest.mark.short)])
def test_while_the_log_does_not_answer_the_plan_decides(
    client: Any, pulsar_broker: Broker, topic: str, on_log_unavailable: Any
) -> None:
    plan = provisioned(pulsar_broker, plan_on(topic, cancel=Cancel(on_log_unavailable=on_log_unavailable)))
    blind: Any = Blindfold(client)
    events, handled = Events(), Handled()
    consumer = DelayedConsumer(blind, plan, SUBSCRIPTION, hooks=(events,))
    with running(consumer, handled), DelayedProducer(client, plan) as producer:
        eventually(lambda: consumer.ready)
        blind.on.set()
        eventually(lambda: not consumer.ready)
        producer.send(b"x", timer_id="alive")
        dead = producer.send(b"x", deliver_after=SOON, timer_id="dead")
        producer.cancel(dead)
        eventually(lambda: events.named("timers_wait_for_cancellations"), WAIT_S)
        if on_log_unavailable == "deliver":
            eventually(lambda: len(handled.times) == 2, WAIT_S)
            assert consumer.counts.unevaluated == 2
        else:
            eventually(lambda: consumer.counts.held == 2, WAIT_S)
            assert not handled.times
        eventually(lambda: events.named("cancellations_not_read"), WAIT_S)  # once it lasts
        blind.on.clear()
        eventually(lambda: consumer.ready, WAIT_S)
        eventually(lambda: nothing_is_left(pulsar_broker, plan), WAIT_S)
    assert dict(handled.times) == ({"alive": 1, "dead": 1} if on_log_unavailable == "deliver" else {"alive": 1})
    assert events.named("cancellations_read_again")


@contextmanager
def unasked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A consumer that hands out what is due without a question: what is known by chance decides."""
    with monkeypatch.context() as patched:
        patched.setattr(questions.Questions, "step", step_unasked)
        patched.setattr("timewheel.client.cancellation_log.LOOK_EVERY_MS", 50)
        yield


def cancels_close_to_their_due_time(
    client: Any, broker: Broker, plan: Plan, timers: int, disturb: Callable[[], None] = lambda: None
) -> tuple[set[str], set[str]]:
    """Timers 3 ms apart, each cancelled 2 to 100 ms before it is due; what was certain, and what was handed out."""
    handled = Handled()
    answers: dict[str, Answer] = {}
    rng = random.Random(7)
    lock = threading.Lock()
    start_ms = now_ms() + 4_000
    with running(DelayedConsumer(client, plan, SUBSCRIPTION), handled), DelayedProducer(client, plan) as producer:
        sent: list[Timer] = []
        for number in range(timers):
            producer.send_async(
                b"x", lambda _, timer: sent.append(timer), deliver_at=start_ms + 3 * number, timer_id=f"t{number}"
            )
        producer.flush()

        def told(timer: Timer, error: TimewheelError | None, cancel_result: CancelResult | None) -> None:
            assert cancel_result is not None, error
            with lock:
                answers[timer.id] = cancel_result.answer

        for timer in sorted(sent, key=lambda timer: timer.due_ms):
            at_ms = timer.due_ms - rng.randint(2, 100)
            time.sleep(max(at_ms - now_ms(), 0) / 1000)  # the schedule is the test
            producer.cancel_async(timer, partial(told, timer))
            if timer.id == f"t{timers // 2}":
                disturb()
        producer.flush()
        eventually(lambda: nothing_is_left(broker, plan), WAIT_S)
    assert len(answers) == timers
    assert set(handled.times.values()) <= {1}
    certain = {name for name, answer in answers.items() if answer is Answer.CERTAIN}
    return certain, {str(name) for name in handled.times}


def test_a_certain_cancel_is_honoured_though_it_came_in_the_last_milliseconds(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    plan = provisioned(pulsar_broker, plan_on(topic, cancel=Cancel(skew_ms=0)))
    certain, handed = cancels_close_to_their_due_time(
        client, pulsar_broker, plan, 1_000, lambda: pulsar_broker.unload(partition_topic(Names(plan).cancellations, 0))
    )
    assert certain
    assert certain & handed == set()


@pytest.mark.short
def test_control_a_consumer_that_does_not_ask_hands_out_what_was_certainly_cancelled(
    client: Any, pulsar_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = provisioned(pulsar_broker, plan_on(topic, cancel=Cancel(skew_ms=0)))
    with unasked(monkeypatch):
        certain, handed = cancels_close_to_their_due_time(client, pulsar_broker, plan, 1_000)
    assert certain & handed


AHEAD_MS = 700
IDS = [f"meeting-{number}" for number in range(20)]
TIMES_EACH = 5
LATER = dt.timedelta(seconds=6)


@pytest.mark.short
def test_of_two_callers_whose_clocks_differ_one_wins_and_it_is_the_same_everywhere(
    client: Any, pulsar_broker: Broker, topic: str
) -> None:
    subscriptions = (SUBSCRIPTION, "audit")
    wanted = plan_on(topic, TIERED, subscriptions=subscriptions, cancel=Cancel(skew_ms=SECOND_MS))
    plan = provisioned(pulsar_broker, wanted)
    handed: dict[str, defaultdict[str, Counter[int]]] = {name: defaultdict(Counter) for name in subscriptions}
    lock = threading.Lock()

    def handle(subscription: str, message: DelayedMessage) -> None:
        assert message.timer_id is not None
        assert message.generation is not None
        with lock:
            handed[subscription][message.timer_id][message.generation] += 1

    generations: defaultdict[str, set[int]] = defaultdict(set)

    def call(clock: SystemClock) -> None:
        with DelayedProducer(client, plan, clock=clock) as producer:
            for _ in range(TIMES_EACH):
                for timer_id in IDS:
                    timer = producer.send(b"x", deliver_after=LATER, timer_id=timer_id, replace=True)
                    with lock:
                        generations[timer_id].add(timer.generation)

    callers = [threading.Thread(target=call, args=(clock,)) for clock in (SystemClock(), ShiftedClock(AHEAD_MS))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    with ExitStack() as stack:
        for subscription in subscriptions:
            for _ in range(2):  # replicas
                consumer = DelayedConsumer(client, plan, subscription)
                stack.enter_context(running(consumer, partial(handle, subscription)))
        for subscription in subscriptions:
            eventually(lambda: len(handed[subscription]) == len(IDS), WAIT_S)  # noqa: B023 - called before the next
            eventually(partial(nothing_is_left, pulsar_broker, plan, subscription), WAIT_S)
    assert all(len(generations[timer_id]) == 2 * TIMES_EACH for timer_id in IDS)
    winners = {timer_id: Counter([max(generations[timer_id])]) for timer_id in IDS}
    assert handed == {SUBSCRIPTION: winners, "audit": winners}


@pytest.mark.short
def test_cancels_hold_through_a_change_of_the_plan(client: Any, pulsar_broker: Broker, topic: str) -> None:
    """Some are made under the plan before, some under the one after; timers of the one before wait in its tiers."""
    before = provisioned(pulsar_broker, plan_on(topic, TIERED))
    ring = Wheel(rings=(Ring(slot_ms=2 * SECOND_MS, slots=32, headstart_ms=100),))
    handed: list[str | None] = []
    with DelayedProducer(client, before) as producer:
        timers = [
            producer.send(b"x", deliver_after=dt.timedelta(seconds=40), timer_id=f"t{n}", group="g" if n > 7 else None)
            for n in range(10)
        ]
        answers = [producer.cancel(timer).answer for timer in timers[:3]]
    after = replace(before, scheme=ring, revision=2)
    with AdminClient(pulsar_broker.admin_url) as admin:
        ensure(admin, after, now_ms=now_ms(), ignore_former_topics=True)
        with DelayedProducer(client, after) as producer:
            answers += [producer.cancel(timer).answer for timer in timers[3:6]]
            producer.cancel_group("g")
            moved = producer.reschedule(timers[6], b"x", deliver_after=dt.timedelta(seconds=45))
        consumer = DelayedConsumer(client, after, SUBSCRIPTION, former_topics=FormerTopics(admin, after))
        with running(consumer, lambda message: handed.append(message.timer_id)):
            eventually(lambda: now_ms() > moved.due_ms and nothing_is_left(pulsar_broker, after), WAIT_S)
            eventually(lambda: not any(waits(admin, one) for one in (before, after)), WAIT_S)
    assert answers == [Answer.CERTAIN] * 6
    assert sorted(map(str, handed)) == ["t6", "t7"]


def waits(admin: AdminClient, plan: Plan) -> int:
    """Entries in a plan's holding topics."""
    stats = [admin.topics.partitioned_stats(held.name) for held in topology(plan, now_ms()).holding]
    return sum(one.total.subscriptions[RELAY_SUBSCRIPTION].backlog for one in stats)


@pytest.mark.real
@pytest.mark.parametrize(
    "repeats", [pytest.param(False, id="left so", marks=pytest.mark.short), pytest.param(True, id="moved once more")]
)
def test_killed_between_the_new_timer_and_the_cut_off_of_the_old_both_live_until_it_is_done_again(
    client: Any, pulsar_broker: Broker, topic: str, tmp_path: Path, repeats: bool
) -> None:
    plan = provisioned(pulsar_broker, plan_on(topic, TIERED))
    save_plan(plan, tmp_path / "plan.toml")
    handed: list[bytes] = []
    with DelayedProducer(client, plan) as producer:
        older = producer.send(b"old", deliver_at=now_ms() + 15 * SECOND_MS, timer_id="moved")
        command = arguments(pulsar_broker.service_url, str(tmp_path / "plan.toml"), older, older.due_ms + SECOND_MS)
        killed = ran(command, cwd=ROOT)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if repeats:
            again = producer.reschedule(older, b"again", deliver_at=older.due_ms)
            assert again.superseded is not None
            assert again.superseded.answer is Answer.CERTAIN
    wanted = {b"again"} if repeats else {b"old", NEW}
    with running(DelayedConsumer(client, plan, SUBSCRIPTION), lambda message: handed.append(message.data())):
        eventually(lambda: wanted <= set(handed), WAIT_S)
        eventually(lambda: nothing_is_left(pulsar_broker, plan), WAIT_S)
    assert sorted(handed) == sorted(wanted)


@pytest.mark.real
def test_over_its_quota_a_cancel_fails_with_the_reason_and_the_timer_comes(
    connect: Connect, pulsar_broker: Broker, topic: str
) -> None:
    client: Any = connect(pulsar_broker)
    plan = provisioned(pulsar_broker, plan_on(topic))
    log = Names(plan).cancellations
    with DelayedProducer(client, plan) as producer:
        dead = producer.send(b"x", deliver_after=LATER, timer_id="dead")
        producer.cancel(dead)
    with AdminClient(pulsar_broker.admin_url) as admin:
        full = BacklogQuota(action="producer_exception", limit_bytes=1)
        admin.topic_policies.set(log, SIZE_QUOTA, full)
        eventually(lambda: admin.topic_policies.get(log, SIZE_QUOTA) == full)
    with DelayedProducer(client, plan) as producer:
        alive = producer.send(b"x", deliver_after=LATER, timer_id="alive")
        with pytest.raises(CancelFailed, match="uota") as refused:
            producer.cancel(alive)
        assert log in str(refused.value)
        # What replaces another is stored all the same, and says that the other one is not cut off.
        with pytest.raises(TimewheelError, match="uota"):
            producer.reschedule(alive, b"y", deliver_after=LATER)
        assert handed_out(client, pulsar_broker, plan) == {"alive": 2}
