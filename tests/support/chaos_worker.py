"""The processes that chaos tests kill: a relay or a consumer of one plan.

Run as ``python -m tests.support.chaos_worker``. A worker writes what it does to its ledger, and kills itself with -9
when its fuse has burnt down: at the n-th pass of a named point. Nothing runs between the decision and the kill, so a
test can say where a process died.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pulsar

from tests.support.chaos_ledger import Ledger, now_ms
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.consumers.relay import Relay
from timewheel.consumers.relay.driver.hop_rules import CrashPoint, HopRules
from timewheel.core.envelope import ID_PROPERTY, Envelope
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Plan
from timewheel.wire.positions import Position

__all__ = ["CONSUMER_POINTS", "RELAY_POINTS", "Fuse", "Job", "Role", "RulesName"]

Role = Literal["relay", "consumer"]
RulesName = Literal["right", "batched", "wall clock", "acknowledge first"]

TRACE_VARIABLE = "TIMEWHEEL_CHAOS_TRACE"
"""If set, each worker writes down, beside its ledger, every message that its relay takes, sends and acknowledges."""

BEAT_S = 0.1
"""Between an answer of the broker and the next question: as long as the client keeps acknowledgements together."""

RELAY_POINTS: tuple[CrashPoint, ...] = (
    "at_takeover",
    "before_forward",
    "between_publish_confirmed_and_ack",
    "after_ack",
)
CONSUMER_POINTS = ("in_handler", "between_handled_and_ack", "after_ack")
"""``in_handler``: handed out, the handler did nothing yet. ``between_handled_and_ack``: the handler's work is done.
``after_ack``: the acknowledgement returned to the caller; the client sends it up to 100 ms later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuse:
    """When a process kills itself.

    Args:
        point: A named point.
        passes: At which pass of it, from 1.
        linger_ms: How long the passing thread waits there first, so that what was handed to the client is on its way.
    """

    point: str
    passes: int
    linger_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process does.

    Args:
        role: Which kind of process.
        name: Of the process, unique among those that run at once.
        service_url: The broker.
        plan: The plan file.
        ledger: Where to write what it does.
        subscription: Of a consumer.
        embedded: Whether a consumer runs the plan's relay as well.
        fuse: When to die; None: when somebody kills it.
        hop_rules: The rules by which a relay hops; anything but "right" is a control.
        batch: Of the rules "batched": how many messages a batch takes.
        stalled: Sends to topics with this in their names stay in the client, as while such a topic is unloaded.
    """

    role: Role
    name: str
    service_url: str
    plan: str
    ledger: str
    subscription: str = ""
    embedded: bool = False
    fuse: Fuse | None = None
    hop_rules: RulesName = "right"
    batch: int = 1_000
    stalled: str | None = None

    def arguments(self) -> list[str]:
        """The command line that does it."""
        return [sys.executable, "-m", "tests.support.chaos_worker", json.dumps(asdict(self))]

    @classmethod
    def read(cls, text: str) -> Job:
        fields = json.loads(text)
        fuse = fields.pop("fuse")
        return cls(**fields, fuse=None if fuse is None else Fuse(**fuse))


class _Burning:
    """Counts passes, from any thread, and kills the process when its fuse has burnt down."""

    def __init__(self, fuse: Fuse | None, ledger: Ledger) -> None:
        self._fuse = fuse
        self._ledger = ledger
        self._passes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        fuse = self._fuse
        if fuse is None or fuse.point != point:
            return
        with self._lock:
            self._passes[point] += 1
            if self._passes[point] != fuse.passes:
                return
        time.sleep(fuse.linger_ms / 1000)
        self._ledger.dying(point, fuse.passes)
        os.kill(os.getpid(), signal.SIGKILL)


class _HopRules(HopRules):
    """The right rules with crash points, or some that lose (broker-facts: exact-hops)."""

    def __init__(self, job: Job, burning: _Burning) -> None:
        self._job = job
        self._burning = burning
        if job.hop_rules == "acknowledge first":
            self.acknowledges_first = True
        if job.hop_rules == "wall clock":
            self.routing_time = _wall_clock

    def named_producer_options(self) -> dict[str, Any]:
        if self._job.hop_rules != "batched":
            return HopRules.named_producer_options(self)
        return {
            "batching_enabled": True,
            "batching_max_messages": self._job.batch,
            "batching_max_publish_delay_ms": 20,
        }

    def crash_point(self, name: CrashPoint) -> None:
        self._burning(name)


def _wall_clock(nominal_ms: int, now_ms: int) -> int:
    del nominal_ms
    return now_ms


class _Through:
    """Hands everything on to the client's own object; subclasses look on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Client(_Through):
    """A client whose business acknowledgements are written down, and whose sends may be held back."""

    def __init__(self, inner: Any, job: Job, ledger: Ledger, acknowledged: Callable[[Any], None]) -> None:
        super().__init__(inner)
        self._job = job
        self._ledger = ledger
        self._acknowledged = acknowledged
        self._trace = _Trace(Path(job.ledger).with_suffix(".trace")) if os.environ.get(TRACE_VARIABLE) else None

    def subscribe(self, topic: Any, subscription_name: str, **options: Any) -> Any:
        consumer = self._inner.subscribe(topic, subscription_name, **options)
        if self._trace is not None and subscription_name == RELAY_SUBSCRIPTION:
            return _TracedConsumer(consumer, topic, self._trace)
        return _Consumer(consumer, self._acknowledged) if subscription_name == self._job.subscription else consumer

    def create_producer(self, topic: str, **options: Any) -> Any:
        name = options.get("producer_name", "")
        producer = _Producer(self._inner.create_producer(topic, **options), name, self._ledger)
        if self._trace is not None:
            return _TracedProducer(producer, topic, name, self._trace)
        return _Stalled(producer) if self._job.stalled is not None and self._job.stalled in topic else producer


