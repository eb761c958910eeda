"""Topics of earlier plans: find them with their backlogs, describe who moves their timers, and remove them once empty.

As with calendar topics (broker-facts: removing-a-topic, end-of-a-topic), a topic is **terminated**, so that no message
can be added; then its backlog is read again; and only then it is deleted, unforced. All of this happens while no client
is connected: relays let go of topics that they find empty.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.http import asked
from timewheel.broker.admin.parts import relays_of
from timewheel.core.clock import pause
from timewheel.core.durations import SECOND_MS, format_duration
from timewheel.core.errors import AdminError, AdminMissing
from timewheel.core.escapes import timewheel_command
from timewheel.core.names import (
    PARKED_SUBSCRIPTION,
    RELAY_SUBSCRIPTION,
    CalendarTopic,
    Names,
    namespace_of,
    partition_of,
)
from timewheel.core.plan import Native, Plan
from timewheel.core.plurals import counted
from timewheel.core.topology import FormerTopic, former_topics, topology
from timewheel.provision.findings import Finding, warning_kind
from timewheel.provision.provisioned import provisioned, with_noted_namespaces


class FormerTopics:
    """Finds topics of earlier plans; passed to the plan's `Relay`, which then drains them.

    Args:
        admin: Client of the cluster; its role must be able to list the plan's namespaces.
        plan: The plan.
        beside: Plans whose relays and consumers run beside those of this plan.
    """

    def __init__(self, admin: AdminClient, plan: Plan, *, beside: Iterable[Plan] = ()) -> None:
        self._admin = admin
        self._plan = plan
        self._beside = tuple(beside)

    def __call__(self) -> tuple[FormerTopic, ...]:
        """Return all topics of earlier plans, also empty topics: clients of an earlier plan may still send to them."""
        return look_into(self._admin, self._plan, former_names(self._admin, self._plan), beside=self._beside)


def former_names(admin: AdminClient, plan: Plan, *, besides: Iterable[str] = ()) -> list[str]:
    """List all topics of the namespaces that may contain topics of the plan or of an earlier plan."""
    names: list[str] = []
    for namespace in sorted({*Names(plan).namespaces} - {*besides}):
        with suppress(AdminMissing):  # a missing namespace has no waiting timers
            names += admin.topics.list(namespace)
    return names


def look_into(
    admin: AdminClient, plan: Plan, names: Sequence[str], *, beside: Iterable[Plan] = ()
) -> tuple[FormerTopic, ...]:
    """Select the topics of earlier plans from a list, each with its backlog."""
    partitions: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        partitions[partition_of(name)[0]].append(name)
    found: list[FormerTopic] = []
    for topic in former_topics(plan, names, beside=beside):
        seen = [_waiting(admin, name, _readers_of(plan, topic)) for name in partitions[topic.name]]
        waits = [part.drained_by for part in seen if part.backlog]
        found.append(
            replace(
                topic,
                backlog=sum(part.backlog for part in seen),
                producers=sum(part.producers for part in seen),
                relays=_sorted(part.relays for part in seen),
                drained_by=_sorted(waits) if all(waits) else (),
            )
        )
    return tuple(found)


def waiting_in_former(
    admin: AdminClient, plan: Plan, cannot: Callable[[str, AdminError], None]
) -> tuple[FormerTopic, ...]:
    """Return topics of earlier plans with a backlog, also in namespaces that the plan does not name. ``cannot`` is
    called with each subject that could not be read, and the error.

    Raises:
        AdminUnreachable: No broker answers.
    """
    noted = asked(lambda: provisioned(admin, plan.due_topic), partial(cannot, f"what is noted beside {plan.due_topic}"))
    whole = with_noted_namespaces(plan, noted)

    def waiting_in(namespace: str) -> list[FormerTopic]:
        return [topic for topic in look_into(admin, whole, admin.topics.list(namespace)) if topic.backlog]

    found: list[FormerTopic] = []
    for namespace in Names(whole).namespaces:
        refused = partial(cannot, f"topics of earlier plans in {namespace}")
        found += asked(partial(waiting_in, namespace), refused) or ()  # a missing namespace has no waiting timers
    return tuple(found)


def _readers_of(plan: Plan, topic: FormerTopic) -> set[str]:
    """Return the subscriptions that must exist; without them, no entry has been acknowledged."""
    if topic.holding is not None:
        return {RELAY_SUBSCRIPTION}
    if topic.parked_by is not None:
        return {PARKED_SUBSCRIPTION}
    return {*plan.subscriptions} if topic.is_due else set()


def held_backlog(admin: AdminClient, plan: Plan, *, with_former: bool = False) -> int:
    """Count the entries that wait in the holding topics of a plan. AdminError: a call failed."""
    names = former_names(admin, plan)
    holding = {topic.name for topic in topology(plan, admin.clock.now_ms()).holding}
    if with_former:
        holding |= {topic.name for topic in former_topics(plan, names) if topic.holding is not None}
    partitions = [name for name in names if partition_of(name)[0] in holding]
    return sum(_waiting(admin, name, {RELAY_SUBSCRIPTION}).backlog for name in partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    backlog: int = 0
    producers: int = 0
    relays: frozenset[str] = frozenset()
    drained_by: frozenset[str] = frozenset()


def _sorted(relays: Iterable[frozenset[str]]) -> tuple[str, ...]:
    return tuple(sorted(frozenset[str]().union(*relays)))


def _waiting(admin: AdminClient, topic: str, wanted: AbstractSet[str]) -> _Part:
    """Read a partition's backlog and clients, which loads the partition: in a sum, an unloaded partition counts 0."""
    try:
        stats = admin.topics.stats(topic, precise_backlog=True, clients=True)
        subscriptions, producers = stats.subscriptions, stats.publishers or 0
        if not subscriptions or not wanted <= subscriptions.keys():
            # No consumer acknowledged anything for a missing subscription.
            return _Part(backlog=admin.topics.internal_stats(topic).entries, producers=producers)
    except AdminMissing:
        return _Part()  # removed since it was listed
    return _Part(
        backlog=max(subscription.backlog for subscription in subscriptions.values()),
        producers=producers,
        relays=relays_of(stats),
        drained_by=relays_of(stats, drains=True),
    )


