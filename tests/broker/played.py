"""Plans played in real time on a real broker: what was sent, when it was acknowledged, what the broker counted.

Each plan plays in a process of its own, as in the demo: in that of the tests, with all that they left in memory and the
other plan's threads, a relay was 300 ms behind in the mean.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from timewheel.broker.admin.client import AdminClient
from timewheel.client.positions import Position
from timewheel.core.names import partition_topic
from timewheel.core.plan import Plan
from timewheel.demo.player import connect, way_of
from timewheel.demo.settings import SUBSCRIPTION
from timewheel.provision.provisioning import ensure
from timewheel.testing import LocalPulsar, eventually
from timewheel.testing.evidence.journal import Journal, now_ms
from timewheel.testing.evidence.recorder import Deliveries, RecordingClient
from timewheel.testing.evidence.trace import arrivals_by_topic

PACE_S = 0.001
"""How long a publisher waits when it is ahead of its pace. What is sent in one go arrives behind a tier in one go too,
apart from what went to the due topic directly. The law supposes both mixed: with groups of 16 ms there are 2 % fewer.
"""
STRAGGLERS_S = 40.0
"""How long after the last due time the last acknowledgement may be, on a machine that is busy with other things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What every plan plays."""

    delays_ms: Sequence[int]  # in order of sending
    publish_ms: int
    sample_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The broker's counter of gap ranges at one moment."""

    asked_ms: int  # before that moment, UTC milliseconds
    answered_ms: int
    gap_count: int  # `nonContiguousDeletedMessagesRanges` of the subscription
    acknowledged_before: int
    acknowledged_after: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """One plan, all of its timers handled."""

    version: str
    plan: Plan
    sends: Sequence[tuple[int, int]]  # (sent, due) of every timer in order of sending, UTC milliseconds
    # when the acknowledgement of each entry of the due topic had returned, UTC milliseconds; in the order in which they
    # did
    acknowledged_ms: Mapping[Position, int]
    stored_ms: Mapping[Position, int]
    samples: Sequence[Sampled]  # of the due topic, in order

    @property
    def peak(self) -> int:
        """The broker's highest count."""
        return max(sample.gap_count for sample in self.samples)

    @property
    def played_ms(self) -> int:
        """From the first send to the last acknowledgement."""
        return max(self.acknowledged_ms.values()) - self.sends[0][0]

    @property
    def samples_while_played(self) -> Sequence[Sampled]:
        """Those within that time."""
        first_ms, last_ms = self.sends[0][0], self.sends[0][0] + self.played_ms
        return [sample for sample in self.samples if first_ms <= sample.asked_ms and sample.answered_ms <= last_ms]

    @property
    def mean_lag_ms(self) -> float:
        """How late timers arrived in the due topic, by the plan's nominal times."""
        arrivals = [at_ms for found in arrivals_by_topic(self.plan, self.sends).values() for at_ms, _ in found]
        return fmean(self.stored_ms.values()) - fmean(arrivals)

    @property
    def mean_lateness_ms(self) -> float:
        """How long after their due times timers were acknowledged."""
        return fmean(self.acknowledged_ms.values()) - fmean(due_ms for _, due_ms in self.sends)

    @property
    def ledgers(self) -> int:
        """That its due topic was written to."""
        return len({position.ledger for position in self.acknowledged_ms})


class _Acks(Deliveries):
    """When each acknowledgement had returned."""

    def __init__(self) -> None:
        super().__init__(None)
        self.returned_ms: dict[Position, int] = {}
        self.stored_ms: dict[Position, int] = {}

    def acknowledged(self, message: Any) -> None:
        position = Position.of(message.message_id())
        self.returned_ms.setdefault(position, now_ms())
        self.stored_ms.setdefault(position, message.publish_timestamp())
        super().acknowledged(message)


