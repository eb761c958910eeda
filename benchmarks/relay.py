"""How fast is a relay, next to a raw loop?

Both forward the same timers from a full holding topic to the same kind of destination, with at most 4,000 under way and
cumulative acknowledgements (single ones where the broker holds). The raw loop only passes them on; the relay also reads
envelopes, checks contiguity, routes, and numbers what it sends. They take turns. From tier to tier there are two raw
loops: one sends each message by itself, the other lets the client batch and compress as the relay does, up to 1,000
messages in 10 ms.

Both are timed in full flow, from the thousandth confirmation to the thousandth before the last. A relay that holds
begins more than a second after it subscribed, on purpose (it makes sure of where the subscription begins, which a raw
loop takes on trust), and ends up to a second later, since the last hops wait for others to go with them. How long it
takes to the first hop is in the table.

CPU is this process's, in the same time, so it counts the client's threads as well.

Goals: where a hop goes by itself 1.1 of the raw loop's messages per second, by 1.1 of its CPU; from tier to tier 1.8 of
the raw loop that sends singly, 1.05 of the one that batches by no more CPU, and 0.65 of the CPU of a hop that goes by
itself; at most 50 MB more with 1,000,000 timers held than with 10,000.
"""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pulsar

from benchmarks import turns
from benchmarks.result import Result
from benchmarks.service import Address, Reachable, connected, now_ms, provisioned, service
from benchmarks.turns import Pace, alone, compared, in_turns
from timewheel.core import HOUR_MS, Envelope, Hold, Holder, Plan, Router, Tiered
from timewheel.core.names import RELAY_SUBSCRIPTION, Names, partition_topic
from timewheel.core.steps import steps
from timewheel.relay import PartitionState, Relay
from timewheel.testing import Broker, eventually

TIMERS, QUICK_TIMERS = 40_000, 10_000
ROUNDS, QUICK_ROUNDS = 5, 1
HELD, QUICK_HELD = 1_000_000, 50_000
SHOWN = frozenset(("of a single hop's", "more MB", *turns.SHOWN))
FEW_HELD = 10_000
GOAL_RATIO, GOAL_RATIO_CPU = 1.1, 1.1
GOAL_OF_SINGLE, GOAL_OF_BATCHED, GOAL_OF_BATCHED_CPU, GOAL_CPU = 1.8, 1.05, 1.0, 0.65
GOAL_MB = 50.0
IN_FLIGHT = 4_000
ACK_EVERY = 100
STAY_MS = 2 * HOUR_MS
PAYLOAD = bytes(range(200))
USER_PROPERTIES = {"tenant": "acme", "kind": "reminder"}
TIMEOUT_S = 300.0
SETTLE_S = 5.0
IN_FLOW = 1_000  # confirmations before the clock starts, and after it stops
POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A raw loop: how its producer batches, and the parts of its messages per second and of its CPU that are goals."""

    goal: float
    cpu: float | None = None
    batching: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of hop: what is left at the release decides where to."""

    name: str
    left_ms: int
    raw: Mapping[str, Raw]
    hold: Holder = "relay"


RELAY = "relay"
BATCHING: Mapping[str, Any] = {
    "batching_enabled": True,
    "batching_max_messages": 1_000,
    "batching_max_allowed_size_in_bytes": 1_000_000,
    "batching_max_publish_delay_ms": 10,
    "compression_type": pulsar.CompressionType.LZ4,
}
ALONE = {"raw": Raw(goal=GOAL_RATIO, cpu=GOAL_RATIO_CPU)}
KINDS = (
    Kind(name="tier to due topic", left_ms=HOUR_MS // 2, raw=ALONE),
    Kind(
        name="tier to tier",
        left_ms=3 * HOUR_MS // 2,
        raw={
            "raw": Raw(goal=GOAL_OF_SINGLE),
            "raw that batches": Raw(
                goal=GOAL_OF_BATCHED,
                cpu=GOAL_OF_BATCHED_CPU,
                batching=BATCHING,
            ),
        },
    ),
    Kind(name="broker-held to due topic", left_ms=HOUR_MS // 2, raw=ALONE, hold="broker"),
)


def plan_for(broker: Reachable, name: str, hold: Holder) -> Plan:
    return provisioned(broker, name, Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, STAY_MS), hold=hold))


def source_of(plan: Plan) -> str:
    return partition_topic(Names(plan).of_step(steps(plan)[0])[0], 0)


