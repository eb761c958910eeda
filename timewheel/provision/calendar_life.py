"""The life cycle of calendar topics: created ahead of their interval, removed once they have passed and are drained.

Removal can lose timers (broker-facts: removing-a-topic): after a forced delete, the next send of a cached producer
succeeds into a new topic without subscriptions, and an unforced delete takes a backlog along if no client is connected.
So a passed topic is left alone until **every** subscription is drained, then **terminated**, so that late sends are
refused and a backlog of 0 cannot grow, and deleted, unforced. It is terminated only while no consumer is connected: a
consumer that meets the end of a topic loses its connection, and with it all its other topics (broker-facts:
end-of-a-topic). Visits of consumers end, and the pauses between them grow.

=========  ==============================================  ===========
stage      condition                                       next action
=========  ==============================================  ===========
open       its interval, with the grace, has not passed    nothing
draining   some subscription has a backlog                 wait
stranded   entries without a subscription of the plan      report
in use     accepts sends, and a consumer is connected      wait
passed     some partition still accepts sends              terminate
drained    none of these                                   delete
=========  ==============================================  ===========
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import TERMINATED
from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock, pause
from timewheel.core.durations import HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable, TimewheelError
from timewheel.core.names import CalendarTopic, namespace_of, partition_of
from timewheel.core.plan import Calendar, Plan
from timewheel.core.plurals import counted
from timewheel.events import CalendarRollFailed, CalendarTopicDeleted, CalendarTopicStuck
from timewheel.hooks import Hook
from timewheel.provision.former_topics import FIRST_RECONNECT_MS, RECONNECT_MS, delete_once_left
from timewheel.provision.provisioning import Report, ensure

LOOK_AGAIN_MS = SECOND_MS  # wait before a partition without its topic is reported as an orphan

LONGEST_PAUSE_MS = MINUTE_MS  # after a roll that has failed, or has left a passed topic

STUCK_AFTER_MS = HOUR_MS
"""Time after which a passed topic that waits for consumers is reported as stuck: visits take a minute."""


class Stage(Enum):
    """Stage in the life cycle of a calendar topic; see the table in the module's doc string."""

    OPEN = "open"
    DRAINING = "draining"
    STRANDED = "stranded"
    IN_USE = "in use"
    PASSED = "passed"
    DRAINED = "drained"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeState:
    """State of a calendar topic as the broker reports it: entries on disk, backlogs by subscription, subscriptions with
    a connected consumer, and connected producers.

    It is terminated, and a subscription complete, if that is so on every existing partition.
    """

    interval: CalendarTopic
    terminated: bool
    entries: int
    backlog: Mapping[str, int]
    complete: frozenset[str]
    consumed: frozenset[str]
    producers: int


def stage_of(state: LifeState, subscriptions: Sequence[str], now_ms: int, grace_ms: int) -> Stage:
    """Decide the stage of a calendar topic, and so the next action. The state is read *after* the topic's termination,
    if any: a backlog of 0 before that can still grow.
    """
    if now_ms < state.interval.end_ms + grace_ms:
        return Stage.OPEN
    if any(state.backlog.values()):
        return Stage.DRAINING
    if state.entries and not state.complete.issuperset(subscriptions):
        # No consumer acknowledged them for the missing subscription: it expired or was removed.
        return Stage.STRANDED
    if state.terminated:
        return Stage.DRAINED
    return Stage.IN_USE if state.consumed else Stage.PASSED


def grace_ms(plan: Plan) -> int:
    """Return the time after its interval's end before a topic is retired: the guard covers skew and sends in flight."""
    return plan.guard_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredTopic:
    """A passed topic after a roll, with the reason why it is not further."""

    topic: str
    stage: Stage
    backlog: Mapping[str, int]
    note: str = ""
    is_stuck: bool = False  # it stays for an hour already, or until somebody acts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """Result of a roll."""

    made: Report  # provisioning of upcoming intervals
    retired: tuple[RetiredTopic, ...]  # passed topics with their stages
    open_topics: int  # number of topics that are still open