class _Consumer(_Through):
    def __init__(self, inner: Any, acknowledged: Callable[[Any], None]) -> None:
        super().__init__(inner)
        self._acknowledged = acknowledged

    def acknowledge(self, message: Any) -> None:
        self._inner.acknowledge(message)
        self._acknowledged(message)


class _Producer(_Through):
    """Writes down every hop before it goes."""

    def __init__(self, inner: Any, name: str, ledger: Ledger) -> None:
        super().__init__(inner)
        self._name = name
        self._ledger = ledger

    def send_async(self, content: Any, callback: Any, **options: Any) -> None:
        envelope = Envelope.read(options["properties"])
        if envelope is not None:
            sequence_id = options.get("sequence_id") or 0
            self._ledger.hop(envelope.timer_id, envelope.hops, self._name if sequence_id else "", sequence_id)
        self._inner.send_async(content, callback, **options)


class _Stalled(_Through):
    def send_async(self, *_: Any, **__: Any) -> None:
        """Taken, and never on its way: the process dies before the topic is back."""


class _Trace:
    """What a relay does with every message, beside the ledger: to find out how a timer went missing."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, what: str, topic: str, *words: object) -> None:
        line = f"{now_ms()} {os.getpid()} {what} {topic.rsplit('/', 1)[1]} {' '.join(map(str, words))}\n"
        os.write(self._fd, line.encode())


class _TracedConsumer(_Through):
    def __init__(self, inner: Any, topic: str, trace: _Trace) -> None:
        super().__init__(inner)
        self._topic, self._trace = topic, trace
        trace("subscribed", topic)

    def receive(self, timeout_millis: int | None = None) -> Any:
        message = self._inner.receive(timeout_millis)
        self._trace("received", self._topic, *Position.of(message.message_id()), message.properties()[ID_PROPERTY])
        return message

    def acknowledge_cumulative(self, message: Any) -> None:
        self._inner.acknowledge_cumulative(message)
        self._trace("acknowledged", self._topic, *Position.of(message))

    def close(self) -> None:
        self._trace("closing", self._topic)
        self._inner.close()


class _TracedProducer(_Through):
    def __init__(self, inner: Any, topic: str, name: str, trace: _Trace) -> None:
        super().__init__(inner)
        self._topic, self._name, self._trace = topic, name, trace
        trace("opened", topic, name)

    def send_async(self, content: Any, callback: Any, **options: Any) -> None:
        sequence_id = options.get("sequence_id") or 0
        words = sequence_id >> 32, sequence_id >> 12 & 0xFFFFF, (sequence_id & 0xFFF) - 1
        timer_id = options["properties"][ID_PROPERTY]

        def told(result: Any, message_id: Any) -> None:
            position = Position.of(message_id) if not result.value else ""
            self._trace("stored", self._topic, *words, timer_id, result.name, position)
            callback(result, message_id)

        self._trace("sent", self._topic, *words, timer_id, self._name)
        self._inner.send_async(content, told, **options)

    def close(self) -> None:
        self._trace("closes", self._topic, self._name)
        self._inner.close()


def _relay(job: Job, client: Any, plan: Plan, burning: _Burning, ledger: Ledger) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    relay = Relay(client, plan, relay_id=job.name, hop_rules=_HopRules(job, burning))
    with relay:
        ledger.ready()
        ended.wait()


def _beat(client: Any, plan: Plan, ledger: Ledger, ended: threading.Event) -> None:
    """Ask the broker something again and again, on the connection that the acknowledgements take, behind them.

    So a test knows what has passed between an acknowledgement and a kill in turns that this process and the broker had,
    and not in milliseconds, which on a busy machine may go by without any.
    """
    while not ended.wait(BEAT_S):
        client.get_topic_partitions(plan.due_topic)
        ledger.beat()


def _consume(job: Job, client: Any, plan: Plan, burning: _Burning, ledger: Ledger) -> None:
    def handle(message: DelayedMessage) -> None:
        burning("in_handler")
        assert message.timer_id is not None, f"a message without an envelope: {message}"
        assert message.due_at is not None
        assert message.generation is not None
        due_ms = round(message.due_at.timestamp() * 1000)
        position = Position.of(message.message_id())
        ledger.handled(message.timer_id, message.generation, position, message.hops, due_ms)
        burning("between_handled_and_ack")

    with DelayedConsumer(client, plan, job.subscription, relay=job.embedded) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        ledger.ready()
        ended = threading.Event()
        heart = threading.Thread(target=_beat, args=(client, plan, ledger, ended), name="heart", daemon=True)
        heart.start()
        try:
            consumer.run(handle, workers=2)
        finally:
            ended.set()
            heart.join()


def main() -> None:
    job = Job.read(sys.argv[1])
    ledger = Ledger(Path(job.ledger))
    burning = _Burning(job.fuse, ledger)

    def acknowledged(message: Any) -> None:
        ledger.acknowledged(Position.of(message.message_id()))
        burning("after_ack")

    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(job.service_url, logger=quiet, operation_timeout_seconds=10)
    watched = _Client(client, job, ledger, acknowledged)
    plan = Plan.load(job.plan)
    if job.role == "relay":
        _relay(job, watched, plan, burning, ledger)
    else:
        _consume(job, watched, plan, burning, ledger)
    client.close()


if __name__ == "__main__":
    main()
