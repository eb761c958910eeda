"""The life of a calendar's topics: made ahead of their interval, removed once it has passed and they are drained.

Removing is what can lose timers (broker-facts: removing-a-topic): a forced delete makes a cached producer's next send
succeed into a new topic without subscriptions, and an unforced one takes a backlog with it when nobody is connected. So
a passed topic is **terminated** (late sends are refused, what waits is still delivered), left until **every**
subscription has nothing left, and only then deleted, unforced.

=================  ==========================================  ============
stage              when                                        next action
=================  ==========================================  ============
open               its interval, with the grace, has not passed  nothing
passed             some partition still takes sends            terminate
draining           some subscription has a backlog             wait
stranded           entries that no subscription of the plan sees  report
drained            none of these                               delete
=================  ==========================================  ============
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from timewheel.admin.client import AdminClient
from timewheel.admin.internals import TERMINATED
from timewheel.core.clock import Clock, pause
from timewheel.core.durations import MINUTE_MS, SECOND_MS
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable, TimewheelError
from timewheel.core.names import CalendarTopic, namespace_of, partition_of
from timewheel.core.plan import Calendar, Plan
from timewheel.core.plurals import counted
from timewheel.events import CalendarRollFailed, CalendarTopicDeleted, CalendarTopicStuck
from timewheel.hooks import Hook
from timewheel.ops.leaving import delete_once_left
from timewheel.ops.provision import Report, ensure
from timewheel.wire.hooks import Hooks

__all__ = ["CalendarKeeper", "LifeState", "RetiredTopic", "Rolled", "Stage", "grace_ms", "roll", "stage_of"]

MAX_TRANSITIONS = 4
"""A topic passes at most two stages in one roll; a broker that says otherwise is asked again at the next."""

LOOK_AGAIN_MS = SECOND_MS
"""Before a partition without its topic is called an orphan."""

LONGEST_PAUSE_MS = MINUTE_MS
"""Between two rolls of a keeper."""


class Stage(Enum):
    """Where a calendar topic is in its life; the table in this module's head."""

    OPEN = "open"
    PASSED = "passed"
    DRAINING = "draining"
    STRANDED = "stranded"
    DRAINED = "drained"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeState:
    """What the broker says of one calendar topic, all partitions together.

    Args:
        interval: Its interval.
        terminated: Every partition that exists refuses sends.
        entries: Entries on disk.
        backlog: Entries not acknowledged, by subscription; partitions added up.
        complete: The subscriptions that are on every partition that exists.
    """

    interval: CalendarTopic
    terminated: bool
    entries: int
    backlog: Mapping[str, int]
    complete: frozenset[str]


def stage_of(state: LifeState, subscriptions: Sequence[str], now_ms: int, grace_ms: int) -> Stage:
    """Where a topic is in its life, and so what may be done to it.

    Args:
        state: What the broker says, read *after* a termination if there was one: a backlog that is 0 before it can
            still grow.
        subscriptions: The plan's.
        now_ms: UTC milliseconds.
        grace_ms: After the interval's end, for clocks that differ and sends on their way.
    """
    if now_ms < state.interval.end_ms + grace_ms:
        return Stage.OPEN
    if not state.terminated:
        return Stage.PASSED
    if any(state.backlog.values()):
        return Stage.DRAINING
    if state.entries and not state.complete.issuperset(subscriptions):
        # Nobody acknowledged them for the subscription that is not there: it expired, or someone removed it.
        return Stage.STRANDED
    return Stage.DRAINED


def grace_ms(plan: Plan) -> int:
    """How long after its interval's end a topic is left alone: the guard covers skew and sends on their way."""
    return plan.guard_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredTopic:
    """One topic that has passed, after a roll.

    Args:
        topic: Full name.
        stage: Where it is now.
        backlog: What it still holds, by subscription.
        note: Why it is not further; empty where nothing is wrong.
    """

    topic: str
    stage: Stage
    backlog: Mapping[str, int]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """What one roll did.

    Args:
        made: Provisioning of the intervals to come.
        retired: The passed topics, and how far each is.
        open_topics: How many are still in their life.
    """

    made: Report
    retired: tuple[RetiredTopic, ...]
    open_topics: int


