"""How fast are a million timers of one second handled?

They are sent by one `DelayedProducer`, pass two tiers and the due topic of four partitions by `timewheel relay run`,
and one `DelayedConsumer` in a process of its own handles them one after the other. Before that, in the same run, as
many messages go by pulsar-client's `deliver_at` into a topic of four partitions, and to its own Shared consumer. A
thousand more are due evenly over the time after the herd, and must not pass it. Told is how many a second are handled,
from the first due time to the last of the herd; how late they are; by how much any comes after one that is due later;
and the most memory that each process had.

Goals: at least 0.8 of the raw client's timers a second; order kept within a second; none lost, none twice, none early;
the consumer at most 100 MB above the raw one, the relay at most its budget and 100 MB.
"""

from __future__ import annotations

import array
import multiprocessing
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import psutil
import pulsar

from benchmarks.result import Result
from benchmarks.service import connected, now_ms, peak_mb, provisioned, running_relays, service
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core import Native, Plan, Tiered
from timewheel.errors import TimewheelError
from timewheel.producers import DelayedProducer, Timer
from timewheel.testing import Broker

SHOWN = frozenset(("of raw", "all late, s", "passed by, s", "lost", "twice", "early", "consumer MB", "relay MB"))
SEED = 11
PARTITIONS = 4
PAYLOAD = bytes(200)
LATER = 1_000
HERD_MS = 1_000
BUDGET_MB = 512
GOAL_OF_RAW = 0.8
GOAL_MORE_MB = 100
QUIET_MS = 20_000  # nothing came for so long: what is missing is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of one run."""

    timers: int  # of the herd
    unit_ms: int  # window and shorter tier are two of these, the longer tier is four; the herd is due after eight

    @property
    def tiers(self) -> Tiered:
        return Tiered(window_ms=2 * self.unit_ms, tiers_ms=(2 * self.unit_ms, 4 * self.unit_ms))

    @property
    def lead_ms(self) -> int:
        return 8 * self.unit_ms

    def dues_ms(self, first_ms: int) -> array.array[int]:
        """All due times: the herd's, then the later ones."""
        rng = random.Random(SEED)
        herd = (first_ms + rng.randrange(HERD_MS) for _ in range(self.timers))
        later = (first_ms + HERD_MS + number * self.unit_ms // LATER for number in range(LATER))
        return array.array("q", [*herd, *later])


FULL, QUICK = Size(timers=1_000_000, unit_ms=60_000), Size(timers=10_000, unit_ms=5_000)


class Seen(NamedTuple):
    """What a consumer's process found.

    Attributes:
        timers: Different ones that were handled.
        twice: Handled again.
        early: Before their due time.
        per_s: Handled a second, from the first due time to the last that was handled.
        late_s: How late, in seconds: for 10 %, half, 90 % and all of the herd.
        passed_s: At most so much later was the due time of one that was handled before another.
        mb: The most memory that the process had.
    """

    timers: int
    twice: int
    early: int
    per_s: float
    late_s: tuple[float, ...]
    passed_s: float
    mb: float


class Clocked:
    """Notes every timer as it is handled, in little memory."""

    def __init__(self, timers: int) -> None:
        self._seen = bytearray(timers)
        self._herd_late_ms = array.array("q")
        self._herd = timers - LATER
        self._first_due_ms, self._last_due_ms, self._passed_ms, self._last_ms = 1 << 62, 0, 0, 0
        self._missing, self._twice, self._early = timers, 0, 0

    def note(self, number: int, due_ms: int) -> bool:
        """Whether any is missing still."""
        at_ms = now_ms()
        self._early += at_ms < due_ms
        if self._seen[number]:
            self._twice += 1
            return bool(self._missing)
        self._seen[number] = 1
        self._missing -= 1
        if due_ms < self._last_due_ms:
            self._passed_ms = max(self._passed_ms, self._last_due_ms - due_ms)
        else:
            self._last_due_ms = due_ms
        if number < self._herd:
            self._first_due_ms, self._last_ms = min(self._first_due_ms, due_ms), at_ms
            self._herd_late_ms.append(at_ms - due_ms)
        return bool(self._missing)

    def seen(self) -> Seen:
        late_ms = sorted(self._herd_late_ms) or [0]
        took_s = max(self._last_ms - self._first_due_ms, 1) / 1000
        return Seen(
            timers=len(self._seen) - self._missing,
            twice=self._twice,
            early=self._early,
            per_s=len(self._herd_late_ms) / took_s,
            late_s=tuple(
                late_ms[min(len(late_ms) * tenths // 10, len(late_ms) - 1)] / 1000 for tenths in (1, 5, 9, 10)
            ),
            passed_s=self._passed_ms / 1000,
            mb=peak_mb(psutil.Process()),
        )


def read_raw(client: Any, plan: Plan, clocked: Clocked, ready: Callable[[], None], patience_ms: int) -> None:
    consumer = client.subscribe(plan.due_topic, "bench", consumer_type=pulsar.ConsumerType.Shared)
    ready()
    with suppress(pulsar.Timeout):
        missing = True
        while missing:
            message = consumer.receive(timeout_millis=patience_ms)
            patience_ms = QUIET_MS
            properties = message.properties()
            missing = clocked.note(int(properties["number"]), int(properties["due"]))
            consumer.acknowledge(message)
    consumer.close()


def read_ours(client: Any, plan: Plan, clocked: Clocked, ready: Callable[[], None], patience_ms: int) -> None:
    with DelayedConsumer(client, plan, "bench") as consumer:
        ready()
        with suppress(TimeoutError):
            missing = True
            while missing:
                message: DelayedMessage = consumer.receive(timeout_millis=patience_ms)
                patience_ms = QUIET_MS
                properties = message.properties()
                missing = clocked.note(int(properties["number"]), int(properties["due"]))
                consumer.acknowledge(message)


Reader = Callable[[Any, Plan, Clocked, Callable[[], None], int], None]


def in_child(reader: Reader, url: str, plan: Plan, timers: int, patience_ms: int, pipe: Any) -> None:
    """Read in this process, and send what was seen."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    clocked = Clocked(timers)
    reader(client, plan, clocked, lambda: pipe.send("ready"), patience_ms)
    pipe.send(clocked.seen())
    client.close()


def play(broker: Broker, reader: Reader, plan: Plan, size: Size, send: Callable[[array.array[int]], None]) -> Seen:
    """Send a herd to a reader in a process of its own."""
    context = multiprocessing.get_context("spawn")  # a client does not outlive a fork
    ours, theirs = context.Pipe()
    arguments = (reader, broker.service_url, plan, size.timers + LATER, size.lead_ms + QUIET_MS, theirs)
    process = context.Process(target=in_child, args=arguments)
    process.start()
    theirs.close()
    try:
        assert ours.recv() == "ready"
        dues_ms = size.dues_ms(now_ms() + size.lead_ms)
        send(dues_ms)
        if now_ms() > dues_ms[0] - HERD_MS:
            raise RuntimeError("not all were sent before the first was due: this machine needs a longer unit")
        seen: Seen = ours.recv()
        return seen
    finally:
        process.terminate()
        process.join()


def send_raw(client: Any, plan: Plan, dues_ms: array.array[int]) -> None:
    producer = client.create_producer(plan.due_topic, block_if_queue_full=True)
    for number, due_ms in enumerate(dues_ms):
        properties = {"number": str(number), "due": str(due_ms)}
        producer.send_async(PAYLOAD, lambda *_: None, properties=properties, deliver_at=due_ms)
    producer.flush()
    producer.close()


def send_ours(client: Any, plan: Plan, dues_ms: array.array[int]) -> None:
    refused = threading.Event()

    def sent(error: TimewheelError | None, _: Timer) -> None:
        if error is not None:
            refused.set()

    with DelayedProducer(client, plan) as producer:
        for number, due_ms in enumerate(dues_ms):
            properties = {"number": str(number), "due": str(due_ms)}
            producer.send_async(PAYLOAD, sent, properties=properties, deliver_at=due_ms)
    if refused.is_set():
        raise RuntimeError("sends failed: what is missing was never stored")


def result(subject: str, seen: Seen, size: Size, raw: Seen | None = None, relay_mb: float = 0.0) -> Result:
    """One row; with the goals if there is a raw one to compare with."""
    of_raw = seen.per_s / raw.per_s if raw else 1.0
    lost = size.timers + LATER - seen.timers
    cached = not (lost or seen.twice or seen.early)
    small = raw is None or (seen.mb <= raw.mb + GOAL_MORE_MB and relay_mb <= BUDGET_MB + GOAL_MORE_MB)
    return Result(
        question="herd",
        subject=subject,
        figures={
            "timers/s": seen.per_s,
            "of raw": of_raw,
            **{
                f"{share} late, s": late_s
                for share, late_s in zip(("10 %", "50 %", "90 %", "all"), seen.late_s, strict=True)
            },
            "passed by, s": seen.passed_s,
            "lost": lost,
            "twice": seen.twice,
            "early": seen.early,
            "consumer MB": seen.mb,
            "relay MB": relay_mb or "",
        },
        goal=f"at least {GOAL_OF_RAW} of raw, passed by at most 1 s, memory" if raw else "",
        met=(of_raw >= GOAL_OF_RAW and seen.passed_s <= 1 and cached and small) if raw else None,
    )


def main(quick: bool = False) -> list[Result]:
    size = QUICK if quick else FULL
    with service() as broker, connected(broker) as client:
        plan = provisioned(broker, "herd-raw", Native(), partitions=PARTITIONS)
        raw = play(broker, read_raw, plan, size, lambda dues_ms: send_raw(client, plan, dues_ms))
        found = [result("raw pulsar-client", raw, size)]
        tiered = provisioned(
            broker,
            "herd",
            size.tiers,
            partitions=PARTITIONS,
            relay="service",
            max_delay_ms=20 * size.unit_ms,
            guard_ms=size.unit_ms // 2,
        )
        with running_relays(broker, tiered, "--memory-mb", str(BUDGET_MB)) as (relay,):
            ours = play(broker, read_ours, tiered, size, lambda dues_ms: send_ours(client, tiered, dues_ms))
            found.append(result("timewheel, two tiers", ours, size, raw, peak_mb(relay)))
    return found