def roll(admin: AdminClient, plan: Plan, now_ms: int, *, dry_run: bool = False) -> Rolled:
    """Create the topics of upcoming intervals, and advance every passed topic as far towards its removal as is safe.

    Idempotent and interruptible: each call reads the broker's state and continues from there. Concurrent calls do no
    harm. Topics of another interval length (from an earlier revision of the plan) are retired as well.

    Args:
        admin: Client of the cluster; its role must administer the tenant.
        plan: A calendar plan.
        now_ms: Present time, UTC milliseconds.
        dry_run: Change nothing; report the stages as found.

    Raises:
        TypeError: The plan is no calendar plan.
        TopologyError, AdminDenied, AdminError: See `timewheel.provision.provisioning.ensure`.
    """
    if not isinstance(plan.scheme, Calendar):
        raise TypeError(f"a {type(plan.scheme).__name__} plan has no calendar topics")
    # Waiting timers of an earlier plan are reported but block nothing: without the next interval's topic, sends would
    # fail. Intervals of another length are retired below.
    made = ensure(admin, plan, now_ms=now_ms, dry_run=dry_run, ignore_former_topics=True)
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
    return Rolled(made=made, retired=(*retired, *_orphans(admin, plan)), open_topics=len(intervals) - len(passed))


def _retire(admin: AdminClient, plan: Plan, interval: CalendarTopic, now_ms: int, *, dry_run: bool) -> RetiredTopic:
    """Advance a passed topic as far as is safe; a topic that cannot be read or changed now does not stop the others."""
    topic, stage, backlog = interval.name, Stage.PASSED, dict[str, int]()
    pause_ms = RECONNECT_MS
    try:
        state = _life_state(admin, interval)
        stage = stage_of(state, plan.subscriptions, now_ms, grace_ms(plan))
        if stage is Stage.PASSED and not dry_run:
            # A short pause where nobody was connected: a consumer whose visit begins in it meets the end of the topic.
            pause_ms = RECONNECT_MS if state.producers else FIRST_RECONNECT_MS
            admin.topics.terminate(topic)
            state = _life_state(admin, interval)
            stage = stage_of(state, plan.subscriptions, now_ms, grace_ms(plan))
        if stage is Stage.DRAINED and not dry_run and delete_once_left(admin, [topic], pause_ms=pause_ms):
            return RetiredTopic(topic=topic, stage=Stage.DELETED, backlog={})
        backlog, note = dict(state.backlog), _why_it_stays(stage, state, plan)
    except AdminMissing:
        return RetiredTopic(topic=topic, stage=Stage.DELETED, backlog={}, note="another process removed it")
    except (AdminDenied, AdminUnreachable):
        raise
    except AdminError as error:
        note = f"{error}; tried again at the next roll"
    is_stuck = stage is Stage.STRANDED or now_ms >= interval.end_ms + grace_ms(plan) + STUCK_AFTER_MS
    return RetiredTopic(topic=topic, stage=stage, backlog=backlog, note=note, is_stuck=is_stuck)


def _why_it_stays(stage: Stage, state: LifeState, plan: Plan) -> str:
    match stage:
        case Stage.DRAINING:
            unhandled = ", ".join(name for name, count in state.backlog.items() if count)
            return f"it has unhandled timers: a consumer of {unhandled} must run"
        case Stage.STRANDED:
            lacking = ", ".join(sorted(set(plan.subscriptions) - state.complete))
            entries = counted(state.entries, "entry was", "entries were")
            return f"{entries} never acknowledged for {lacking}: create it, or delete by hand"
        case Stage.IN_USE:
            return f"it is ended once no consumer is connected: {', '.join(sorted(state.consumed))} has some"
        case _:
            return "it is ended and deleted once no client is connected"


def _life_state(admin: AdminClient, interval: CalendarTopic) -> LifeState:
    # Internal stats first: they load the partitions, and a partition that is not loaded is missing from the stats.
    stored = admin.topics.partitioned_internal_stats(interval.name)
    stats = {
        name: partition
        for name, partition in admin.topics.partitioned_stats(
            interval.name, precise_backlog=True, clients=True
        ).partitions.items()
        if name != interval.name  # a topic without any partition left answers under its own name
    }
    existing = {
        name for name in admin.topics.list(namespace_of(interval.name)) if partition_of(name)[0] == interval.name
    }
    if not stored.keys() == stats.keys() == existing:
        # A partition that is not seen must not count as empty.
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
        consumed=frozenset(
            name
            for partition in stats.values()
            for name, subscription in partition.subscriptions.items()
            if subscription.consumers
        ),
        producers=sum(partition.publishers or 0 for partition in stats.values()),
    )