def roll(admin: AdminClient, plan: Plan, now_ms: int, *, dry_run: bool = False) -> Rolled:
    """Make the intervals to come, and take every passed one as far towards its end as it may go.

    Idempotent and interruptible: each call reads the broker's state and goes on from there. Two at once do no harm.
    Topics of another interval length (an earlier revision of the plan) are retired as well.

    Args:
        admin: Client of the cluster; its role must administer the tenant.
        plan: A calendar plan.
        now_ms: UTC milliseconds.
        dry_run: Change nothing; the stages are those that were found.

    Raises:
        TypeError: The plan is no calendar plan.
        TopologyError, AdminDenied, AdminError: As `timewheel.ops.provision.ensure`.
    """
    if not isinstance(plan.scheme, Calendar):
        raise TypeError(f"a {type(plan.scheme).__name__} plan has no calendar topics")
    # Timers of an earlier plan are told of and hold nothing up: without the next interval's topic sends would fail.
    # Intervals of another length are retired below.
    made = ensure(admin, plan, now_ms=now_ms, dry_run=dry_run, despite_former_topics=True)
    namespace = namespace_of(plan.due_topic)
    partitioned = admin.topics.list_partitioned(namespace)
    intervals = [
        interval for name in partitioned if (interval := CalendarTopic.parse(plan.due_topic, name)) is not None
    ]
    passed = sorted(
        (interval for interval in intervals if now_ms >= interval.end_ms + grace_ms(plan)),
        key=lambda interval: (interval.end_ms, interval.name),
    )
    retired = [_retire(admin, plan, interval, now_ms, dry_run=dry_run) for interval in passed]
    return Rolled(
        made=made,
        retired=(*retired, *_orphans(admin, plan)),
        open_topics=len(intervals) - len(passed),
    )


def _retire(admin: AdminClient, plan: Plan, interval: CalendarTopic, now_ms: int, *, dry_run: bool) -> RetiredTopic:
    """Take one passed topic as far as it may go; one that cannot be read or changed now does not stop the others."""
    topic, stage, backlog = interval.name, Stage.PASSED, dict[str, int]()
    try:
        for _ in range(MAX_TRANSITIONS):
            state = _life_state(admin, interval)
            stage, backlog = stage_of(state, plan.subscriptions, now_ms, grace_ms(plan)), dict(state.backlog)
            if stage is Stage.STRANDED:
                lacking = ", ".join(sorted(set(plan.subscriptions) - state.complete))
                entries = counted(state.entries, "entry was", "entries were")
                note = f"{entries} never acknowledged for {lacking}: create it, or delete by hand"
                return RetiredTopic(topic=topic, stage=stage, backlog=backlog, note=note)
            if stage is Stage.PASSED and not dry_run:
                admin.topics.terminate(topic)
                continue
            if stage is Stage.DRAINED and not dry_run:
                return _delete(admin, topic)
            return RetiredTopic(topic=topic, stage=stage, backlog=backlog)
    except AdminMissing:
        return RetiredTopic(topic=topic, stage=Stage.DELETED, backlog={}, note="somebody else removed it")
    except (AdminDenied, AdminUnreachable):
        raise
    except AdminError as error:
        return RetiredTopic(topic=topic, stage=stage, backlog=backlog, note=f"{error}; tried again at the next roll")
    return RetiredTopic(topic=topic, stage=stage, backlog=backlog, note="the broker does not keep it terminated")


def _delete(admin: AdminClient, topic: str) -> RetiredTopic:
    if delete_once_left(admin, [topic]):
        return RetiredTopic(topic=topic, stage=Stage.DELETED, backlog={})
    note = "drained, and clients are still connected: it is deleted once they have gone"
    return RetiredTopic(topic=topic, stage=Stage.DRAINED, backlog={}, note=note)


def _life_state(admin: AdminClient, interval: CalendarTopic) -> LifeState:
    # Internal stats first: they load the partitions, and a partition that nobody has loaded is missing from the stats.
    stored = admin.topics.partitioned_internal_stats(interval.name)
    stats = {
        name: partition
        for name, partition in admin.topics.partitioned_stats(interval.name, precise_backlog=True).partitions.items()
        if name != interval.name  # a topic without any partition left answers under its own name
    }
    existing = {
        name for name in admin.topics.list(namespace_of(interval.name)) if partition_of(name)[0] == interval.name
    }
    if not stored.keys() == stats.keys() == existing:
        # What is not seen must not be taken for empty.
        answers = f"{len(existing)} partitions exist, {len(stored)} and {len(stats)} of them answer"
        raise AdminError(None, f"stats of {interval.name}", answers)
    names = {name for partition in stats.values() for name in partition.subscriptions}
    return LifeState(
        interval=interval,
        terminated=all(partition.state == TERMINATED for partition in stored.values()),
        entries=sum(partition.entries for partition in stored.values()),
        backlog={
            name: sum(
                partition.subscriptions[name].backlog for partition in stats.values() if name in partition.subscriptions
            )
            for name in sorted(names)
        },
        complete=frozenset(
            name for name in names if all(name in partition.subscriptions for partition in stats.values())
        ),
    )


