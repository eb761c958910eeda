"""Wrong protocols, for controls: the simulation must find each of them within some hundred seeds.

Each replaces one decision of the product by a wrong one, in place; nothing in the product knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pulsar

from tests.simulation.play import played
from tests.simulation.scenario import Scenario
from tests.support.wrong_hops import StartNumbered, Straddling, StraddlingStart, WallClock
from timewheel.client import cancellation_log, results
from timewheel.consumers import engine, receiver, republisher, rolling_topics
from timewheel.consumers.message import Stage
from timewheel.core import cancellations, envelope, next_hop, routing
from timewheel.core.cancellations import Answer
from timewheel.core.errors import SendFailed, SendOutcomeUnknown
from timewheel.producers import base_producer, cancel_messages
from timewheel.relay.driver import hop_producers, partition, session
from timewheel.relay.machine import interface, order, relay_held

Wrong = Callable[..., Any]
"""Called with the right function, and then with its arguments."""
MUTATIONS: dict[str, Callable[[], ExitStack]] = {}
"""By what is wrong: a context in which it is."""
SCHEMES: dict[str, tuple[str, ...]] = {}
"""The schemes on which each has an effect; none: all."""
HELD = ("relay-held tiers", "a wheel", "two rings")
TIERS = ("relay-held tiers", "two rings")  # that hop more than once
BROKER_HELD = ("broker-held tiers",)


def mutation(name: str, *schemes: str) -> Callable[[Callable[[ExitStack], None]], None]:
    """Register a mutation: a function that changes the product until the stack is left."""

    def register(change: Callable[[ExitStack], None]) -> None:
        def begun() -> ExitStack:
            stack = ExitStack()
            change(stack)
            return stack

        MUTATIONS[name], SCHEMES[name] = begun, schemes

    return register


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Make a mutation hold."""
    with MUTATIONS[name]():
        yield


def around(stack: ExitStack, owner: Any, name: str, wrong: Wrong) -> None:
    """Replace a function or method by ``wrong``, which is given the right one."""
    right = getattr(owner, name)
    stack.enter_context(mock.patch.object(owner, name, lambda *given, **named: wrong(right, *given, **named)))


