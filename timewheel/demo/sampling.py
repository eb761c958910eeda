"""Asks the broker for every scheme's gaps, about ten times a day, on its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from timewheel.broker.admin.client import AdminClient
from timewheel.core.errors import AdminError
from timewheel.core.names import RELAY_SUBSCRIPTION, partition_topic
from timewheel.core.plan import Calendar, Plan, Wheel
from timewheel.core.topology import topology
from timewheel.demo.settings import SUBSCRIPTION

OTHERS_PER_SAMPLE = 1  # topics that cannot have gaps now (a calendar's far days, a wheel's far slots) are asked in turn
PARTITION_SUFFIX = "-partition-0"  # suffix of the single partition of every topic
NEAR_DAYS = (-1, 0, 1)  # days whose topics can have gaps: yesterday, today and tomorrow


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The figures of a scheme at a moment."""

    at_ms: int  # UTC milliseconds
    due_gaps: int  # gaps in all due topics together
    holding_gaps: int  # gaps in all holding topics together
    in_flight: int  # messages that relays hold unacknowledged, over all holding topics
    index_bytes: int  # size of the broker's delayed indexes, over all topics
    backlog: int  # timers not yet acknowledged, over due and holding topics
    due_backlog: int = 0  # the same, over due topics alone


@dataclass(slots=True)
class _Seen:
    gaps: int = 0
    unacked: int = 0
    index_bytes: int = 0
    backlog: int = 0
    entries_before: int = 0  # entries written before the topic was last unloaded; the broker's counter restarts at 0
    entries_added: int = 0


class Gauge:
    """The topics of a scheme at some moments (a calendar's differ between them), with the last figures of each."""

    def __init__(self, plan: Plan, moments_ms: Sequence[int], day_ms: int) -> None:
        self.plan = plan
        self._day_ms = day_ms
        found = topology(plan, moments_ms[0])
        due = {spec.name for moment_ms in moments_ms for spec in topology(plan, moment_ms).topics if spec.role == "due"}
        self._due = {partition_topic(name, 0): _Seen() for name in sorted(due)}
        held = [*(topic.name for topic in found.holding), *(t.name for t in found.topics if t.is_entrance)]
        self._held = {partition_topic(name, 0): _Seen() for name in held}
        self._day_of = _days_of(plan, moments_ms[0], self._due if isinstance(plan.scheme, Calendar) else self._held)
        self._dead = [spec.name for spec in found.topics if spec.role == "dead_letter"]
        self._turn = 0
        self.samples: list[Sample] = []

    @property
    def topics(self) -> tuple[str, ...]:
        """Due and holding topics, by partition."""
        return (*self._due, *self._held)

    @property
    def topic_count(self) -> int:
        """Number of topics of the plan, the dead-letter topic included."""
        return len(self._due) + len(self._held) + len(self._dead)

    def sample(self, admin: AdminClient, now_ms: int) -> Sample:
        """Ask for all topics that may have changed, for the others in turn, and add up the last figures of all."""
        near = [name for name in self.topics if self._is_near(name, now_ms)]
        far = [name for name in self.topics if name not in near]
        for _ in range(min(OTHERS_PER_SAMPLE, len(far))):
            self._turn += 1
            near.append(far[self._turn % len(far)])
        for name in near:
            self._look(admin, name)
        seen_due, seen_held = self._due.values(), self._held.values()
        found = Sample(
            at_ms=now_ms,
            due_gaps=sum(seen.gaps for seen in seen_due),
            holding_gaps=sum(seen.gaps for seen in seen_held),
            in_flight=sum(seen.unacked for seen in seen_held),
            index_bytes=sum(seen.index_bytes for seen in (*seen_due, *seen_held)),
            backlog=sum(seen.backlog for seen in (*seen_due, *seen_held)),
            due_backlog=sum(seen.backlog for seen in seen_due),
        )
        self.samples.append(found)
        return found

    def unload(self, admin: AdminClient, name: str) -> None:
        """Unload a topic; the broker's count of its entries is read right before, since it restarts at 0."""
        seen = self._seen(name)
        seen.entries_before += admin.topics.internal_stats(name).entries_added
        admin.topics.unload(name.removesuffix(PARTITION_SUFFIX))

    def count_entries(self, admin: AdminClient) -> None:
        """Read how many entries were written to each topic since its unload."""
        for name in self.topics:
            self._seen(name).entries_added = admin.topics.internal_stats(name).entries_added

    @property
    def entries_written(self) -> int:
        """Entries in all topics, by the broker's counters."""
        return sum(seen.entries_before + seen.entries_added for seen in (*self._due.values(), *self._held.values()))

    def _seen(self, name: str) -> _Seen:
        return self._held[name] if name in self._held else self._due[name]

    def _look(self, admin: AdminClient, name: str) -> None:
        held, seen = name in self._held, self._seen(name)
        stats = admin.topics.stats(name)
        wanted = RELAY_SUBSCRIPTION if held else SUBSCRIPTION
        subscriptions = [found for subscription, found in stats.subscriptions.items() if subscription == wanted]
        seen.gaps = sum(found.gap_count for found in subscriptions)
        seen.unacked = sum(found.unacked for found in subscriptions)
        seen.backlog = sum(found.backlog for found in subscriptions)
        seen.index_bytes = sum(found.delayed_index_bytes for found in subscriptions)

    def _is_near(self, name: str, now_ms: int) -> bool:
        """Return whether acknowledgements can change this topic now.

        A calendar's topic gets acknowledgements on its day and a little after; a wheel's slot is swept shortly before
        its day.
        """
        if name not in self._day_of:
            return True
        ahead = self._day_of[name] - now_ms // self._day_ms
        if name in self._held:
            ahead = (ahead + 1) % len(self._held) - 1  # a ring: the slot before the first is the last
        return ahead in NEAR_DAYS


def _days_of(plan: Plan, first_ms: int, topics: Iterable[str]) -> dict[str, int]:
    """Return the day of each topic, if there is a topic per day: a calendar's since 1970, a wheel's modulo its ring."""
    match plan.scheme:
        case Calendar():
            return dict(zip(topics, count(first_ms // plan.scheme.interval_ms), strict=False))
        case Wheel():
            return dict(zip(topics, count(), strict=False))
        case _:
            return {}


class Sampler:
    """Samples all gauges every ``period_ms``, on a thread of its own, until it is stopped."""

    def __init__(self, admin: AdminClient, period_ms: int) -> None:
        self._admin = admin
        self._period_ms = period_ms
        self._gauges: list[Gauge] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-sampler", daemon=True)
        self.error: BaseException | None = None

    def add(self, gauge: Gauge) -> None:
        with self._lock:
            self._gauges.append(gauge)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current round."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            next_round = time.monotonic()
            while not self._ended.wait(max(0.0, next_round - time.monotonic())):
                next_round = max(next_round + self._period_ms / 1000, time.monotonic())
                self._round()
        except BaseException as error:  # noqa: BLE001 - the main thread reads it and ends the run
            self.error = error

    def _round(self) -> None:
        with self._lock:
            gauges = list(self._gauges)
        for gauge in gauges:
            # It fails while topics are unloaded; too few samples break a promise of the verdict.
            with suppress(AdminError):
                gauge.sample(self._admin, time.time_ns() // 1_000_000)
