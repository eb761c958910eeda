"""The processes that chaos tests kill: a relay or a consumer of a plan.

Run as ``python -m tests.support.chaos_worker``. A worker records its operations in its ledger, and kills itself with -9
when its fuse has burnt down: at the n-th pass of a named point. No code runs between the decision and the kill, so a
test knows where a process died.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pulsar

from tests.support.chaos_client import Stalled, traced
from tests.support.chaos_ledger import Acknowledged, Beat, Dying, Failed, Handled, Hop, Ledger, Ready, ready_file
from tests.support.replica import HoldRules, break_holds
from tests.support.through import AroundAcks, BeforeSends, ThroughClient
from tests.support.wrong_cuts import CutRules, break_rules
from tests.support.wrong_hops import WRONG_GROUPS, HopClient, RulesName, WallClock
from tests.support.wrong_producers import ProducerRules, break_producers
from timewheel.broker.admin import AdminClient
from timewheel.cli.app import main as command
from timewheel.client.positions import Position
from timewheel.consumers import DelayedConsumer, DelayedMessage, FixedBackoff, RetryPolicy
from timewheel.consumers.inbox import SqliteInbox
from timewheel.core.envelope import Envelope
from timewheel.core.grouping import default_linger_ms
from timewheel.core.plan import Plan
from timewheel.provision import FormerTopics
from timewheel.relay import Relay, compactor
from timewheel.relay.driver import former_topic_drainer, hop_producers, partition

Role = Literal["relay", "service", "consumer"]
"""A service is the command `timewheel relay run` itself; only its client is watched."""

TRACE_VARIABLE = "TIMEWHEEL_CHAOS_TRACE"
"""If set, each worker records, beside its ledger, every message that its relay receives, sends and acknowledges."""

LOOK_MS = 1_000  # interval of looks for a relay that can list topics; days are seconds here

PLAIN = "plain"  # the subscription of plain clients

BACKOFF = dt.timedelta(seconds=3)
Handler = Callable[[DelayedMessage], None]

BEAT_S = 0.1
"""Time between an answer of the broker and the next request: as long as the client batches acknowledgements."""

CONSUMER_POINTS = ("in_handler", "between_handled_and_ack", "after_ack")
"""``in_handler``: the handler has the message, and did nothing yet. ``between_handled_and_ack``: the handler's work is
done. ``after_ack``: the acknowledgement returned to the caller; the client sends it up to 100 ms later.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuse:
    """When a process kills itself."""

    point: str  # a named point
    passes: int  # the pass of this point, from 1
    # how long the passing thread waits first, so that messages that were passed to the client are sent
    linger_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of a process."""

    role: Role  # the kind of process
    name: str  # name of the process, unique among processes that run at the same time
    service_url: str  # the broker
    plans: tuple[str, ...]  # the plan files. A consumer serves all of them with one client, as a service does.
    ledger: str  # the ledger file
    subscription: str = ""  # subscription of a consumer
    embedded: bool = False  # whether a consumer also runs the plan's relay
    fuse: Fuse | None = None  # when to die; None: only when killed from outside
    hop_rules: RulesName = "right"  # the rules by which a relay hops; any value but "right" is a control
    cut_rules: CutRules = "right"  # the rules by which cancellations count; any value but "right" is a control
    # highest number of hops that go together; 0: drawn at random, together with the time that they wait for each other,
    # so that each life of a relay cuts its groups elsewhere
    group: int = 0
    # sends to topics with this text in their names stay in the client, as while such a topic is unloaded
    stalled: str | None = None
    admin_url: str = ""  # lets a relay list topics, as every service can; empty: the relay cannot list topics
    options: tuple[str, ...] = ()  # further options of a service's command
    # a consumer's handler fails at the first attempt of one timer in so many of the plans with ``retry``; 0: never
    fails: int = 0
    # the plan files whose timers a consumer claims in an inbox, a file beside the plan for all processes
    inbox: tuple[str, ...] = ()
    # the plan files whose due topics plain clients read beside, as a measure of what is handled twice; in the ledger
    # their timers' ids begin with `PLAIN`
    plain: tuple[str, ...] = ()
    producer_rules: ProducerRules = "right"  # the rules by which a consumer's producers outlive an outage
    hold_rules: HoldRules = "right"  # the rules by which a consumer keeps timers when their topic moves

    def arguments(self) -> list[str]:
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
        self._ledger.record(Dying, point, fuse.passes)
        os.kill(os.getpid(), signal.SIGKILL)


def _relay(job: Job, client: Any, burning: _Burning, ledger: Ledger) -> None:
    (plan,) = map(Plan.load, job.plans)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    if job.hop_rules == "wall clock":
        partition.NextHop = WallClock  # type: ignore[attr-defined]
    hop_producers.HopBatch = WRONG_GROUPS.get(job.hop_rules, hop_producers.HopBatch)  # type: ignore[misc]
    rng = random.Random(os.getpid())
    hop_producers.GROUP_MESSAGES = job.group or rng.choice([1, 3, 20, 100, 500, 1_000])  # type: ignore[attr-defined]
    linger_ms = default_linger_ms(plan.guard_ms) if job.group else min(rng.choice([0, 5, 20, 100]), plan.guard_ms)
    # Low limits, so that the log of cancellations is packed often.
    compactor.LEAST_LOOSE, compactor.LOOK_EVERY_MS = 200, 300
    hopping: Any = HopClient(client, burning, job.hop_rules)
    with ExitStack() as stack:
        look = None
        if job.admin_url:
            former_topic_drainer.LOOK_MS = LOOK_MS
            look = FormerTopics(stack.enter_context(AdminClient(job.admin_url)), plan)
        stack.enter_context(Relay(hopping, plan, relay_id=job.name, hop_linger_ms=linger_ms, former_topics=look))
        ledger.record(Ready)
        ended.wait()


def _serve(job: Job, watch: Callable[[Any], Any]) -> None:
    make = pulsar.Client
    pulsar.Client = lambda *args, **options: watch(make(*args, **options))
    sys.argv[1:] = [
        "relay", "run", *job.plans, "--service-url", job.service_url, "--admin-url", job.admin_url,
        "--relay-id", job.name, "--ready-file", str(ready_file(Path(job.ledger))),
        *job.options,
    ]  # fmt: skip
    command()


def _beat(client: Any, plan: Plan, ledger: Ledger, ended: threading.Event) -> None:
    """Send requests to the broker in a loop, on the connection of the acknowledgements, behind them.

    So a test measures the time between an acknowledgement and a kill in round trips of this process and the broker, not
    in milliseconds: on a busy machine, time may pass without a round trip.
    """
    while not ended.wait(BEAT_S):
        with suppress(pulsar.PulsarException):  # its broker is away
            client.get_topic_partitions(plan.due_topic)
            ledger.record(Beat)


def _consumer(job: Job, client: Any, path: str, burning: _Burning, ledger: Ledger) -> tuple[DelayedConsumer, Handler]:
    plan = Plan.load(path)

    def handle(message: DelayedMessage) -> None:
        burning("in_handler")
        assert message.timer_id is not None, f"a message without an envelope: {message}"
        assert message.due_at is not None
        assert message.generation is not None
        due_ms = round(message.due_at.timestamp() * 1000)
        topic = message.topic_name().rpartition("/")[2]
        if retry is not None and message.attempt == 0 and zlib.crc32(message.timer_id.encode()) % job.fails == 0:
            ledger.record(Failed, message.timer_id, due_ms, topic)
            raise ValueError("the first attempt fails")
        position = Position.of(message.message_id())
        ledger.record(Handled, message.timer_id, message.generation, position, message.hops, due_ms, topic)
        burning("between_handled_and_ack")

    retry = RetryPolicy(max_attempts=5, backoff=FixedBackoff(BACKOFF)) if plan.retry and job.fails else None
    inbox = SqliteInbox(Path(path).with_suffix(".inbox")) if path in job.inbox else None
    made = DelayedConsumer(client, plan, job.subscription, relay=job.embedded, retry=retry, inbox=inbox)
    return made, handle


def _read_plainly(client: Any, path: str, ledger: Ledger, ended: threading.Event) -> None:
    topic = Plan.load(path).due_topic
    consumer = client.subscribe(topic, PLAIN, consumer_type=pulsar.ConsumerType.Shared)
    while not ended.is_set():
        with suppress(pulsar.PulsarException):
            message = consumer.receive(200)
            timer, position = Envelope.read(message.properties()), Position.of(message.message_id())
            assert timer is not None
            timer_id, topic = f"{PLAIN}-{timer.timer_id}", message.topic_name()
            ledger.record(Handled, timer_id, timer.generation, position, timer.hops, timer.due_ms, topic)
            consumer.acknowledge(message)


def _consume(job: Job, client: Any, burning: _Burning, ledger: Ledger) -> None:
    ended = threading.Event()
    with ExitStack() as stack:
        made = [_consumer(job, client, path, burning, ledger) for path in job.plans]
        consumers = [stack.enter_context(consumer) for consumer, _ in made]

        def stop(*_: object) -> None:
            for consumer in consumers:
                consumer.stop()

        def run(pair: tuple[DelayedConsumer, Handler]) -> None:
            consumer, handle = pair
            try:
                consumer.run(handle, workers=2, stops_on_signals=False)
            finally:
                stop()  # a process that serves some of its plans only would hide the failure

        signal.signal(signal.SIGTERM, stop)
        ledger.record(Ready)
        beside = [threading.Thread(target=_beat, args=(client, consumers[0].plan, ledger, ended), daemon=True)]
        beside += [
            threading.Thread(target=_read_plainly, args=(client, path, ledger, ended), daemon=True)
            for path in job.plain
        ]
        for thread in beside:
            thread.start()
        try:
            with ThreadPoolExecutor(len(made), thread_name_prefix="run") as threads:
                for _ in threads.map(run, made):
                    pass
        finally:
            ended.set()
            for thread in beside:
                thread.join()


def _watched(job: Job, client: Any, burning: _Burning, ledger: Ledger) -> ThroughClient:
    """Return a client that records hops and business acknowledgements, and can hold back sends."""

    def acknowledged(message: Any) -> None:
        ledger.record(Acknowledged, Position.of(message.message_id()))
        burning("after_ack")

    def consumer(made: Any, _: Any, subscription: str) -> Any:
        ours = subscription == job.subscription
        return AroundAcks(made, lambda _: None, acknowledged) if ours else made

    def producer(made: Any, topic: str, name: str) -> Any:
        def hopping(options: dict[str, Any]) -> None:
            envelope = Envelope.read(options["properties"])
            if envelope is not None:
                sequence_id = options.get("sequence_id") or 0
                ledger.record(Hop, envelope.timer_id, envelope.hops, name if sequence_id else "", sequence_id)

        recording = BeforeSends(made, hopping)
        return Stalled(recording) if job.stalled is not None and job.stalled in topic else recording

    watched = ThroughClient(client, consumer=consumer, producer=producer)
    return traced(watched, Path(job.ledger).with_suffix(".trace")) if os.environ.get(TRACE_VARIABLE) else watched


def main() -> None:
    job = Job.read(sys.argv[1])
    ledger = Ledger(Path(job.ledger))
    burning = _Burning(job.fuse, ledger)
    if job.role == "service":
        _serve(job, lambda client: _watched(job, client, burning, ledger))
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")  # events, in the post's log
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(job.service_url, logger=quiet, operation_timeout_seconds=10)
    break_rules(job.cut_rules)
    break_producers(job.producer_rules)
    break_holds(job.hold_rules)
    run = _relay if job.role == "relay" else _consume
    run(job, _watched(job, client, burning, ledger), burning, ledger)
    client.close()


if __name__ == "__main__":
    main()
