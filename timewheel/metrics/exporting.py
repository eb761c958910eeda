"""Exporter: inspects topics and plans periodically, and reports the last result to Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from timewheel.client.hooks import Hooks
from timewheel.core.clock import wait_until
from timewheel.core.errors import TimewheelError
from timewheel.events import SnapshotFailed
from timewheel.inspect.errors import NoSuchTarget
from timewheel.inspect.gaps import inspect_gaps, topics_of
from timewheel.inspect.gaps.snapshot import GapHistory
from timewheel.inspect.profile import limit_of
from timewheel.inspect.reader import AT_ONCE
from timewheel.inspect.status import status_of
from timewheel.metrics import catalogue as told
from timewheel.metrics.catalogue import PLAN, Sample, families, of_snapshot, samples_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

    from timewheel.broker.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.hooks import Hook

DEFAULT_LIMIT = 500
"""Subscriptions: at a dozen series each about 6,000, like a few dozen topics of a broker's own metrics."""
DEFAULT_READS = 200
"""Entries of each plan that are read at each snapshot: the error is 7 points of any share, for 200 small reads."""


class Exporter(Collector):
    """Inspects gaps of any topics, and the timers of plans.

    A scrape gets the result of the last snapshot, without a call to a broker. Values that could not be read are absent,
    never 0. If a snapshot fails as a whole, the result before it stays, with its time.

    Args:
        admin: Admin client whose role may read the topics' stats, and peek at messages of the plans' topics.
        targets: Topics, namespaces and tenants, in the form of `timewheel.inspect.gaps.topics_of`.
        plans: Plans whose topics are inspected, and whose timers are counted by due time.
        gap_limit: The broker's limit, if the role may not read it.
        most: Limit on reported subscriptions; the worst are reported.
        reads: Entries of each plan that are read for due times.
        at_once: Requests in parallel.
        hooks: Called with events about failed looks; None: events are logged.
    """

    def __init__(
        self,
        admin: AdminClient,
        targets: Sequence[str],
        plans: Sequence[Plan],
        *,
        gap_limit: int | None = None,
        most: int = DEFAULT_LIMIT,
        reads: int = DEFAULT_READS,
        at_once: int = AT_ONCE,
        hooks: tuple[Hook, ...] | None = None,
    ) -> None:
        self._admin = admin
        self._targets, self._plans = tuple(targets), tuple(plans)
        self._gap_limit = gap_limit
        self._most, self._reads, self._at_once = most, reads, at_once
        self._hooks = Hooks(hooks)
        self._snapshots = GapHistory()
        self._every_ms: int | None = None
        self._seen: tuple[int, tuple[Sample, ...]] | None = None  # its time, and its samples
        self._failed = 0
        self._turn = 0
        self._changed = threading.Condition()
        self._ending = False

    def inspect(self) -> bool:
        """Take a snapshot; returns False if it failed as a whole, which is counted and emitted as an event."""
        clock = self._admin.clock
        began_ms = clock.monotonic_ms()
        try:
            samples = tuple(self._look())
        except Exception as error:  # noqa: BLE001 - any error: without this thread no further look would follow
            self._failed += 1
            self._hooks.emit(SnapshotFailed(error=str(error) if isinstance(error, TimewheelError) else repr(error)))
            return False
        took = Sample(told.SNAPSHOT_SECONDS, (), (clock.monotonic_ms() - began_ms) / 1_000)
        self._seen = (clock.now_ms(), (*samples, took))
        return True

    def _look(self) -> Iterator[Sample]:
        # Read at each snapshot: a raised limit takes effect without a restart.
        limit = limit_of(self._admin, gap_limit_ranges=self._gap_limit)
        found = topics_of(self._admin, self._targets, self._plans)
        if self._targets and not self._plans and sum(one.is_target for one in found.unseen) == len(self._targets):
            raise NoSuchTarget(", ".join(self._targets), "none of them can be seen")
        topics, at_once = found.topics, self._at_once
        snapshot = inspect_gaps(
            self._admin, topics, limit.profile, unseen=found.unseen, missing=found.missing, at_once=at_once
        )
        self._snapshots.add(snapshot)
        yield from of_snapshot(snapshot, self._snapshots, self._most)
        unseen = {*(one.what for one in snapshot.unseen), *snapshot.missing}
        self._turn += 1
        for plan in self._plans:
            # Other entries at each snapshot: an estimate that is off by chance does not stay so.
            status = status_of(self._admin, plan, reads=self._reads, seed=self._turn)
            unseen |= {*(one.what for one in status.unseen), *status.missing}
            yield from samples_of(PLAN, status, plan.due_topic)
        yield Sample(told.UNSEEN, (), len(unseen))

    def is_fresh(self, within_ms: int) -> bool:
        """Return whether a snapshot has succeeded within this time."""
        seen = self._seen
        return seen is not None and self._admin.clock.now_ms() - seen[0] <= within_ms

    def run(self, every_ms: int) -> None:
        """Take looks until `end`; a snapshot that takes longer than the interval is followed by the next at once.

        Args:
            every_ms: Time from the beginning of a snapshot to the beginning of the next.
        """
        clock = self._admin.clock
        self._every_ms = every_ms
        while not self._ending:
            next_ms = clock.monotonic_ms() + every_ms
            self.inspect()
            with self._changed:
                wait_until(clock, self._changed, lambda: self._ending, max(next_ms - clock.monotonic_ms(), 0))

    def end(self) -> None:
        """Make `run` return after the present look."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def collect(self) -> list[Family]:
        """Return all metrics; prometheus-client calls this at a scrape."""
        seen = self._seen
        samples = [Sample(told.LOOK_FAILED, (), self._failed)]
        if self._every_ms is not None:
            samples.append(Sample(told.LOOK_EVERY, (), self._every_ms / 1_000))
        if seen is not None:
            samples += [Sample(told.SNAPSHOT_LAST, (), seen[0] / 1_000), *seen[1]]
        return families(samples)

    def describe(self) -> list[Family]:
        """Return no metrics, so that registration starts no look."""
        return []
