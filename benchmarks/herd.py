"""How fast are a million timers of one second handled?

They are sent by one `DelayedProducer`, pass two tiers and the due topic of four partitions by two processes of
`timewheel relay run`, and one `DelayedConsumer` in a process of its own handles them one after the other. Before that,
in the same run, as many messages go by pulsar-client's `deliver_at` into a topic of four partitions, and to its own
Shared consumer. A thousand more are due evenly over the time after the herd, and must not pass it. Told is how many a
second are handled, from the first due time to the last of the herd; how late they are; by how much any comes after one
that is due later; the CPU of the consumers' processes for each; and the most memory that a process had. Due times are
those that the sender wrote into a property of its own. The same with a herd of a hundred thousand, and once more for
three consumers.

Goals: of the raw timers a second at least 0.8 with a million, 0.9 with a hundred thousand; order kept within a
second; none lost, none twice, none early; each of three consumers handles a quarter or more; a consumer at most 100 MB
above the raw one, a relay at most its budget and 100 MB.
"""

from __future__ import annotations

import array
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import psutil
import pulsar

from benchmarks.result import Result
from benchmarks.service import connected, now_ms, peak_mb, provisioned, running_relays, service
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core import Native, Plan, Tiered
from timewheel.errors import TimewheelError
from timewheel.producers import DelayedProducer, Timer
from timewheel.testing import Broker

SHOWN = frozenset(("of raw", "all late, s", "passed by, s", "least share", "lost", "twice", "early", "CPU us"))
HIDDEN = ("raw pulsar-client",)
SEED = 11
PARTITIONS = 4
PAYLOAD = bytes(200)
LATER = 1_000
HERD_MS = 1_000
BUDGET_MB = 512
LEAST_SHARE = 0.25  # of three consumers
RELAYS, REPLICAS = 2, 3  # processes
SHARED = 100_000  # a herd of at most so many is also handled by several consumers
GOAL_MORE_MB = 100
QUIET_MS = 20_000  # nothing came for so long: what is missing is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of one run."""

    timers: int  # of the herd
    goal: float  # of raw's timers a second
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


FULL = (Size(timers=100_000, unit_ms=8_000, goal=0.9), Size(timers=1_000_000, unit_ms=60_000, goal=0.8))
QUICK = (Size(timers=10_000, unit_ms=5_000, goal=0.9),)


class Clocked:
    """Notes every timer as it is handled by a process, in little memory."""

    def __init__(self, timers: int) -> None:
        self.seen = bytearray(timers)  # how often, by number
        self.herd_late_ms = array.array("q")
        self.first_due_ms, self.last_ms, self.passed_ms = 1 << 62, 0, 0
        self.early = self.handled = 0
        self.mb = self.cpu_s = 0.0
        self._herd = timers - LATER
        self._last_due_ms = 0

    def note(self, number: int, due_ms: int) -> bool:
        """Whether any is missing still."""
        at_ms = now_ms()
        self.early += at_ms < due_ms
        self.seen[number] += 1
        if self.seen[number] > 1:
            return True
        self.handled += 1
        if due_ms < self._last_due_ms:
            self.passed_ms = max(self.passed_ms, self._last_due_ms - due_ms)
        else:
            self._last_due_ms = due_ms
        if number < self._herd:
            self.first_due_ms, self.last_ms = min(self.first_due_ms, due_ms), at_ms
            self.herd_late_ms.append(at_ms - due_ms)
        return self.handled < len(self.seen)

    def ended(self) -> Self:
        self.mb, self.cpu_s = peak_mb(psutil.Process()), time.process_time()
        return self