TARGET = "PLAN"  # placeholder for a plan's file whose name is not known


def run_command(plan: Plan | None, target: str = TARGET) -> str:
    """Return the command that runs the relays of a plan: the relays of a plan with an intake belong to its shadow."""
    return timewheel_command("shadow" if plan is not None and plan.intake else "relay", "run", target)


def left_behind(plan: Plan, topics: Sequence[FormerTopic]) -> tuple[FormerTopic, ...]:
    """Return the topics whose waiting timers no relay or consumer of the plan would move.

    A separate relay can list topics and drains the holding topics of an earlier plan. A relay inside a consumer cannot
    list topics unless the service passes it a `FormerTopics`: then it is seen to drain them. Neither reads a namespace
    that the plan does not name. Consumers read the intervals that the plan names. Parked timers wait for an operator.
    """
    return tuple(
        topic for topic in topics if topic.backlog and topic.parked_by is None and not _is_redirected(plan, topic)
    )


def _is_redirected(plan: Plan, topic: FormerTopic) -> bool:
    if topic.holding is None:
        return topic.is_followed
    return bool(topic.drained_by) or (plan.relay == "service" and not _unnamed(plan, [topic]))


def _unnamed(plan: Plan, topics: Sequence[FormerTopic]) -> set[str]:
    """Return the namespaces of topics that the plan does not name."""
    return {namespace_of(topic.name) for topic in topics} - {*Names(plan).namespaces}


def remedy_for(plan: Plan, topics: Sequence[FormerTopic], target: str = TARGET) -> str:
    """Describe the remedy for timers that are left behind."""
    remedies = []
    if unnamed := _unnamed(plan, topics):
        former = json.dumps([*plan.former_namespaces, *sorted(unnamed)])
        remedies.append(f"write former_namespaces = {former} in the plan, and have its relays take that up")
    if any(topic.holding is not None and namespace_of(topic.name) not in unnamed for topic in topics):
        by_relay = (
            f"keep a relay that can list topics running until they are empty "
            f"({run_command(plan, target)}, or consumers with former_topics=)"
        )
        way_out = f"run {timewheel_command('relay', 'abort', target)} once all services have this plan"
        remedies.append(way_out if isinstance(plan.scheme, Native) else by_relay)
    lengths_ms = {
        interval.interval_ms
        for topic in topics
        if topic.is_due and (interval := CalendarTopic.parse(plan.due_topic, topic.name)) is not None
    }
    if lengths_ms:
        lengths = ", ".join(f'"{format_duration(length_ms)}"' for length_ms in sorted(lengths_ms))
        remedies.append(f"write former_intervals = [{lengths}] in the plan, so that its consumers read them too")
    if any(not topic.is_partitioned for topic in topics):
        remedies.append(
            "keep consumers of the plan that says partitions = 0 running until it is empty: those of a calendar cannot "
            "read a due topic that is not partitioned"
        )
    entrances = {Names(plan).intake, Names(plan).journal}
    if any(topic.name in entrances for topic in topics):
        remedies.append(
            f"keep {timewheel_command('shadow', 'run', target)} going, with the plan that says intake = true, until "
            f"{timewheel_command('shadow', 'status', target)} shows an empty journal"
        )
    if any(topic.holding is None and not topic.is_due and topic.name not in entrances for topic in topics):
        remedies.append("run the version of timewheel that made them, with the plan that named them")
    return "; ".join(remedies)