def instead(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.enter_context(mock.patch.object(owner, name, value))


# ------------------------------------------------------------------------------------------------------------- relays


@mutation("hops go by the wall clock", *HELD)
def _(stack: ExitStack) -> None:
    instead(stack, partition, "NextHop", WallClock)


@mutation("groups are numbered by their start", *TIERS)
def _(stack: ExitStack) -> None:
    instead(stack, hop_producers, "HopBatch", StartNumbered)


@mutation("groups straddle the mark", *TIERS)
def _(stack: ExitStack) -> None:
    instead(stack, hop_producers, "HopBatch", Straddling)


@mutation("groups are numbered by their start, and straddle the mark", *TIERS)
def _(stack: ExitStack) -> None:
    instead(stack, hop_producers, "HopBatch", StraddlingStart)


@mutation("a hop is acknowledged before it is stored", *HELD)
def _(stack: ExitStack) -> None:
    def forward(right: Wrong, self: Any, *given: Any) -> Any:
        decision = right(self, *given)
        if isinstance(decision, interface.Forward):
            self.confirmed(decision.ordinal)
        return decision

    around(stack, relay_held.Forwarding, "_forward", forward)


@mutation("a confirmed hop is acknowledged with those before it", *HELD)
def _(stack: ExitStack) -> None:
    def confirm(right: Wrong, self: Any, ordinal: int) -> Any:
        grown = []
        while self._base <= ordinal and self._items:
            self._confirmed.discard(self._base)
            grown += right(self, self._base)
        return grown

    around(stack, order.Window, "confirm", confirm)


@mutation("a hop that failed counts as stored")
def _(stack: ExitStack) -> None:
    def take(right: Wrong, self: Any) -> Any:
        ordinals, failures = right(self)
        return ordinals + [ordinal for ordinal, _ in failures], []

    around(stack, hop_producers.Confirmations, "take", take)


@mutation("a repeated hop counts as new", *HELD)
def _(stack: ExitStack) -> None:
    instead(stack, hop_producers.HopProducers, "is_new", lambda *_: True)
    instead(stack, hop_producers.HopBatch, "is_new", property(lambda _: True))


@mutation("names of producers do not follow the routing", *TIERS)
def _(stack: ExitStack) -> None:
    around(
        stack, hop_producers, "producer_name",
        lambda right, source, destination, version, _, label="": right(source, destination, version, "", label),
    )  # fmt: skip


@mutation("hops have no numbers", *HELD)
def _(stack: ExitStack) -> None:
    instead(stack, relay_held, "sequence_id", lambda _: order.NO_SEQUENCE_ID)


@mutation("numbers come again", *HELD)
def _(stack: ExitStack) -> None:
    instead(stack, relay_held, "sequence_id", lambda position: position.entry % 5 + 1)


@mutation("the first message that comes is believed to be the first", *HELD)
def _(stack: ExitStack) -> None:
    instead(stack, order.Beginning, "see", lambda *_: order.Sign.BEGUN)


@mutation("the lanes of named and other hops do not wait for each other, nor look for each other", *TIERS)
def _(stack: ExitStack) -> None:
    def must_drain(_: Wrong, self: Any, *, unnamed: bool) -> bool:
        self._unnamed = unnamed
        return False

    around(stack, relay_held.Forwarding, "_must_drain", must_drain)
    instead(stack, session.Session, "_has_come", lambda *_: False)


@mutation("a late hop keeps its number", *TIERS)
def _(stack: ExitStack) -> None:
    around(
        stack, next_hop.NextHop, "_late",
        lambda right, *given: right(*given)._replace(is_late=False, nominal=None),
    )  # fmt: skip


@mutation("a late hop is not looked for under its nominal number", *TIERS)
def _(stack: ExitStack) -> None:
    instead(stack, session.Session, "_has_come", lambda *_: False)


@mutation("a relay sends under another name while another has the lease", *HELD)
def _(stack: ExitStack) -> None:
    def of(right: Wrong, *given: Any) -> Any:
        made = right(*given)
        made.is_strangers = lambda *_: True
        return made

    around(stack, hop_producers.HopProducers, "of", of)


@mutation("timers leave at once", *HELD)
def _(stack: ExitStack) -> None:
    def held(right: Wrong, self: Any, read: Any, now_ms: int, arrived_by_ms: int | None = None) -> Any:
        decision = right(self, read, now_ms, arrived_by_ms)
        if isinstance(decision, next_hop.NotYet):
            return right(self, read, decision.until_ms, arrived_by_ms)
        return decision

    around(stack, next_hop.NextHop, "held", held)


@mutation("timers leave half a minute late")
def _(stack: ExitStack) -> None:
    around(stack, next_hop, "release_at", lambda right, *given: right(*given) + 30_000)


@mutation("a relay acknowledges one by one", *HELD)
def _(stack: ExitStack) -> None:
    def acknowledge(_: Wrong, self: Any, command: Any) -> None:
        for receipt in command.receipts:
            self._consumer.acknowledge(receipt)

    around(stack, session.Session, "_acknowledge", acknowledge)


@mutation("a delivery out of a tier that the broker holds is acknowledged before it is stored", *BROKER_HELD)
def _(stack: ExitStack) -> None:
    def forward(right: Wrong, self: Any, command: Any) -> Any:
        if not self._machine.cumulative:
            self._consumer.acknowledge(self._machine._under_way[command.ordinal][0].receipt)
        return right(self, command)

    around(stack, session.Session, "_forward", forward)


@mutation("a tier that the broker holds is routed by the wall clock, a guard ahead", *BROKER_HELD)
def _(stack: ExitStack) -> None:
    def delivered(right: Wrong, self: Any, read: Any, now_ms: int) -> Any:
        return right(self, read._replace(entered_ms=read.entered_ms + 120_000), now_ms)

    around(stack, next_hop.NextHop, "delivered", delivered)


@mutation("what a stopping relay has under way counts as stored", *HELD)
def _(stack: ExitStack) -> None:
    def stopping(right: Wrong, self: Any, left_ms: int, undone: Any = None) -> Any:
        forwarding = self._forwarding
        window = forwarding._window
        for ordinal in range(window._base, window._base + len(window)):
            forwarding.confirmed(ordinal)
        return right(self, left_ms, undone)

    around(stack, relay_held.RelayHeld, "stopping", stopping)


@mutation("a failed delivery out of a tier that the broker holds is forgotten", *BROKER_HELD)
def _(stack: ExitStack) -> None:
    def settle(right: Wrong, self: Any) -> None:
        if self._machine.cumulative:
            right(self)
            return
        ordinals, failures = self._confirmations.take()
        acknowledgement = self._machine.confirmed([*ordinals, *(ordinal for ordinal, _ in failures)])
        if acknowledgement is not None:
            self._acknowledge(acknowledgement)

    around(stack, session.Session, "_settle", settle)


# ------------------------------------------------------------------------------------------------- routes and envelopes


@mutation("a timer stands in the next slot", "a wheel", "two rings")
def _(stack: ExitStack) -> None:
    def route(right: Wrong, self: Any, due_ms: int, *given: Any) -> Any:
        found = right(self, due_ms, *given)
        if isinstance(found, routing.Hold) and not found.stay_ms:
            slot_ms = next(step.slot_ms for step, topics in self._rows if found.topic in topics)
            later = right(self, due_ms + slot_ms, *given)
            return found._replace(topic=later.topic) if isinstance(later, routing.Hold) else found
        return found

    around(stack, routing.Router, "route", route)


@mutation("a hop moves the due time")
def _(stack: ExitStack) -> None:
    def hopped(right: Wrong, self: Any, entered_ms: int) -> Any:
        return right(self._replace(due_ms=self.due_ms + 1_000), entered_ms)

    around(stack, envelope.Envelope, "hopped", hopped)


@mutation("a hop loses the sender's properties")
def _(stack: ExitStack) -> None:
    def carry(right: Wrong, producer: Any, message: Any, callback: Any, properties: Any, **named: Any) -> Any:
        own = {name: value for name, value in properties.items() if name.startswith("tw-")}
        return right(producer, message, callback, own, **named)

    around(stack, hop_producers, "carry", carry)


@mutation("a timer is sent to the topic of a past interval", "a calendar")
def _(stack: ExitStack) -> None:
    def to_due(right: Wrong, self: Any, due_ms: int, at_ms: int, only_for: str = "") -> Any:
        found = right(self, due_ms, at_ms, only_for)
        if self.interval_ms and not only_for:
            return found._replace(topic=self.names.calendar_topic((max(due_ms, at_ms) - 2_400_000) // self.interval_ms))
        return found

    around(stack, routing.Router, "to_due", to_due)


# ---------------------------------------------------------------------------------------------------------- consumers


@mutation("timers are handed out when they come")
def _(stack: ExitStack) -> None:
    around(
        stack, engine.Engine, "_place",
        lambda right, self, timer, now_ms: right(self, timer, max(now_ms, timer.due_ms)),
    )  # fmt: skip


@mutation("a timer is acknowledged when its handler begins")
def _(stack: ExitStack) -> None:
    def begins(right: Wrong, self: Any, timer: Any, **named: Any) -> bool:
        may_begin: bool = right(self, timer, **named)
        if may_begin:
            timer.arrival.origin.acknowledge(timer.arrival.message)
        return may_begin

    around(stack, receiver.Receiver, "begins", begins)


@mutation("a consumer that closes acknowledges what waits in it")
def _(stack: ExitStack) -> None:
    def close(right: Wrong, self: Any) -> None:
        for timer in [*self._engine._in_flight.values()]:
            timer.arrival.origin.acknowledge(timer.arrival.message)
        right(self)

    around(stack, receiver.Receiver, "close", close)


@mutation("handled timers are forgotten")
def _(stack: ExitStack) -> None:
    instead(stack, engine.HandledWindow, "__contains__", lambda *_: False)


@mutation("attempts are not told apart")
def _(stack: ExitStack) -> None:
    instead(stack, engine, "timer_key", lambda read: f"{read.generation}:{read.timer_id}")


@mutation("a lost connection lets go of what handlers have")
def _(stack: ExitStack) -> None:
    instead(stack, engine, "_WAITING", frozenset(Stage))


@mutation("a timer that comes again while it is handled is handed out again")
def _(stack: ExitStack) -> None:
    def received(right: Wrong, self: Any, arrival: Any, *given: Any) -> Any:
        if arrival.envelope is not None:
            self._forget(engine.timer_key(arrival.envelope))
        return right(self, arrival, *given)

    around(stack, engine.Engine, "received", received)


@mutation("a handled timer is not acknowledged")
def _(stack: ExitStack) -> None:
    around(
        stack, engine.Engine, "done",
        lambda right, *given, **named: [
            command for command in right(*given, **named) if not isinstance(command, engine.Acknowledge)
        ],
    )  # fmt: skip


@mutation("an attempt is acknowledged before the next is stored")
def _(stack: ExitStack) -> None:
    def redirected(right: Wrong, self: Any, timer: Any, *given: Any) -> Any:
        return [engine.Acknowledge(timer.arrival), *right(self, timer, *given)]

    around(stack, engine.Engine, "redirected", redirected)


@mutation("an attempt that failed to be stored counts as stored")
def _(stack: ExitStack) -> None:
    around(stack, republisher.Republisher, "_settle", lambda right, self, timer, _: right(self, timer, None))


@mutation("the next attempt goes to all subscriptions")
def _(stack: ExitStack) -> None:
    def hop_of(right: Wrong, router: Any, *given: Any, **named: Any) -> Any:
        hop = right(router, *given, **named)
        life = hop.envelope.life._replace(only_for="")
        topic = router.plan.due_topic if ".retry." in hop.topic else hop.topic
        return hop._replace(topic=topic, envelope=hop.envelope._replace(life=life))

    around(stack, republisher, "retry_hop", hop_of)


@mutation("the next attempt comes at once")
def _(stack: ExitStack) -> None:
    def hop_of(right: Wrong, router: Any, read: Any, whose: str, due_ms: int, now_ms: int, **named: Any) -> Any:
        return right(router, read, whose, now_ms + (due_ms - now_ms) // 50, now_ms, **named)

    around(stack, republisher, "retry_hop", hop_of)


@mutation("a calendar's passed topics are not looked at again", "a calendar")
def _(stack: ExitStack) -> None:
    instead(stack, rolling_topics.RollingTopics, "_schedule_visits", lambda *_: None)
    instead(stack, rolling_topics, "rest_ms", lambda *_: 0)


# ------------------------------------------------------------------------------------------------------------ cancels


@mutation("cancels are not looked at")
def _(stack: ExitStack) -> None:
    instead(stack, cancellations.CancellationTable, "is_cancelled", lambda *_: False)


@mutation("the log of cancellations is not asked before a timer is handed out")
def _(stack: ExitStack) -> None:
    def verdict_on(right: Wrong, *given: Any) -> Any:
        verdict = right(*given)
        return engine.Verdict.HAND if verdict is engine.Verdict.ASK else verdict

    around(stack, engine, "verdict_on", verdict_on)


@mutation("the answer of the log of cancellations is not awaited")
def _(stack: ExitStack) -> None:
    instead(stack, cancellation_log.CancellationLog, "is_answered", lambda *_: True)
    instead(stack, cancellation_log.CancellationLog, "await_answer", lambda *_: True)


@mutation("the log of cancellations is read from its end")
def _(stack: ExitStack) -> None:
    def opened(right: Wrong, self: Any) -> Any:
        if self._position == pulsar.MessageId.earliest:
            self._position = pulsar.MessageId.latest
        return right(self)

    around(stack, cancellation_log.CancellationLog, "_open", opened)


@mutation("every cancel is certain")
def _(stack: ExitStack) -> None:
    for owner in (cancellations, cancel_messages, base_producer):
        if hasattr(owner, "answer_of"):
            instead(stack, owner, "answer_of", lambda *_: Answer.CERTAIN)


@mutation("cancels are forgotten at once")
def _(stack: ExitStack) -> None:
    around(
        stack, cancellations.CancellationTable, "forget",
        lambda right, self, now_ms: right(self, now_ms + 40 * 86_400_000),
    )  # fmt: skip
    instead(stack, cancellation_log, "FORGET_EVERY_MS", 1)


@mutation("a cancel's outcome that is unknown is told as stored")
def _(stack: ExitStack) -> None:
    def evaluate(right: Wrong, self: Any, send: Any) -> Any:
        found = right(self, send)
        return None if send.is_cancel and isinstance(found, Exception) else found

    around(stack, base_producer.BaseProducer, "_evaluate", evaluate)


# ---------------------------------------------------------------------------------------------------------- producers


@mutation("a send without an outcome is told as stored")
def _(stack: ExitStack) -> None:
    def outcome(right: Wrong, *given: Any, **named: Any) -> Any:
        found = right(*given, **named)
        return None if isinstance(found, SendOutcomeUnknown) else found

    around(stack, base_producer, "send_outcome", outcome)


@mutation("a send without an outcome is told as failed")
def _(stack: ExitStack) -> None:
    def outcome(right: Wrong, router: Any, outgoing: Any, *given: Any, **named: Any) -> Any:
        found = right(router, outgoing, *given, **named)
        if isinstance(found, SendOutcomeUnknown):
            return SendFailed(outgoing.timer_id, outgoing.topic, "no answer")
        return found

    around(stack, base_producer, "send_outcome", outcome)


@mutation("a time-out is taken for an answer")
def _(stack: ExitStack) -> None:
    around(
        stack, base_producer, "outcome_of_result",
        lambda right, result, *given, **named: (
            results.Outcome.OK if result.name == "Timeout" else right(result, *given, **named)
        ),
    )  # fmt: skip


@mutation("every timer is sent twice")
def _(stack: ExitStack) -> None:
    def outcome(right: Wrong, router: Any, outgoing: Any, *given: Any, **named: Any) -> Any:
        found = right(router, outgoing, *given, **named)
        if found is None and not named["stored"] and named["attempts"] < 2:
            return outgoing
        return found

    around(stack, base_producer, "send_outcome", outcome)


@mutation("a send keeps the route of the time at which it was prepared", "a calendar")
def _(stack: ExitStack) -> None:
    instead(stack, base_producer.BaseProducer, "_routed_now", lambda _, send: send.outgoing)


def caught_by(name: str, seeds: Sequence[int]) -> tuple[str, int | None, str]:
    """Return the first of the seeds by which a mutation is found, and the promise that it breaks; None: none does."""
    with mutated(name):
        for seed in seeds:
            if SCHEMES[name] and Scenario.drawn(seed).scheme not in SCHEMES[name]:
                continue
            broken = played(seed)[1].broken
            if broken:
                return name, seed, broken[0]
    return name, None, "every promise was kept"
