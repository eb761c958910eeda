"""Plays a scenario on a virtual Pulsar, and judges what became of every timer."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import math
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pulsar

from tests.simulation.audit import Audit, timers_of
from tests.simulation.scenario import BEGINS, LONGEST_RETRY_S, PROCESS_KINDS, Fault, Scenario, Timer
from timewheel.consumers import DelayedConsumer, DelayedMessage, RetryLater
from timewheel.core import Answer, Plan
from timewheel.core.clock import SystemClock
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Calendar
from timewheel.core.steps import longest_due_stay_ms
from timewheel.errors import BrokerUnreachable, CancelFailed, CancelOutcomeUnknown, SendFailed, SendOutcomeUnknown
from timewheel.hooks import Event
from timewheel.producers import DelayedProducer
from timewheel.producers import Timer as SentTimer
from timewheel.provision import CalendarRoller, ensure
from timewheel.relay import Relay
from timewheel.testing.virtual import VirtualProcess, VirtualPulsar
from timewheel.testing.virtual.scheduler import Task

MAX_TURNS = 300_000
"""Turns of threads in a play; more: a service turns in a circle."""
LIMIT_S = 900
"""Of this machine's time: a thread turns in a circle by itself."""
DRAIN_S = 900
"""After the last due time and the last fault: all that may still come has come."""
SOON_S = 1.0
"""An acknowledgement is written within this time if nothing happens to it."""
EARLY_S = 5.5
"""By how much wall clocks may have jumped between a handler's wish and the next attempt."""
LATE_S = 1.5
"""Without faults, and with handlers that take no time, a timer is handled so long after its due time at most."""
HAND_OUT_S = 2.0
"""A cancel that was confirmed may not reach a handler that began so much earlier."""


@dataclass(slots=True)
class Verdict:
    """What became of the timers; each of ``broken`` is a sentence for a promise that was broken."""

    broken: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    sent: int = 0
    handled: int = 0
    repeated: int = 0
    situations: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # who was struck, by what, after what
    print: str = ""  # of the whole history: the same for the same seed


class Handling(NamedTuple):
    """A handler's success."""

    began_s: float
    by: str  # the consumer's name, and when its process began

    def __str__(self) -> str:
        return f"{self.by}, {self.began_s:.3f} s"


@dataclass(slots=True)
class Known:
    """What the services were told about a timer."""

    timer: SentTimer | None = None
    sends: list[str] = field(default_factory=list)  # "stored", "failed", "unknown"
    cancelled_s: float | None = None  # when a cancel was confirmed
    answer: Answer | None = None
    handled: dict[str, list[Handling]] = field(default_factory=dict)  # by subscription
    not_before_s: dict[tuple[str, int], float] = field(default_factory=dict)  # by subscription and attempt