class Seen(NamedTuple):
    """What the consumers' processes found.

    Attributes:
        timers: Different ones that were handled.
        twice: Handled again, by whomever.
        early: Before their due time.
        per_s: Handled a second, from the first due time to the last that was handled.
        late_s: How late, in seconds: for 10 %, half, 90 % and all of the herd.
        passed_s: At most so much later was the due time of one that was handled before another by the same process.
        least_share: The least part of all that a process handled.
        cpu_us: CPU of all processes for each.
        mb: The most memory that a process had.
    """

    timers: int
    twice: int
    early: int
    per_s: float
    late_s: tuple[float, ...]
    passed_s: float
    least_share: float
    cpu_us: float
    mb: float

    @classmethod
    def by(cls, processes: Sequence[Clocked]) -> Self:
        times = np.sum([np.frombuffer(one.seen, np.uint8) for one in processes], axis=0)
        late_ms = np.sort(np.concatenate([np.frombuffer(one.herd_late_ms, np.int64) for one in processes]))
        if not len(late_ms):
            late_ms = np.zeros(1, np.int64)
        took_ms = max(one.last_ms for one in processes) - min(one.first_due_ms for one in processes)
        handled = max(sum(one.handled for one in processes), 1)
        return cls(
            timers=int(np.count_nonzero(times)),
            twice=int(times.sum() - np.count_nonzero(times)),
            early=sum(one.early for one in processes),
            per_s=len(late_ms) / max(took_ms, 1) * 1000,
            late_s=tuple(
                float(late_ms[min(len(late_ms) * tenths // 10, len(late_ms) - 1)]) / 1000 for tenths in (1, 5, 9, 10)
            ),
            passed_s=max(one.passed_ms for one in processes) / 1000,
            least_share=min(one.handled for one in processes) / handled,
            cpu_us=sum(one.cpu_s for one in processes) / handled * 1e6,
            mb=max(one.mb for one in processes),
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
    pipe.send(clocked.ended())
    client.close()


def play(
    broker: Broker,
    reader: Reader,
    plan: Plan,
    size: Size,
    send: Callable[[array.array[int]], None],
    *,
    processes: int = 1,
) -> Seen:
    """Send a herd to readers in processes of their own."""
    context = multiprocessing.get_context("spawn")  # a client does not outlive a fork
    pipes = [context.Pipe() for _ in range(processes)]
    arguments = (reader, broker.service_url, plan, size.timers + LATER, size.lead_ms + QUIET_MS)
    children = [context.Process(target=in_child, args=(*arguments, theirs)) for _, theirs in pipes]
    for child in children:
        child.start()
    for _, theirs in pipes:
        theirs.close()
    try:
        assert all(ours.recv() == "ready" for ours, _ in pipes)
        dues_ms = size.dues_ms(now_ms() + size.lead_ms)
        send(dues_ms)
        if now_ms() > dues_ms[0] - HERD_MS:
            raise RuntimeError("not all were sent before the first was due: this machine needs a longer unit")
        return Seen.by([ours.recv() for ours, _ in pipes])
    finally:
        for child in children:
            child.terminate()
            child.join()


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


def result(
    subject: str, seen: Seen, size: Size, raw: Seen | None = None, relay_mb: float = 0.0, processes: int = 1
) -> Result:
    """One row; with the goals if there is a raw one to compare with."""
    of_raw = seen.per_s / raw.per_s if raw else 1.0
    lost = size.timers + LATER - seen.timers
    is_right = not (lost or seen.twice or seen.early)
    is_small = raw is None or (seen.mb <= raw.mb + GOAL_MORE_MB and relay_mb <= BUDGET_MB + GOAL_MORE_MB)
    is_even = processes == 1 or seen.least_share >= LEAST_SHARE
    is_met = of_raw >= size.goal and seen.passed_s <= 1 and is_right and is_small and is_even
    return Result(
        question="herd",
        subject=f"{subject}, {size.timers:,}",
        figures={
            "timers/s": seen.per_s,
            "of raw": of_raw,
            **{
                f"{share} late, s": late_s
                for share, late_s in zip(("10 %", "50 %", "90 %", "all"), seen.late_s, strict=True)
            },
            "passed by, s": seen.passed_s,
            **({"least share": seen.least_share} if processes > 1 else {}),
            "lost": lost,
            "twice": seen.twice,
            "early": seen.early,
            "CPU us": seen.cpu_us,
            "consumer MB": seen.mb,
            "relay MB": relay_mb or "",
        },
        goal=f"at least {size.goal} of raw, passed by at most 1 s, memory" if raw else "",
        met=is_met if raw else None,
    )


def compare(broker: Broker, client: Any, size: Size) -> list[Result]:
    plan = provisioned(broker, "herd-raw", Native(), partitions=PARTITIONS)
    raw = play(broker, read_raw, plan, size, lambda dues_ms: send_raw(client, plan, dues_ms))
    found = [result("raw pulsar-client", raw, size)]
    for processes in (1, REPLICAS) if size.timers <= SHARED else (1,):
        tiered = provisioned(
            broker,
            "herd",
            size.tiers,
            partitions=PARTITIONS,
            relay="service",
            max_delay_ms=20 * size.unit_ms,
            guard_ms=size.unit_ms // 2,
        )
        with running_relays(broker, tiered, "--memory-mb", str(BUDGET_MB), "--processes", str(RELAYS)) as relays:
            ours = play(broker, read_ours, tiered, size, partial(send_ours, client, tiered), processes=processes)
            relay_mb = max(peak_mb(relay) for relay in relays)
        subject = "one consumer" if processes == 1 else f"{processes} consumers"
        found.append(result(subject, ours, size, raw, relay_mb, processes))
    return found


def main(quick: bool = False) -> list[Result]:
    with service() as broker, connected(broker) as client:
        return [row for size in (QUICK if quick else FULL) for row in compare(broker, client, size)]