class _Player:
    """Sends and consumes one plan's timers as the demo does: natively with the raw client, else with the SDK."""

    def __init__(
        self, version: str, service_url: str, plan: Plan, trace: Trace, folder: Path, stack: ExitStack
    ) -> None:
        self.plan = plan
        self._version = version
        self._trace = trace
        self._samples: list[Sampled] = []
        self._journal = Journal(len(trace.delays_ms))
        self._acks = _Acks()
        client = connect(service_url, folder)
        stack.callback(client.close)
        recorded = RecordingClient(client, SUBSCRIPTION)
        recorded.deliveries[SUBSCRIPTION] = self._acks
        self._way = way_of(recorded, plan, self._journal)
        stack.callback(self._way.close)

    def publish(self, ended: threading.Event) -> None:
        delays_ms = self._trace.delays_ms
        per_ms = len(delays_ms) / self._trace.publish_ms
        start_ms = now_ms()
        index = 0
        while index < len(delays_ms):
            at_ms = now_ms()
            if index > (at_ms - start_ms) * per_ms:
                if ended.wait(PACE_S):
                    return
                continue
            self._journal.attempted_ms[index], self._journal.due_ms[index] = at_ms, at_ms + delays_ms[index]
            self._way.send(index, at_ms + delays_ms[index])
            index += 1

    def sample(self, admin: AdminClient, ended: threading.Event) -> None:
        topic = partition_topic(self.plan.due_topic, 0)
        while True:
            before = admin.topics.internal_stats(topic).cursors[SUBSCRIPTION].consumed
            asked_ms = now_ms()
            gap_count = admin.topics.stats(topic).subscriptions[SUBSCRIPTION].gap_count
            answered_ms = now_ms()
            after = admin.topics.internal_stats(topic).cursors[SUBSCRIPTION].consumed
            self._samples.append(
                Sampled(
                    asked_ms=asked_ms,
                    answered_ms=answered_ms,
                    gap_count=gap_count,
                    acknowledged_before=before,
                    acknowledged_after=after,
                )
            )
            if ended.wait(max(0, asked_ms + self._trace.sample_ms - now_ms()) / 1_000):
                return

    def is_done(self) -> bool:
        if self._journal.fatal is not None:
            raise self._journal.fatal
        if self._journal.failed:
            raise RuntimeError(f"{self._journal.failed} sends failed, the last: {self._journal.last_error}")
        return len(self._acks.returned_ms) >= len(self._trace.delays_ms)

    def result(self) -> Played:
        return Played(
            version=self._version,
            plan=self.plan,
            sends=list(zip(self._journal.attempted_ms, self._journal.due_ms, strict=True)),
            acknowledged_ms=dict(self._acks.returned_ms),
            stored_ms=dict(self._acks.stored_ms),
            samples=list(self._samples),
        )


def play(broker: LocalPulsar, plans: Sequence[Plan], trace: Trace, folder: Path) -> list[Played]:
    """Play a trace through plans at the same time, until the last timer is acknowledged.

    Args:
        plans: With one partition and a due topic of their own, the subscription `SUBSCRIPTION`.
    """
    with ProcessPoolExecutor(len(plans), mp_context=multiprocessing.get_context("spawn")) as processes:
        playing = [
            processes.submit(_play, broker.version, broker.service_url, broker.admin_url, plan, trace, folder)
            for plan in plans
        ]
        return [played.result() for played in playing]


def _play(version: str, service_url: str, admin_url: str, plan: Plan, trace: Trace, folder: Path) -> Played:
    ended = threading.Event()
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack, AdminClient(admin_url) as admin:
        ensure(admin, plan, now_ms=now_ms())
        player = _Player(version, service_url, plan, trace, folder, stack)
        work: list[Future[None]] = []
        try:
            work.append(pool.submit(player.sample, admin, ended))
            work.append(pool.submit(player.publish, ended))
            work[-1].result(trace.publish_ms / 1_000 + STRAGGLERS_S)
            eventually(
                player.is_done, max(trace.delays_ms) / 1_000 + STRAGGLERS_S, message="timers were not acknowledged"
            )
        finally:
            ended.set()
        for one in work:
            one.result()
        return player.result()
