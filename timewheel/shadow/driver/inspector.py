"""A shadow's view of its topic beside the entries: the desired state, the subscriptions, and obstacles to moving."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import DELAYING_TYPES, IN_ORDER_TYPES, SubscriptionStats, TopicStats
from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing
from timewheel.core.escapes import timewheel_command
from timewheel.core.names import Names, parts_of
from timewheel.core.plan import Plan
from timewheel.events import ShadowInspectionFails, ShadowMissesPartitions, ShadowRefuses, ShadowState
from timewheel.shadow.desired_state import DesiredState, State, caught_up_property, desired_in, moves

PART_OF_TIME = 20
"""One in this many parts of the time is spent on answers: for each, a broker of 4.2 walks the whole index of delayed
messages, which takes seconds with a million of them (broker-facts: statistics-cost)."""
AT_LEAST_MS = 30_000  # longest pause, however long an answer takes: unknown subscriptions cannot be respected
NO_WAIT_MS = 1_000  # shorter pauses are dropped: the broker is asked whenever statistics are needed


OLD_MS = 60_000  # longest age of a view: an older view may miss new subscriptions, so no timer is moved then
SILENT_MS = 30_000  # pause after an admin API failed to list the current subscriptions: waiting for it delays timers
_OF_THE_BROKER = "__compaction"
_NOTHING_YET = DesiredState(State.PROVISIONED, 0)


class Subscription(NamedTuple):
    """A subscription of the due topic."""

    name: str
    joins: bool
    """A consumer without permits may stay in it: it is Shared, and has other consumers. Otherwise for moments only."""
    by_key: bool = False
    """It is Key_Shared; brokers refuse a consumer of another type. Without consumers: its type before."""
    delays: bool = True
    """Brokers do not delay on Exclusive and Failover: there an original is delivered when it is sent, so there is no
    delivery to prevent, and no other consumer can join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The last view of the topic."""

    desired: DesiredState = _NOTHING_YET
    subscriptions: Mapping[str, tuple[Subscription, ...]] = field(default_factory=dict)  # by partition of the due topic
    refusal: str = "nothing was seen yet"

    @property
    def moves(self) -> bool:
        """True if movers may move."""
        return not self.refusal and moves(self.desired.state)


class TopicInspector:
    """Reads the topic's state again and again, and stores the movers' progress.

    `view` is replaced, never changed, and may be read by any thread.
    """

    def __init__(self, admin: AdminClient, plan: Plan, clock: Clock, hooks: Hooks) -> None:
        self._admin = admin
        self._plan = plan
        self._clock = clock
        self._hooks = hooks
        self._names = Names(plan)
        self._parts = parts_of(plan.due_topic, plan.partitions)
        self._partitions = plan.partitions
        self._seen_ms: int | None = None
        self._ask_again_ms = 0  # monotonic time of the next request for statistics; 0: at once
        self._fails = False
        self._silent_until_ms = clock.monotonic_ms()
        self._by_key: dict[tuple[str, str], bool] = {}
        self._noted: Mapping[int, int] = {}
        self.view = View()

    def inspect(self) -> View:
        """Read the state once; if the broker does not answer, the last view counts for a while."""
        before, began_ms = self.view, self._clock.monotonic_ms()
        try:
            desired = desired_in(self._admin.topics.properties(self._names.journal))
            stats = self._stats() if began_ms >= self._ask_again_ms else None
        except AdminMissing as error:
            self.inspect_soon()
            # Connected clients create a deleted journal again, but without its policies.
            gone = f"{self._names.journal} or the due topic is gone ({error.reason})"
            self.view = replace(before, refusal=f"{gone}: run timewheel shadow start PLAN")
        except AdminError as error:
            self.inspect_soon()
            if not self._fails:
                self._hooks.emit(ShadowInspectionFails(due_topic=self._plan.due_topic, reason=str(error)))
            self._fails = True
            if self._seen_ms is None or self._clock.monotonic_ms() - self._seen_ms > OLD_MS:
                self.view = replace(before, refusal=f"the admin API does not answer: {error}")
            return self.view
        else:
            self._fails = False
            if stats is None:
                self.view = replace(before, desired=desired)
            else:
                self._seen_ms = self._clock.monotonic_ms()
                wait_ms = min((self._seen_ms - began_ms) * PART_OF_TIME, AT_LEAST_MS)
                self._ask_again_ms = 0 if wait_ms <= NO_WAIT_MS else self._seen_ms + wait_ms
                found = {part: tuple(self._subscriptions_of(part, one)) for part, one in stats.items()}
                self.view = View(desired=desired, subscriptions=found, refusal=refusal_of(self._plan, stats))
        due_topic, view = self._plan.due_topic, self.view
        if view.desired.state is not before.desired.state:
            self._hooks.emit(ShadowState(due_topic=due_topic, state=view.desired.state.value))
        if view.refusal and view.refusal != before.refusal:
            self._hooks.emit(ShadowRefuses(due_topic=due_topic, reason=view.refusal))
        return view

    def note(self, caught_up_ms: Mapping[int, int]) -> None:
        """Store when the movers of partitions had processed the backlog, UTC milliseconds; 0: they no longer have.

        Each time is stored once, so that a shadow that has lost a partition, and does not know it yet, does not
        overwrite its successor's for long. A role that may not store it moves all the same.
        """
        if self._fails:
            return
        news = {
            caught_up_property(partition): str(at_ms)
            for partition, at_ms in caught_up_ms.items()
            if self._noted.get(partition) != at_ms
        }
        if news:
            try:
                self._admin.topics.update_properties(self._names.journal, news)
            except AdminError as error:
                if not isinstance(error, AdminDenied):
                    return  # stored at a later call
        self._noted = caught_up_ms

    def subscriptions(self, part: str) -> tuple[Subscription, ...]:
        """Return all subscriptions of a partition, as last seen; never none: no original could be acknowledged."""
        return self.view.subscriptions.get(part) or tuple(
            Subscription(name, joins=False) for name in self._plan.subscriptions
        )

    def there_now(self, part: str) -> frozenset[str] | None:
        """Return the names of all current subscriptions of a partition; None: the admin API does not answer."""
        if self._fails or self._clock.monotonic_ms() < self._silent_until_ms:
            return None
        try:
            return frozenset(self._admin.subscriptions.list(part))
        except AdminMissing:
            return frozenset()
        except AdminError:
            self._silent_until_ms = self._clock.monotonic_ms() + SILENT_MS
            return None

    def inspect_soon(self) -> None:
        """Make the next look request statistics, whatever their cost; any thread may call it."""
        self._ask_again_ms = 0

    def _subscriptions_of(self, part: str, stats: TopicStats) -> Iterable[Subscription]:
        for name, one in _durable(stats):
            # The type of a subscription without consumers is unknown, and a consumer that stays in it would decide it.
            if one.type in DELAYING_TYPES:
                self._by_key[part, name] = one.type == "Key_Shared"
            yield Subscription(
                name,
                joins=one.type == "Shared" and one.is_consumed,
                by_key=self._by_key.get((part, name), False),
                delays=one.type not in IN_ORDER_TYPES,
            )

    def _stats(self) -> Mapping[str, TopicStats]:
        topics = self._admin.topics
        if not self._plan.is_partitioned:
            return {self._plan.due_topic: topics.stats(self._plan.due_topic, clients=True)}
        whole = topics.partitioned_stats(self._plan.due_topic, clients=True)
        count, found = whole.partition_count, whole.partitions
        if count not in {self._plan.partitions, self._partitions}:
            told = ShadowMissesPartitions(due_topic=self._plan.due_topic, has=count, plan=self._plan.partitions)
            self._hooks.emit(told)
        self._partitions = count
        # A partition that no broker has loaded is missing; a request for its own stats loads it.
        return {part: found[part] if part in found else topics.stats(part, clients=True) for part in self._parts}


def refusal_of(plan: Plan, stats: Mapping[str, TopicStats], target: str = "PLAN") -> str:
    """Return why no timer may be moved, as a sentence; empty: there is no obstacle."""
    for part, one in stats.items():
        lacking = [name for name in plan.subscriptions if name not in one.subscriptions]
        if lacking:
            return f"{part} has no subscription {lacking[0]}: run {timewheel_command('topics', 'ensure', target)}"
        for name, subscription in _durable(one):
            if name == _OF_THE_BROKER:
                return f"{part} is compacted, and a compacted view would show originals that are gone: end compaction"
            if subscription.type in IN_ORDER_TYPES:
                return (
                    f"subscription {name} of {part} is {subscription.type}, where brokers delay nothing: "
                    "make it Shared, or remove it"
                )
    return ""


def _durable(stats: TopicStats) -> Iterable[tuple[str, SubscriptionStats]]:
    return ((name, one) for name, one in stats.subscriptions.items() if one.is_durable)