def _orphans(admin: AdminClient, plan: Plan) -> tuple[RetiredTopic, ...]:
    """Partitions without their topic, as 4.0 makes them for whoever sends to or reads a topic that is not there."""
    found = _orphan_entries(admin, plan)
    if found:
        pause(admin.clock, LOOK_AGAIN_MS)  # a topic that somebody else deletes right now looks like that for a moment
        again = _orphan_entries(admin, plan)
        found = {name: entries for name, entries in again.items() if name in found}
    return tuple(
        RetiredTopic(
            topic=name,
            stage=Stage.STRANDED,
            backlog={},
            note="somebody sent or subscribed while its topic was not there, and the broker made it: "
            f"{counted(entries, 'entry', 'entries')} outside of the plan; look into it and delete it by hand",
        )
        for name, entries in found.items()
    )


def _orphan_entries(admin: AdminClient, plan: Plan) -> dict[str, int]:
    namespace = namespace_of(plan.due_topic)
    # Listed in this order: of a topic that is made in between, both or only the second is seen.
    stored = admin.topics.list(namespace)
    partitioned = frozenset(admin.topics.list_partitioned(namespace))
    found: dict[str, int] = {}
    for name in stored:
        topic = partition_of(name)[0]
        if topic in partitioned or CalendarTopic.parse(plan.due_topic, topic) is None:
            continue
        try:
            found[name] = admin.topics.internal_stats(name).entries
        except AdminMissing:
            continue
    return found


class CalendarKeeper:
    """Rolls a calendar now and then; whoever runs for long may own one (a relay service, a consumer, a cron job).

    `tick` does nothing until it is time again, so it may be called from any loop.

    Args:
        admin: Client of the cluster; the caller closes it.
        plan: A calendar plan.
        clock: Time.
        hooks: Told of `CalendarTopicDeleted`, `CalendarTopicStuck` and `CalendarRollFailed`; None: they are logged.
    """

    __slots__ = ("_admin", "_clock", "_hooks", "_next_ms", "_plan", "_told")

    def __init__(self, admin: AdminClient, plan: Plan, clock: Clock, *, hooks: tuple[Hook, ...] | None = None) -> None:
        if not isinstance(plan.scheme, Calendar):
            raise TypeError(f"a {type(plan.scheme).__name__} plan has no calendar topics")
        self._admin = admin
        self._plan = plan
        self._clock = clock
        self._hooks = Hooks(hooks)
        self._next_ms: int | None = None
        self._told: frozenset[str] = frozenset()

    @property
    def pause_ms(self) -> int:
        """Between two rolls: a quarter of an interval, a second to a minute. Topics are made an interval ahead."""
        assert isinstance(self._plan.scheme, Calendar)
        return max(SECOND_MS, min(self._plan.scheme.interval_ms // 4, LONGEST_PAUSE_MS))

    def tick(self) -> Rolled | None:
        """Roll if it is time; None if it is not, or if it failed (said to the hooks, tried again at the next time)."""
        if self._next_ms is not None and self._clock.monotonic_ms() < self._next_ms:
            return None
        self._next_ms = self._clock.monotonic_ms() + self.pause_ms
        try:
            rolled = roll(self._admin, self._plan, self._clock.now_ms())
        except TimewheelError as error:
            self._hooks.emit(CalendarRollFailed(due_topic=self._plan.due_topic, error=str(error)))
            return None
        self._tell(rolled)
        return rolled

    def _tell(self, rolled: Rolled) -> None:
        stuck = {topic.topic for topic in rolled.retired if topic.stage is not Stage.DELETED and topic.note}
        for topic in rolled.retired:
            if topic.stage is Stage.DELETED:
                self._hooks.emit(CalendarTopicDeleted(topic=topic.topic))
            elif topic.topic in stuck - self._told:  # once, not at every roll
                self._hooks.emit(CalendarTopicStuck(topic=topic.topic, note=topic.note))
        self._told = frozenset(stuck)