FORMER_TOPIC = warning_kind(
    slug="former-topic",
    why="Timers of an earlier plan wait here: relays or consumers of this plan move them on while they run, and parked "
    "timers wait for you.",
    do="Deal with parked timers; remove the topic when it is empty.",
)


def findings_of(plan: Plan, topics: Sequence[FormerTopic], target: str = TARGET) -> tuple[Finding, ...]:
    """Return a finding for each topic with a backlog; arguments as of `remedy_for`."""
    return tuple(_finding(plan, topic, target) for topic in topics if topic.backlog)


def _finding(plan: Plan, topic: FormerTopic, target: str) -> Finding:
    entries = f"{counted(topic.backlog, 'entry waits', 'entries wait')} here, of an earlier plan"
    send_outcome = f"afterwards: {timewheel_command('topics', 'ensure', target, '--remove-drained')}"
    if topic.parked_by is not None:
        whose = ("--subscription", topic.parked_by)
        problem = f"{entries}: {topic.parked_by} has parked these timers, and no consumer handles them without a replay"
        remedy = (
            f"{timewheel_command('parked', 'list', target, *whose)} shows them, "
            f"{timewheel_command('parked', 'replay', target, *whose, '--all')} has them handled if the plan has "
            f"retry = true, {timewheel_command('parked', 'discard', target, *whose, '--all')} drops them; "
            f"{send_outcome}"
        )
    elif not _is_redirected(plan, topic):
        problem, remedy = f"{entries}: {_why_it_stays(plan, topic)}", remedy_for(plan, [topic], target)
    elif topic.holding is None:
        problem, remedy = f"{entries}: this plan's consumers read it", send_outcome
    else:
        stay = "the broker's delay" if topic.holding.by_broker else "its stay or its slot"
        is_native = isinstance(plan.scheme, Native)
        goes = "goes to the due topic at once" if is_native else f"leaves after {stay}, and goes on by this plan"
        drains = timewheel_command("relay", "abort", target) if is_native else run_command(plan, target)
        problem, remedy = f"{entries}: each {goes}", f"{drains} drains it; {send_outcome}"
        if topic.drained_by:
            relay = f"relay {', '.join(topic.drained_by)}"
            problem, remedy = f"{problem}; {relay} drains it", f"keep {relay} running until it is empty; {send_outcome}"
    return FORMER_TOPIC.at(topic.name, read=problem, cure=remedy)


def _why_it_stays(plan: Plan, topic: FormerTopic) -> str:
    """Explain why no relay or consumer of the plan moves a topic's timers, and name the relays connected at present."""
    if unnamed := _unnamed(plan, [topic]):
        why = f"no relay moves it on, since this plan does not name the namespace {unnamed.pop()}"
    elif topic.holding is not None:
        why = "this plan's consumers, with their relays inside, do not find it by themselves"
    else:
        why = "no relay moves it on"
    return why + (f"; connected now: relay {', '.join(topic.relays)}" if topic.relays else "")


RECONNECT_MS = 3 * SECOND_MS
"""A client that loses its connection reconnects after 0.1 to 1.1 s (measured with pulsar-client 3.13)."""
FIRST_RECONNECT_MS = SECOND_MS // 2
"""A client that had just connected, and loses its connection for the first time, reconnects after 0.1 s."""


def connected_clients(admin: AdminClient, topic: str) -> int:
    """Count the producers and consumers that are connected to a partitioned topic."""
    try:
        partitions = admin.topics.partitioned_stats(topic, clients=True).partitions.values()
    except AdminMissing:
        return 0
    return sum(
        (partition.publishers or 0)
        + sum(len(subscription.consumers or ()) for subscription in partition.subscriptions.values())
        for partition in partitions
    )


def delete_once_left(admin: AdminClient, topics: Iterable[str], *, pause_ms: int = RECONNECT_MS) -> frozenset[str]:
    """Delete partitioned topics, unforced, except those with a client that is connected or about to reconnect.

    A client whose topic was terminated drops its connection and reconnects. A delete in that moment would succeed, and
    the client would create the topic anew. So two reads must find no client, with a pause between them.
    """
    left = [topic for topic in topics if not connected_clients(admin, topic)]
    if left:
        pause(admin.clock, pause_ms)
    return frozenset(topic for topic in left if not connected_clients(admin, topic) and _delete(admin, topic))