def _orphans(admin: AdminClient, plan: Plan) -> tuple[RetiredTopic, ...]:
    """Return partitions without their topic: Pulsar 4.0 creates them for clients of a missing topic."""
    found = _orphan_entries(admin, plan)
    if found:
        pause(admin.clock, LOOK_AGAIN_MS)  # a topic that is being deleted looks like an orphan for a moment
        again = _orphan_entries(admin, plan)
        found = {name: entries for name, entries in again.items() if name in found}
    return tuple(
        RetiredTopic(
            topic=name,
            stage=Stage.STRANDED,
            backlog={},
            note="a client sent or subscribed while its topic was missing, and the broker made it: "
            f"{counted(entries, 'entry', 'entries')} outside of the plan; inspect and delete it by hand",
            is_stuck=True,
        )
        for name, entries in found.items()
    )


def _orphan_entries(admin: AdminClient, plan: Plan) -> dict[str, int]:
    namespace = namespace_of(plan.due_topic)
    # Listed in this order: of a topic that is created in between, both or only the second is seen.
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


class CalendarRoller:
    """Rolls a calendar periodically, inside a long-running process: a relay service, a consumer or a cron job.

    `tick` does nothing until the next roll is due, so any loop may call it.

    Args:
        admin: Client of the cluster; the caller closes it.
        plan: A calendar plan.
        clock: Clock that times the rolls.
        hooks: Hooks that receive `CalendarTopicDeleted`, `CalendarTopicStuck` and `CalendarRollFailed`; by default
            these events are logged.
    """

    __slots__ = ("_admin", "_clock", "_hooks", "_next_ms", "_plan", "_reported")

    def __init__(self, admin: AdminClient, plan: Plan, clock: Clock, *, hooks: tuple[Hook, ...] | None = None) -> None:
        if not isinstance(plan.scheme, Calendar):
            raise TypeError(f"a {type(plan.scheme).__name__} plan has no calendar topics")
        self._admin = admin
        self._plan = plan
        self._clock = clock
        self._hooks = Hooks(hooks)
        self._next_ms: int | None = None
        self._reported: frozenset[str] = frozenset()

    @property
    def pause_ms(self) -> int:
        """Pause after which `tick` is called again: a quarter of an interval, a second to a minute."""
        return min(self._roll_every_ms, LONGEST_PAUSE_MS)

    @property
    def _roll_every_ms(self) -> int:
        assert isinstance(self._plan.scheme, Calendar)
        return max(SECOND_MS, self._plan.scheme.interval_ms // 4)  # topics are made an interval ahead

    def tick(self) -> Rolled | None:
        """Roll if a roll is due.

        Returns None if no roll was due, or if it failed: hooks receive the failure, and the next roll tries again.
        """
        if self._next_ms is not None and self._clock.monotonic_ms() < self._next_ms:
            return None
        self._next_ms = self._clock.monotonic_ms() + self.pause_ms
        try:
            rolled = roll(self._admin, self._plan, self._clock.now_ms())
        except TimewheelError as error:
            self._hooks.emit(CalendarRollFailed(due_topic=self._plan.due_topic, error=str(error)))
            return None
        self._report(rolled)
        if all(topic.stage is Stage.DELETED for topic in rolled.retired):
            self._next_ms = self._clock.monotonic_ms() + self._roll_every_ms
        return rolled

    def _report(self, rolled: Rolled) -> None:
        stuck = {topic.topic for topic in rolled.retired if topic.is_stuck}
        for topic in rolled.retired:
            if topic.stage is Stage.DELETED:
                self._hooks.emit(CalendarTopicDeleted(topic=topic.topic))
            elif topic.topic in stuck - self._reported:  # once, not at every roll
                self._hooks.emit(CalendarTopicStuck(topic=topic.topic, note=topic.note))
        self._reported = frozenset(stuck)