class Play:
    """A scenario on a virtual Pulsar."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.plan = scenario.plan()
        self.verdict = Verdict()
        self.timers = {f"t{number}": Known() for number in range(len(scenario.timers))}
        self._virtual = VirtualPulsar(begins=BEGINS, brokers=scenario.brokers, seed=scenario.seed)
        self._processes: dict[str, VirtualProcess] = {}
        self._services: dict[str, Callable[[str, threading.Event], None]] = {}
        self._stops: dict[str, threading.Event] = {}
        self._disturbed_s: list[tuple[float, float]] = []  # when a broker or service may forget what it did
        self._waiting: list[tuple[str, str, Fault]] = []  # faults that come after a step of a process
        self._seen: Counter[int] = Counter()  # steps, by fault
        self._audit = Audit(
            lambda timer_id, subscription: subscription in self.timers[timer_id].handled,
            lambda timer_id: self._planned(timer_id).cancel_s is not None,
            self.break_promise,
        )
        self._hash = hashlib.sha256()
        self._is_over = False

    def run(self) -> Verdict:
        scenario = self.scenario
        with self._virtual as virtual, self._audit.looking():
            self._trace_turns()
            virtual.cluster.latency_ns = scenario.latency_us * 1_000
            virtual.cluster.run_step = self._run_step
            self._ensure()
            for subscription in scenario.subscriptions:
                for number in range(scenario.consumers):
                    self._begin(f"{subscription} {number}", partial(self._consume, subscription))
            if self.plan.needs_relay:
                for number in range(scenario.relays):
                    self._begin(f"relay {number}", self._relay)
            if isinstance(self.plan.scheme, Calendar):
                self._begin("roller", self._roll)
            self._begin("producer", self._produce)
            moments: list[tuple[float, Callable[[], None]]] = [
                (fault.at_s, partial(self._strike, fault)) for fault in scenario.faults
            ]
            if scenario.change_s is not None:
                moments.append((scenario.change_s, self._change_plan))
            for at_s, action in sorted(moments, key=lambda one: one[0]):
                self._advance_to(at_s)
                action()
            self._advance_to(scenario.ends_s + DRAIN_S)
            self._is_over = True
            self._judge()
        self.verdict.print = self._hash.hexdigest()[:16]
        return self.verdict

    # Time and history

    @property
    def now_s(self) -> float:
        return self._virtual.scheduler.monotonic_ns / 1e9

    def _advance_to(self, at_s: float) -> None:
        while at_s - self.now_s > 2e-6:
            self._virtual.advance(seconds=min(at_s - self.now_s, 240))
            self._check_holding_topics()

    def tell(self, sentence: str) -> None:
        self.verdict.story.append(f"{self.now_s:10.3f} s  {sentence}")
        self._hash.update(self.verdict.story[-1].encode())

    def break_promise(self, sentence: str) -> None:
        self.tell(f"BROKEN: {sentence}")
        self.verdict.broken.append(sentence)

    def _trace_turns(self) -> None:
        scheduler = self._virtual.scheduler
        choose, woken = scheduler._choose, scheduler._woken
        turns = itertools.count(1)

        def counted(ready: Sequence[Task], *, timed_out: bool) -> Task:
            if next(turns) == MAX_TURNS:
                scheduler._error = TimeoutError(f"the play takes {MAX_TURNS} turns")
                ready, timed_out = [scheduler.first], True
            return woken(ready, timed_out=timed_out)

        def traced(ready: Sequence[Any]) -> Any:
            chosen = choose(ready)
            self._hash.update(f"{scheduler.monotonic_ns} {len(ready)} {chosen.name}".encode())
            return chosen

        scheduler._choose, scheduler._woken = traced, counted  # type: ignore[method-assign]

    # Services

    def _begin(self, name: str, service: Callable[[str, threading.Event], None]) -> None:
        self._services[name] = service
        stop = self._stops[name] = threading.Event()
        self._processes[name] = self._virtual.start(service, name, stop, name=name)

    def _event(self, name: str, event: Event) -> None:
        self.tell(f"{name} says: {event}")

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.scenario.seed} {name} {self.now_s}")

    def _consume(self, subscription: str, name: str, stop: threading.Event) -> None:
        rng, who = self._rng(name), f"{name} of {self.now_s:.3f} s"
        self._virtual.scheduler.current.is_ours = True  # handlers are called by workers

        def handle(message: DelayedMessage) -> None:
            self._handle(subscription, who, message, rng)

        consumer = DelayedConsumer(
            self._virtual.client(), self.plan, subscription, rng=self._rng(name), hooks=(partial(self._event, name),)
        )
        threading.Thread(target=_stop_after, args=(stop, consumer.stop), daemon=True).start()
        try:
            consumer.start()
        except (BrokerUnreachable, pulsar.PulsarException) as error:
            # A service ends if it cannot begin, and is started again.
            self.tell(f"{name} cannot begin: {error}")
            self._after(5, partial(self._replace, name, self._processes[name]))
            return
        with consumer:
            consumer.run(handle, workers=2)

    def _handle(self, subscription: str, name: str, message: DelayedMessage, rng: random.Random) -> None:
        timer_id, due, began_s = message.timer_id, message.due_at, self.now_s
        if timer_id not in self.timers or due is None:
            self.break_promise(f"{name} was handed {timer_id}, which nobody has sent")
            return
        timer = self.timers[timer_id]
        if due > dt.datetime.now(dt.UTC):
            self.break_promise(f"{timer_id} was early at {name}: due at {due}")
        if timer.timer is not None and due != timer.timer.due_at and not message.attempt:
            self.break_promise(f"{timer_id} is due at {due} by {name}, and was sent for {timer.timer.due_at}")
        if message.data() != timer_id.encode() or message.properties().get("of") != timer_id:
            self.break_promise(f"{timer_id} has changed: {message.data()!r}, {message.properties()}")
        if timer.cancelled_s is not None and (
            timer.answer is Answer.CERTAIN or began_s > timer.cancelled_s + HAND_OUT_S
        ):
            self.break_promise(f"{timer_id} was handed to {name} after its cancel was confirmed: {timer.answer}")
        if began_s < timer.not_before_s.get((subscription, message.attempt), 0) - EARLY_S:
            self.break_promise(f"{name} was handed {timer_id} again too early, attempt {message.attempt}")
        time.sleep(rng.uniform(0, self.scenario.handling_s))
        if message.attempt < self._planned(timer_id).failures:
            self.tell(f"{name} postpones {timer_id}, attempt {message.attempt}")
            wait_s = rng.choice([rng.uniform(1, 20), rng.uniform(60, LONGEST_RETRY_S)])
            again = subscription, message.attempt + 1
            timer.not_before_s[again] = min(self.now_s + wait_s, timer.not_before_s.get(again, math.inf))
            raise RetryLater(dt.timedelta(seconds=wait_s))
        timer.handled.setdefault(subscription, []).append(Handling(began_s, name))
        self.tell(f"{name} has handled {timer_id}, which was late by {message.lateness}")
        assert message.lateness is not None, "it is due"
        if self._is_calm and message.lateness > dt.timedelta(seconds=LATE_S) and not message.attempt:
            self.break_promise(f"{timer_id} was late by {message.lateness}, for no reason")

    def _planned(self, timer_id: str) -> Timer:
        return self.scenario.timers[int(timer_id[1:])]

    @property
    def _is_calm(self) -> bool:
        scenario = self.scenario
        return not scenario.faults and not scenario.handling_s and scenario.change_s is None

    def _relay(self, name: str, stop: threading.Event) -> None:
        relay = Relay(self._virtual.client(), self.plan, rng=self._rng(name), hooks=(partial(self._event, name),))
        with relay:
            stop.wait()

    def _roll(self, name: str, stop: threading.Event) -> None:
        """Make and end the topics of a calendar's intervals."""
        with self._virtual.admin() as admin:
            keeper = CalendarRoller(admin, self.plan, SystemClock())
            while not stop.is_set():
                if (rolled := keeper.tick()) is not None and rolled.made.steps:
                    stages = {one.topic.rsplit(".", 1)[1]: one.stage for one in rolled.retired}
                    self.tell(f"{name} has made topics; ending: {stages}")
                stop.wait(keeper.pause_ms / 1_000)

    def _produce(self, _: str, stop: threading.Event) -> None:
        """Send what is not known to be stored, and cancel: as an outbox does, which begins anew where it stopped."""
        with DelayedProducer(self._virtual.client(), self.plan, send_timeout_millis=10_000) as producer:
            threads = [threading.Thread(target=self._cancel_all, args=(producer, stop), daemon=True)]
            senders = self.scenario.senders
            for number in range(senders):
                share = [*self.timers][number::senders]
                threads.append(threading.Thread(target=self._send_all, args=(producer, stop, share), daemon=True))
            for thread in threads:
                thread.start()
            stop.wait()

    def _send_all(self, producer: DelayedProducer, stop: threading.Event, timer_ids: Sequence[str]) -> None:
        for timer_id in timer_ids:
            known, planned = self.timers[timer_id], self._planned(timer_id)
            while "stored" not in known.sends and not (planned.gives_up and "failed" in known.sends):
                if stop.wait(max(planned.at_s - self.now_s, 0.01 if known.sends else 0)):
                    return
                self._send(producer, timer_id, known, planned)

    def _send(self, producer: DelayedProducer, timer_id: str, known: Known, planned: Timer) -> None:
        due = BEGINS + dt.timedelta(seconds=planned.at_s + planned.delay_s)
        known.sends.append("unknown")
        try:
            timer = producer.send(timer_id.encode(), deliver_at=due, timer_id=timer_id, properties={"of": timer_id})
        except SendFailed as error:
            known.sends[-1] = "failed"
            self.tell(f"{timer_id} is not sent: {error}")
        except SendOutcomeUnknown as error:
            self.tell(f"{timer_id} may be sent: {error}")
        else:
            known.sends[-1], known.timer = "stored", timer
            self.tell(f"{timer_id} is sent, due at {timer.due_at:%H:%M:%S.%f}")

    def _cancel_all(self, producer: DelayedProducer, stop: threading.Event) -> None:
        cancels = [
            (planned.at_s + planned.cancel_s, f"t{number}")
            for number, planned in enumerate(self.scenario.timers)
            if planned.cancel_s is not None
        ]
        for begins_s, timer_id in sorted(cancels):
            at_s, known = begins_s, self.timers[timer_id]
            while known.cancelled_s is None:
                if stop.wait(max(at_s - self.now_s, 0.01)):
                    return
                if known.timer is None:  # not sent yet
                    if self._planned(timer_id).gives_up and known.sends:
                        break
                    at_s = self.now_s + 20
                    continue
                try:
                    # By its id alone, its due time is unknown, and no answer is certain.
                    result = producer.cancel(known.timer if int(timer_id[1:]) % 3 else timer_id)
                except (CancelFailed, CancelOutcomeUnknown) as error:
                    self.tell(f"{timer_id} may be cancelled: {error}")
                    continue
                known.cancelled_s, known.answer = self.now_s, result.answer
                self.tell(f"{timer_id} is cancelled: {result.answer.value}")
                if result.answer is Answer.CERTAIN and known.handled:
                    self.break_promise(f"{timer_id} was handled, and its cancel is certain")

    def _ensure(self) -> None:
        with self._virtual.admin() as admin:
            ensure(admin, self.plan, now_ms=round(time.time() * 1000))

    def _change_plan(self) -> None:
        """Roll out the next revision as the how-to says: topics, relays and consumers, producers."""
        self.plan = self.scenario.plan(revision=2)
        self._audit.relays_may_repeat = True
        self.tell("the plan changes")
        self._ensure()
        self._deploy()

    def _deploy(self) -> None:
        """Restart all services in turn, two seconds apart, the producer last."""
        for number, name in enumerate([*(one for one in self._processes if one != "producer"), "producer"]):
            self._virtual.scheduler.at(number * 2_000_000_000, partial(self._stop, name, 1.0))

    # Faults

    def _strike(self, fault: Fault) -> None:
        names = sorted(self._processes)
        name = names[fault.number % len(names)]
        if fault.step:
            self._waiting.append((name, fault.step, fault))
            return
        self._strike_now(fault, name, "")

    def _run_step(self, process: Any, action: Callable[[], None]) -> None:
        """Run a step at a broker; strike the process after it, if a fault waits for this."""
        action()
        step = _name_of(action)
        for item in [*self._waiting]:
            name, awaited, fault = item
            if process is self._processes[name].process and step == awaited:
                self._seen[id(fault)] += 1
                if self._seen[id(fault)] >= fault.steps:
                    self._waiting.remove(item)
                    # Before the answer, if answers take time: whoever runs now may be struck, and ends its step first.
                    self._virtual.scheduler.at(0, partial(self._strike_now, fault, name, step))

    def _strike_now(self, fault: Fault, name: str, step: str) -> None:
        virtual, scenario = self._virtual, self.scenario
        if self._is_over:
            return
        if fault.kind in PROCESS_KINDS:
            self.verdict.situations[name.split(maxsplit=1)[0], fault.kind, step] += 1
            self._strike_process(fault, name, step)
            return
        self.verdict.situations["cluster", fault.kind, ""] += 1
        if fault.kind == "power cut":
            self.tell(f"the power is cut for {fault.lasts_s:.1f} s" + (f", after {step} of {name}" if step else ""))
            for one in [*self._processes]:
                self._strike_process(replace(fault, kind="kill"), one, "")
            return
        if fault.kind == "deploy":
            self.tell("all services are deployed anew")
            self._deploy()
            return
        self._disturbed_s.append((self.now_s, self.now_s + fault.lasts_s + SOON_S))
        if fault.kind == "no writes":
            self.tell(f"nothing is written for {fault.lasts_s:.1f} s")
            virtual.stop_writes()
            self._after(fault.lasts_s, virtual.resume_writes)
        elif fault.kind == "unload":
            topics = sorted(virtual.cluster.topics)
            topic = topics[fault.number % len(topics)]
            self.tell(f"{topic} is unloaded")
            virtual.unload(topic)
        elif fault.kind == "kill broker":
            broker = fault.number % scenario.brokers
            self.tell(f"broker {broker} is killed")
            virtual.kill_broker(broker)
            virtual.cluster.brokers[broker].is_up = True
        else:
            by_s = -2 if fault.kind == "clocks back" else 1
            self.tell(f"all wall clocks jump by {by_s} s")
            virtual.skew(dt.timedelta(seconds=by_s))

    def _strike_process(self, fault: Fault, name: str, step: str) -> None:
        process, lasts_s = self._processes[name], fault.lasts_s
        self.tell(f"{name}: {fault.kind} for {lasts_s:.1f} s" + (f", after {step}" if step else ""))
        self._disturbed_s.append((self.now_s, self.now_s + lasts_s + SOON_S))
        if fault.kind == "stop":
            self._stop(name, lasts_s)
            return
        if fault.kind in ("cut off", "lose host"):
            process.disconnect()
        if fault.kind in ("kill", "lose host"):
            process.kill()
        if fault.kind == "freeze":
            process.freeze()
        self._after(lasts_s, partial(self._mend, fault, name, process))

    def _stop(self, name: str, away_s: float) -> None:
        """End a service as its deployment does, and start it again."""
        self.tell(f"{name} stops")
        process = self._processes[name]
        self._disturbed_s.append((self.now_s, self.now_s + away_s + SOON_S))
        self._virtual.scheduler.later(self._stops[name].set)
        self._after(max(away_s, 1), partial(self._replace, name, process))

    def _replace(self, name: str, process: VirtualProcess) -> None:
        if self._processes[name] is process:
            process.kill()  # it has had its time to end
            self._restart(name)

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._virtual.scheduler.at(round(delay_s * 1e9), action)

    def _mend(self, fault: Fault, name: str, process: VirtualProcess) -> None:
        if self._processes[name] is not process or self._is_over:
            return
        self.tell(f"{name} goes on")
        if fault.kind == "freeze":
            process.thaw()
        elif fault.kind == "cut off":
            process.reconnect()
        else:
            self._restart(name)

    def _restart(self, name: str) -> None:
        service = self._services[name]
        self._virtual.scheduler.later(lambda: self._begin(name, service))

    # Promises

    def _holding(self) -> Iterable[tuple[str, Any, Any]]:
        for name, topic in self._virtual.cluster.topics.items():
            if (relays := topic.subscriptions.get(RELAY_SUBSCRIPTION)) is not None:
                yield name, topic, relays.cursor

    def _check_holding_topics(self) -> None:
        if self.plan.holds_in_relay:
            for name, _, cursor in self._holding():
                if cursor.acked:
                    self.break_promise(f"{name} has gaps: {cursor.ranges()}")

    def _judge(self) -> None:
        verdict, scenario = self.verdict, self.scenario
        for timer_id, known in self.timers.items():
            verdict.sent += "stored" in known.sends
            verdict.handled += bool(known.handled)
            self._judge_timer(timer_id, known)
        for name, topic, cursor in self._holding():
            entries = topic.log.all_after(cursor.mark_delete)
            waiting = [one.timer_id for entry in entries for one in timers_of(entry)]
            if waiting or cursor.ranges():
                self.break_promise(f"{name} holds {waiting} behind {len(cursor.ranges())} gaps")
        for name, topic in self._virtual.cluster.topics.items():
            for subscription in scenario.subscriptions:
                if (one := topic.subscriptions.get(subscription)) is not None and one.cursor.backlog:
                    self.break_promise(f"{one.cursor.backlog} messages of {name} are never acknowledged")
        if self._is_calm and self.plan.holds_in_relay and self._audit.late:
            self.break_promise(f"nothing happens, and {sorted(self._audit.late)} hop as if they were late")
        self._judge_stays()

    def _judge_timer(self, timer_id: str, known: Known) -> None:
        for subscription in self.scenario.subscriptions:
            handled = known.handled.get(subscription, [])
            if not handled and "stored" in known.sends and known.cancelled_s is None:
                self.break_promise(f"{timer_id} is lost, or stuck: {subscription} has not handled it")
            if handled and not {"stored", "unknown"} & {*known.sends}:
                self.break_promise(f"{timer_id} was handled, though its send had failed: {known.sends}")
            self.verdict.repeated += max(len(handled) - 1, 0)
            for first, then in itertools.pairwise(handled):
                if not self._may_repeat(timer_id, first, then):
                    self.break_promise(f"{timer_id} was handled twice: by {first}, then by {then}")

    def _may_repeat(self, timer_id: str, first: Handling, then: Handling) -> bool:
        """Return whether a fault excuses it: the crash window of the guarantees, or a copy that a fault has made."""
        if first.by == then.by:
            return False  # once in a process
        since_s = first.began_s - SOON_S
        planned, sends = self._planned(timer_id), self.timers[timer_id].sends
        is_late = timer_id in self._audit.late or self.scenario.scheme == "broker-held tiers"
        if is_late or len(sends) > 1 or planned.failures:
            since_s = planned.at_s  # a hop, a send or an attempt that was made again has stored a copy
        return any(begin_s <= then.began_s and since_s <= end_s for begin_s, end_s in self._disturbed_s)

    def _judge_stays(self) -> None:
        """Nothing waits in a due topic for longer than the plan says, or the gaps that were predicted are wrong."""
        if not self.plan.needs_relay:
            return
        longest_ms = longest_due_stay_ms(self.plan)
        for timer_id, entered_ms, due_ms in _in_due_topics(self._virtual, self.plan):
            if due_ms - entered_ms > longest_ms + 5_000:
                self.break_promise(
                    f"{timer_id} entered the due topic {(due_ms - entered_ms) / 1000:.1f} s before its due time"
                )