def _delete(admin: AdminClient, topic: str) -> bool:
    try:
        admin.topics.delete(topic)  # never forced
    except AdminError as error:
        if error.status != 412:  # Precondition Failed: producers or consumers are connected
            raise
        return False
    return True


LET_GO_MS = 150 * SECOND_MS  # relays let go of a topic that they find empty twice, a minute apart
LOOK_AGAIN_MS = 2 * SECOND_MS


class RemovalStage(Enum):
    """Progress of removing a topic of an earlier plan."""

    WAITS = "waits"
    """Timers wait in the topic."""
    IN_USE = "in use"
    """The topic is empty, but has connected clients: relays that still watch it, or clients of the earlier plan."""
    EMPTY = "empty"
    """The topic can be removed; only in a dry run."""
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Removal of a topic of an earlier plan.

    Args:
        topic: Full name.
        stage: Present stage.
        backlog: Waiting entries.
        clients: Connected producers and consumers.
    """

    topic: str
    stage: RemovalStage
    backlog: int = 0
    clients: int = 0

    def __str__(self) -> str:
        match self.stage:
            case RemovalStage.WAITS:
                return f"{counted(self.backlog, 'entry waits', 'entries wait')} there"
            case RemovalStage.IN_USE:
                return (
                    f"empty, but {counted(self.clients, 'client is', 'clients are')} connected: "
                    "run this again when they have gone"
                )
            case RemovalStage.EMPTY:
                return "empty: would be removed"
            case RemovalStage.REMOVED:
                return "removed"


def remove_drained(
    admin: AdminClient,
    plan: Plan,
    *,
    dry_run: bool = False,
    let_go_ms: int = LET_GO_MS,
    waits_for: Callable[[Removal], None] | None = None,
) -> tuple[Removal, ...]:
    """Remove the topics of earlier plans that are empty and have no connected client.

    An interruption or a concurrent run does no harm. No waiting entry is removed, and no client is disconnected.

    Args:
        admin: Client of the cluster; its role must administer the tenant.
        plan: The present plan.
        dry_run: Change nothing.
        let_go_ms: Time to wait for relays to let go.
        waits_for: Called once for each topic that is waited for.

    Returns:
        All topics of earlier plans, by name.

    Raises:
        AdminDenied, AdminError: A call failed; run it again.
    """
    inspect = FormerTopics(admin, plan)
    deadline_ms = admin.clock.monotonic_ms() + let_go_ms
    removed: dict[str, Removal] = {}
    told: set[str] = set()
    while True:
        # A topic without partitions is left to its owner: the topics of timewheel are partitioned.
        found = [_removal(admin, topic) for topic in inspect() if topic.is_partitioned]
        if dry_run:
            break
        empty = [removal.topic for removal in found if removal.stage is RemovalStage.EMPTY]
        for topic in _remove(admin, plan, empty):
            removed[topic] = Removal(topic=topic, stage=RemovalStage.REMOVED)
        found = [removal for removal in found if removal.topic not in removed]
        in_use = [removal for removal in found if removal.stage is not RemovalStage.WAITS]
        if not in_use or admin.clock.monotonic_ms() >= deadline_ms:
            break
        for removal in in_use:
            if waits_for is not None and removal.topic not in told:
                waits_for(removal)
            told.add(removal.topic)
        pause(admin.clock, LOOK_AGAIN_MS)
    return tuple(sorted([*found, *removed.values()], key=lambda removal: removal.topic))


def _removal(admin: AdminClient, topic: FormerTopic) -> Removal:
    if topic.backlog:
        return Removal(topic=topic.name, stage=RemovalStage.WAITS, backlog=topic.backlog)
    clients = connected_clients(admin, topic.name)
    stage = RemovalStage.IN_USE if clients else RemovalStage.EMPTY
    return Removal(topic=topic.name, stage=stage, clients=clients)


def _remove(admin: AdminClient, plan: Plan, topics: Collection[str]) -> frozenset[str]:
    """Remove topics that are empty and have no connected client."""
    orphans = {topic for topic in topics if admin.topics.partitions(topic) is None}
    if orphans:
        # Partitions without their topic, as created by a client that connects to a topic during its removal.
        for name in former_names(admin, plan):
            if partition_of(name)[0] in orphans:
                admin.topics.delete_unpartitioned(name)
    ended = {*topics} - orphans
    for topic in ended:
        admin.topics.terminate(topic)
    if ended:
        # Read after termination: before it, a backlog of 0 could still grow.
        ended -= {topic.name for topic in FormerTopics(admin, plan)() if topic.backlog}
    return frozenset(orphans) | delete_once_left(admin, sorted(ended))
