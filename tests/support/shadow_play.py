"""Plain clients on a topic, shadow processes that are killed, and a judge that counts only what the clients saw."""

from __future__ import annotations

import random
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import pulsar

from tests.support.chaos_conductor import Post
from tests.support.chaos_ledger import now_ms, ready_file
from tests.support.chaos_stage import BUSINESS, Stage
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import ID_PROPERTY, NUDGE_PROPERTY
from timewheel.core.ids import native_id
from timewheel.core.names import Names, parts_of
from timewheel.core.plan import Plan, Scheme
from timewheel.shadow.desired_state import State, desired_for
from timewheel.testing import Broker, eventually

EARLY_MS = 1_050  # a broker delivers early by at most a tick

UNDER_WAY_MS = 1_000  # clients batch acknowledgements before they send them


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTraffic:
    """The load of a plain producer."""

    rate: int  # timers a second
    shortest_ms: int
    longest_ms: int  # the longest delay; delays are evenly distributed


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The clients' counts.

    Args:
        lost: Confirmed, and never handled.
        unexpected: Handled, and never sent.
        copies: Handlings of a timer from a second place under the same id: made by the shadow.
        sent_again: Timers that are stored as two, with different ids: the plain producer's client resends messages that
            were in flight when a topic was unloaded, and a broker may not recognize them (broker-facts:
            memory-after-a-reload).
        redelivered: Repeated handlings from the same place: redelivered by the broker, which forgot an acknowledgement.
        forgotten: Redelivered timers that were handled more than a second before the last unload: not in flight then.
    """

    sent: int
    lost: int
    unexpected: int
    copies: int
    sent_again: int
    redelivered: int
    forgotten: int
    early: int
    late_p99_ms: int
    late_max_ms: int

    @property
    def figures(self) -> dict[str, object]:
        """Figures for the page of evidence."""
        return {
            "timers": self.sent,
            "lost": self.lost,
            "copies handled": self.copies,
            "sent again by the client": self.sent_again,
            "delivered again by the broker": self.redelivered,
            "early": self.early,
            "p99 late ms": self.late_p99_ms,
            "latest ms": self.late_max_ms,
        }


def shadow_plan(guard_ms: int, scheme: Scheme, **plan: Any) -> Plan:
    """Return a plan of a fresh topic with an intake."""
    given = {"partitions": 1, "max_delay_ms": 600_000, "intake": True, **plan}
    return Plan(
        due_topic=f"persistent://public/default/shadowed-{uuid.uuid4().hex[:8]}",
        subscriptions=(BUSINESS,),
        scheme=scheme,
        guard_ms=guard_ms,
        relay="service",
        readers="any",
        **given,
    )


class ShadowPlay(Stage):
    """Use it as a context manager.

    Args:
        plan: The plan; without an intake, it is a baseline without a shadow.
        given: As for a stage.
        module: Module to run as ``python -m``; a control runs another module.
    """

    def __init__(self, broker: Broker, plan: Plan, *given: Any, module: tuple[str, ...] = ("timewheel",)) -> None:
        super().__init__(broker, plan, *given)
        self.rng = random.Random(self.seed)
        self.names = Names(plan)
        self._module = module
        self._stopping = False
        self._sending = False
        self._lock = threading.Lock()
        self.sent: set[int] = set()
        self.unknown = 0
        self.attempted = 0
        self.places: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        self.ids: defaultdict[int, set[str]] = defaultdict(set)
        self.lateness_ms: dict[int, int] = {}
        self.peak_gaps = 0
        self.longest_outage_ms = 0
        self.first_ms: dict[int, int] = {}
        self.unloaded_ms = 0
        self.nudges = 0
        self._threads: list[threading.Thread] = []
        self.movers: list[Post] = []

    def __enter__(self) -> Self:
        super().__enter__()
        if self.plan.intake:
            self.desired(State.SHADOWING)
        return self

    def close(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join()
        super().close()

    def desired(self, state: State) -> None:
        """Store the desired state on the broker, as the commands do."""
        desired_for(self.admin, self.plan, state, now_ms=now_ms())

    def mover(self, name: str, *options: str) -> Post:
        """Start a shadow process, with further options of the command."""
        line = [sys.executable, "-m", *self._module, "shadow", "run", str(self.plan_file)]
        line += ["--service-url", self.broker.service_url, "--admin-url", self.broker.admin_url]
        line += ["--relay-id", name, "--log-format", "json", "--journal-hold", "90s", *options]
        mover = self.post(name, lambda ledger, _: [*line, "--ready-file", str(ready_file(ledger))])
        self.movers.append(mover)
        mover.start()
        return mover

    # The plain clients

    def consume(self) -> None:
        """Start a Shared consumer."""
        kind = pulsar.ConsumerType.Shared
        consumer = self.new_client().subscribe(self.plan.due_topic, self.plan.subscriptions[0], consumer_type=kind)

        def run() -> None:
            while not self._stopping:
                try:
                    message = consumer.receive(500)
                except pulsar.Timeout:
                    continue
                if NUDGE_PROPERTY in message.properties():
                    # Given to clients if no shadow was there to remove it before it was due.
                    self.nudges += 1
                    consumer.acknowledge(message)
                    continue
                name, _, due = message.data().decode().partition(" ")
                at_ms, number, place = now_ms(), int(name), message.message_id()
                with self._lock:
                    self.places[number].append((place.partition(), place.ledger_id(), place.entry_id()))
                    own_id = native_id(message.topic_name(), EntryPosition(place.ledger_id(), place.entry_id()))
                    self.ids[number].add(message.properties().get(ID_PROPERTY) or own_id)
                    self.lateness_ms.setdefault(number, at_ms - int(due))
                    self.first_ms.setdefault(number, at_ms)
                consumer.acknowledge(message)

        self._begin(run)

    def send(self, traffic: PlainTraffic) -> None:
        """Start a plain producer, which sends until `send_no_more`."""
        producer = self.new_client().create_producer(
            self.plan.due_topic, block_if_queue_full=True, send_timeout_millis=120_000
        )
        self._sending = True

        def told(number: int) -> Callable[[Any, Any], None]:
            def on_progress(result: Any, _: Any) -> None:
                with self._lock:
                    if result == pulsar.Result.Ok:
                        self.sent.add(number)
                    else:
                        self.unknown += 1

            return on_progress

        def run() -> None:
            began, number = time.monotonic(), 0
            while self._sending and not self._stopping:
                while number < (time.monotonic() - began) * traffic.rate:
                    due_ms = now_ms() + self.rng.randrange(traffic.shortest_ms, traffic.longest_ms)
                    payload = f"{number} {due_ms}".encode()
                    self.attempted = number + 1
                    producer.send_async(payload, told(number), deliver_at=due_ms, partition_key=f"k{number % 97}")
                    number += 1
                time.sleep(0.01)
            producer.flush()

        self._begin(run)

    def send_no_more(self) -> None:
        self._sending = False
        eventually(lambda: len(self.sent) + self.unknown == self.attempted, 180, message="all sends are answered")

    def watch_movers(self) -> None:
        """Measure the longest time without a ready process, after the first was ready."""

        def run() -> None:
            last = None
            while not self._stopping:
                if any(mover.is_ready for mover in self.movers):
                    last = time.monotonic()
                elif last is not None:
                    self.longest_outage_ms = max(self.longest_outage_ms, round(1_000 * (time.monotonic() - last)))
                time.sleep(0.05)

        self._begin(run)

    def watch_gaps(self) -> None:
        """Record the highest number of gaps on a partition."""
        parts = parts_of(self.plan.due_topic, self.plan.partitions)
        business = self.plan.subscriptions[0]

        def run() -> None:
            while not self._stopping:
                for part in parts:
                    try:
                        found = self.admin.topics.stats(part).subscriptions
                    except Exception:  # noqa: BLE001 - a topic that moves is asked again
                        continue
                    if business in found:
                        self.peak_gaps = max(self.peak_gaps, found[business].gap_count)
                time.sleep(0.3)

        self._begin(run)

    def _begin(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    # Faults

    def kill_movers(self, times: int, *, pause_s: tuple[float, float]) -> None:
        """Kill a shadow process and start it again after a pause, this number of times."""
        for number in range(times):
            mover = self.movers[number % len(self.movers)]
            if self.longest_outage_ms > self.plan.guard_ms // 4 or self.rng.random() < 0.5:
                # Else another process may still be starting, and no process works in the meantime.
                eventually(lambda: all(one.is_ready for one in self.movers), 120, message="all movers are ready")
            eventually(partial(getattr, mover, "is_ready"), 120, message=f"mover {number} is ready again")
            time.sleep(self.rng.uniform(*pause_s))
            mover.kill()
            time.sleep(self.rng.uniform(0, pause_s[0]))
            mover.start()

    def unload(self) -> None:
        """Unload the due topic, the intake or the journal."""
        self.unloaded_ms = now_ms()
        self.admin.topics.unload(self.rng.choice([self.plan.due_topic, self.names.intake, self.names.journal]))

    # The end

    @property
    def pending(self) -> int:
        """Number of timers that were sent and not handled."""
        with self._lock:
            return len(self.sent - self.places.keys())

    def drained(self, timeout_s: float) -> None:
        """Wait until all timers are handled, or until the timeout: the verdict counts missing timers."""
        deadline = time.monotonic() + timeout_s
        while self.pending and time.monotonic() < deadline:
            time.sleep(0.2)

    def verdict_of_clients(self) -> Verdict:
        """Count what the plain clients saw."""
        with self._lock:
            lateness = sorted(self.lateness_ms.values())
            places = {number: list(found) for number, found in self.places.items()}
            sent = set(self.sent)
            again = sum(len(found) - 1 for found in self.ids.values())
        distinct = {number: len(set(found)) for number, found in places.items()}
        return Verdict(
            sent=len(sent),
            lost=len(sent - places.keys()),
            unexpected=len({number for number in places if number >= self.attempted}),
            copies=sum(distinct.values()) - len(distinct) - again,
            sent_again=again,
            redelivered=sum(map(len, places.values())) - sum(distinct.values()),
            forgotten=sum(
                self.first_ms[number] < self.unloaded_ms - UNDER_WAY_MS
                for number, found in places.items()
                if len(found) > distinct[number]
            ),
            early=sum(late < -EARLY_MS for late in lateness),
            late_p99_ms=lateness[len(lateness) * 99 // 100] if lateness else 0,
            late_max_ms=lateness[-1] if lateness else 0,
        )