def fill(client: Any, plan: Plan, count: int, *, entered_ms: int, left_ms: int) -> None:
    missing = threading.Semaphore(0)
    failures: list[Any] = []

    def stored(result: Any, _: Any) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)
        missing.release()

    producer = client.create_producer(
        source_of(plan), batching_enabled=True, block_if_queue_full=True, compression_type=pulsar.CompressionType.LZ4
    )
    # In a broker-held tier everything lies under a delay, which is over now.
    deliver_at = now_ms() if not plan.holds_in_relay else None
    due_ms = entered_ms + STAY_MS + left_ms
    for number in range(count):
        properties = {**USER_PROPERTIES, **Envelope(f"{number:032x}", due_ms, entered_ms).properties()}
        producer.send_async(PAYLOAD, stored, properties=properties, deliver_at=deliver_at)
    for _ in range(count):
        missing.acquire()
    producer.close()
    if failures:
        raise RuntimeError(f"{len(failures)} timers were not stored: {failures[0]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow(Pace):
    """One round in full flow, and the time to the first confirmation."""

    first_s: float


class FlowTimer:
    """Makes a flow of the moments at which so many were confirmed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._began_s = time.perf_counter()
        # (moment, CPU, confirmed): the first of all, the first in full flow, the last in full flow.
        self._seen: list[tuple[float, float, int]] = []

    def see(self, confirmed: int) -> None:
        seen = self._seen
        while len(seen) < 3 and confirmed >= (1, IN_FLOW, self._count - IN_FLOW)[len(seen)]:
            seen.append((time.perf_counter(), time.process_time(), confirmed))

    def flow(self) -> Flow:
        (first_s, _, _), (flows_s, flows_cpu_s, flows_at), (ends_s, ends_cpu_s, ends_at) = self._seen
        return Flow(
            per_s=(ends_at - flows_at) / max(ends_s - flows_s, 1e-3),
            first_s=first_s - self._began_s,
            cpu_us=(ends_cpu_s - flows_cpu_s) / (ends_at - flows_at) * 1e6,
        )


def relay_flow(client: Any, plan: Plan, count: int) -> Flow:
    timer = FlowTimer(count)
    relay = Relay(client, plan, max_in_flight=IN_FLIGHT).start()

    def is_through() -> bool:
        confirmed = relay.status().total("forwarded")
        timer.see(confirmed)
        return confirmed >= count

    try:
        eventually(is_through, TIMEOUT_S, poll=POLL_S)
        return timer.flow()
    finally:
        relay.stop()
        if late := relay.status().total("late"):
            raise RuntimeError(f"{late} hops were late: another lane was measured")


def raw_flow(client: Any, plan: Plan, count: int, left_ms: int, batching: Mapping[str, Any]) -> Flow:
    route = Router(plan).route(now_ms() + left_ms, now_ms())
    destination = partition_topic(route.topic, 0)
    deliver_at = None if isinstance(route, Hold) and plan.holds_in_relay else now_ms() + left_ms
    timer = FlowTimer(count)
    consumer = client.subscribe(
        source_of(plan),
        RELAY_SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Failover if plan.holds_in_relay else pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=16 if plan.holds_in_relay else 200,
    )
    producer = client.create_producer(destination, max_pending_messages=IN_FLIGHT, block_if_queue_full=True, **batching)
    confirmed: list[Any] = []
    acknowledged = 0
    for _ in range(count):
        message = consumer.receive(30_000)
        producer.send_async(
            message.data(),
            lambda _result, _id, message=message: confirmed.append(message),
            properties=message.properties(),
            deliver_at=deliver_at,
        )
        acknowledged = acknowledge(consumer, confirmed, acknowledged, plan)
        timer.see(acknowledged)
    producer.flush()
    while acknowledged < count:
        acknowledged = acknowledge(consumer, confirmed, acknowledged, plan, every=1)
        timer.see(acknowledged)
    flow = timer.flow()
    consumer.close()
    producer.close()
    return flow


def acknowledge(consumer: Any, confirmed: list[Any], done: int, plan: Plan, *, every: int = ACK_EVERY) -> int:
    """Acknowledge what is confirmed; one producer confirms in order."""
    count = len(confirmed)
    if plan.holds_in_relay:
        if count - done < every:
            return done
        consumer.acknowledge_cumulative(confirmed[count - 1])
        return count
    for message in confirmed[done:count]:
        consumer.acknowledge(message)
    return count


def play(address: Address, kind_name: str, way: str, count: int) -> Flow:
    """One round of a kind of hop, by the relay or by one of its raw loops, in this process."""
    kind = next(kind for kind in KINDS if kind.name == kind_name)
    with connected(address) as client:
        plan = plan_for(address, "relay", kind.hold)
        fill(client, plan, count, entered_ms=now_ms() - STAY_MS, left_ms=kind.left_ms)
        if way == RELAY:
            return relay_flow(client, plan, count)
        return raw_flow(client, plan, count, kind.left_ms, kind.raw[way].batching)


def speed(address: Address, kind: Kind, count: int, rounds: int) -> tuple[list[Result], list[Flow]]:
    """The relay and its raw loops, in turns."""
    ways = {name: partial(alone, play, address, kind.name, name, count) for name in (RELAY, *kind.raw)}
    flows = in_turns(ways, rounds)
    ours = flows.pop(RELAY)
    rows = [
        compared(
            "relay", kind.name, ours, flows[name], rival=name, goal=kind.raw[name].goal, cpu_goal=kind.raw[name].cpu
        )
        for name in flows
    ]
    first_s = statistics.median(flow.first_s for flow in ours)
    return [replace(row, figures={**row.figures, "first, s": first_s}) for row in rows], ours


def cpu(grouped: list[Flow], single: list[Flow]) -> Result:
    """What a hop in a group costs beside one that goes by itself."""
    costs = [statistics.median(flow.cpu_us for flow in flows) for flows in (grouped, single)]
    ratio = costs[0] / costs[1]
    return Result(
        question="relay",
        subject="CPU of a hop in a group",
        figures={"CPU us": costs[0], "of a single hop's": ratio},
        goal=f"at most {GOAL_CPU} of a single hop's",
        met=ratio <= GOAL_CPU,
    )


def _hold(service_url: str, plan: Plan, said: Connection, stop: Connection) -> None:
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with Relay(client, plan) as relay:
        eventually(
            lambda: PartitionState.HOLDING in {partition.state for partition in relay.status().partitions},
            TIMEOUT_S,
            poll=0.1,
        )
        time.sleep(SETTLE_S)  # whatever the client reads ahead has come
        said.send(psutil.Process().memory_info().rss / 2**20)
        stop.recv()
    client.close()


@contextmanager
def holding(broker: Broker, plan: Plan) -> Iterator[float]:
    """Another process's relay that holds; gives its memory in MB."""
    context = multiprocessing.get_context("spawn")
    hears, says = context.Pipe(duplex=False)
    stopped, stop = context.Pipe(duplex=False)
    process = context.Process(target=_hold, args=(broker.service_url, plan, says, stopped))
    process.start()
    try:
        if not hears.poll(TIMEOUT_S):
            raise RuntimeError("the relay that was to hold did not say anything")
        yield hears.recv()
        stop.send(None)
        process.join(60)
    finally:
        process.kill()
        process.join()


def memory(broker: Broker, many: int) -> list[Result]:
    """A relay that holds few timers against one that holds many."""
    found: dict[int, float] = {}
    with connected(broker) as client:
        for count in (FEW_HELD, many):
            plan = plan_for(broker, "held", "relay")
            fill(client, plan, count, entered_ms=now_ms(), left_ms=HOUR_MS // 2)
            with holding(broker, plan) as memory_mb:
                found[count] = memory_mb
    more_mb = found[many] - found[FEW_HELD]
    return [
        Result(question="relay", subject=f"{FEW_HELD:,} held", figures={"memory MB": found[FEW_HELD]}),
        Result(
            question="relay",
            subject=f"{many:,} held",
            figures={"memory MB": found[many], "more MB": more_mb},
            goal=f"at most {GOAL_MB:.0f} MB more",
            met=more_mb <= GOAL_MB,
        ),
    ]


def main(quick: bool = False) -> list[Result]:
    found: list[Result] = []
    with service() as broker:
        flows: list[list[Flow]] = []
        for kind in KINDS:
            count, rounds = (QUICK_TIMERS, QUICK_ROUNDS) if quick else (TIMERS, ROUNDS)
            rows, ours = speed(Address.of(broker), kind, count, rounds)
            found += rows
            flows.append(ours)
        single, grouped, _ = flows
        found.append(cpu(grouped, single))
        found += memory(broker, QUICK_HELD if quick else HELD)
    return found