def _in_due_topics(virtual: VirtualPulsar, plan: Plan) -> Iterable[tuple[str, int, int]]:
    """Return id, time of storing and due time of each timer that was stored in a due topic and is still on disk."""
    for name, topic in virtual.cluster.topics.items():
        if name.startswith(f"{plan.due_topic}-partition-"):
            for entry in topic.log.all_after(topic.log.beginning):
                for one in timers_of(entry):
                    yield one.timer_id, entry.publish_ms, one.due_ms


def _stop_after(stop: threading.Event, action: Callable[[], None]) -> None:
    stop.wait()
    action()


def _name_of(action: Any) -> str:
    while isinstance(action, partial):
        action = action.args[0] if action.args and callable(action.args[0]) else action.func
    return str(getattr(action, "__name__", "")).strip("_")


def played(seed: int, without: Sequence[int] = ()) -> tuple[Scenario, Verdict]:
    """Play a seed, perhaps without some of its faults."""
    scenario = Scenario.drawn(seed)
    if without:
        kept = tuple(fault for number, fault in enumerate(scenario.faults) if number not in without)
        scenario = replace(scenario, faults=kept)
    play = Play(scenario)
    signal.signal(signal.SIGALRM, _takes_too_long)
    signal.alarm(LIMIT_S)
    try:
        return scenario, play.run()
    except Exception as error:  # noqa: BLE001 - a service or the test itself has ended by it
        play.break_promise(f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}")
        return scenario, play.verdict
    finally:
        signal.alarm(0)


def _takes_too_long(*_: object) -> None:
    raise TimeoutError(f"the play takes longer than {LIMIT_S} s")


def judged(seed: int) -> tuple[int, str, Verdict]:
    """Play a seed in a process of a pool."""
    scenario, verdict = played(seed)
    verdict.story.clear()
    return seed, scenario.scheme, verdict


def shrunk(seed: int) -> tuple[int, ...]:
    """Return faults without which a failing seed still fails; no further fault can be left out."""
    left_out: tuple[int, ...] = ()
    for number in range(len(Scenario.drawn(seed).faults)):
        trial = (*left_out, number)
        if played(seed, trial)[1].broken:
            left_out = trial
    return left_out
