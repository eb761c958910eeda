"""The reader: reads everything that the checks judge by, and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from timewheel.broker.admin.client import AdminClient, NamespacePolicies
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.parts import whole_topic
from timewheel.broker.admin.policies import (
    AGE_QUOTA,
    DEDUPLICATION,
    DELAYED_DELIVERY,
    INACTIVE_TOPIC,
    MAX_MESSAGE_BYTES,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
    MESSAGE_TTL_S,
    PAUSE_ON_ACK_STATE,
    PERSISTENCE,
    RETENTION,
    SIZE_QUOTA,
    Policy,
)
from timewheel.broker.admin.stats import DEDUPLICATION as DEDUPLICATION_CURSOR
from timewheel.broker.admin.stats import InternalStats, TopicStats
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.clock import pause
from timewheel.core.durations import format_duration
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing
from timewheel.core.ids import place_id
from timewheel.core.names import JOURNAL_SUBSCRIPTION, RELAY_SUBSCRIPTION, Names, namespace_of, partition_of, parts_of
from timewheel.core.plan import Plan
from timewheel.core.steps import INTAKE_STEP, JOURNAL_STEP, Step
from timewheel.core.topology import FormerTopic, TopicSpec, Topology, topology
from timewheel.inspect.doctor.seen import Head, Newest, Part, Seen, SeenTopic
from timewheel.inspect.doctor.settings import profile_by
from timewheel.inspect.entries import Place, open_entries
from timewheel.inspect.errors import NoSuchTarget
from timewheel.inspect.gaps import GapSnapshot, inspect_gaps
from timewheel.inspect.gaps.snapshot import with_shadows
from timewheel.inspect.missing_topics import no_such_topic
from timewheel.inspect.plan_sample import StoredTimer, first_timers, leaves_ms, timers_of
from timewheel.inspect.reader import Reader, Source, Unseen, each
from timewheel.provision.former_topics import look_into
from timewheel.provision.provision_steps import TopicState, existing_of
from timewheel.provision.provisioned import Provisioned, provisioned, with_noted_namespaces

READ: Final[tuple[Policy[Any], ...]] = (
    MESSAGE_TTL_S,
    SIZE_QUOTA,
    AGE_QUOTA,
    INACTIVE_TOPIC,
    DEDUPLICATION,
    RETENTION,
    DELAYED_DELIVERY,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
    PERSISTENCE,
)
UNREAD_MS = 2_000
"""Pause before a second look at a subscription that is not read: a limited rate of dispatch pauses for a second."""
LATELY_MS = 60_000
"""After a failed write the broker tries again at the next write, at the earliest 10 s later: younger failures last."""
SWITCHED_OFF = 405  # Method Not Allowed: the broker's answer if topic policies are disabled


class TopicReader:
    """Reads topics, several concurrently; the values that they inherit are read if the settings are unknown."""

    def __init__(self, admin: AdminClient, reads: Reader, *, has_settings: bool) -> None:
        self._admin = admin
        self._reads = reads
        self._has_settings = has_settings
        self.has_topic_policies = True
        self._last: dict[str, tuple[int, EntryPosition]] = {}
        """For each partition, the time of the read of its last entry, and the entry's position."""

    def read(self, topic: SeenTopic, policies: NamespacePolicies | None) -> SeenTopic:
        """Return the topic with everything that the broker reports about it."""
        if not topic.exists:
            return topic
        parts = [part for name in topic.existing_parts.values() if (part := self._part(topic, name)) is not None]
        properties: Mapping[str, str] = {}
        if topic.spec is not None and topic.spec.role in {"journal", "due"}:
            # Set by a shadow (journal) or by provisioning (due topics); empty before Pulsar 2.11.
            read = self._reads.ask(topic.name, lambda: self._admin.topics.properties(topic.name))
            properties = read or {}
        own = {policy: self._policy(topic.name, policy) for policy in (*READ, MAX_MESSAGE_BYTES)}
        inherited: list[Policy[Any]] = [] if self._has_settings else [*READ]
        unset = [policy for policy in inherited if policies is None or policies.get(policy) is None]
        return replace(
            topic,
            state=replace(
                topic.state,
                subscriptions=self._subscriptions(topic, parts),
                policies={policy: value for policy, value in own.items() if value is not None},
                provisioned=Provisioned.read(properties),
            ),
            applied={policy: self._policy(topic.name, policy, applied=True) for policy in unset},
            pauses=self._policy(topic.name, PAUSE_ON_ACK_STATE, applied=True),
            parts=tuple(parts),
            properties=properties,
        )

    def _policy(self, topic: str, policy: Policy[Any], *, applied: bool = False) -> Any:
        def get() -> Any:
            try:
                return self._admin.topic_policies.get(topic, policy, applied=applied)
            except AdminError as error:
                if error.status != SWITCHED_OFF:
                    raise
                self.has_topic_policies = False
                return None

        return self._reads.ask(topic, get, Source.POLICIES) if self.has_topic_policies else None

    @staticmethod
    def _subscriptions(topic: SeenTopic, parts: list[Part]) -> dict[int, frozenset[str]]:
        """Return the subscriptions by partition.

        An unreadable partition counts as having the plan's subscriptions: it is reported as unread instead.
        """
        wanted = frozenset(() if topic.spec is None else topic.spec.subscriptions)
        by_name = {part.name: frozenset(name for name in part.stats.subscriptions) for part in parts}
        return {number: by_name.get(name, wanted) for number, name in topic.existing_parts.items()}

    def _part(self, topic: SeenTopic, name: str) -> Part | None:
        # Partitions of a plan were listed; of another topic, some partitions may never have been used.
        listed = topic.spec is not None
        stats = self._reads.ask(name, lambda: self._admin.topics.stats(name, clients=True), was_there=listed)
        if stats is None:
            return None
        part = Part(name=name, stats=stats)
        internal: InternalStats | None = None
        deduplicates = topic.spec is not None and topic.spec.deduplication and topic.spec.role != "slot"
        relay, step = stats.subscriptions.get(RELAY_SUBSCRIPTION), _relayed_by(topic)
        waits = step is not None and relay is not None and relay.backlog > 0
        asked_for = any(one.should_be_read for one in stats.subscriptions.values())
        if deduplicates or waits or asked_for:
            internal = self._internal(name)
            if internal is not None:
                cursor = internal.cursors.get(DEDUPLICATION_CURSOR)
                part = replace(
                    part,
                    producer_names=None if cursor is None else cursor.property_count,
                    no_ledger_since_ms=internal.no_ledger_since_ms,
                    unread=unread_of(stats, internal),
                )
                if waits and step is not None:
                    part = replace(part, head=self._head(name, internal, step))
                if topic.spec is not None and topic.spec.role == "journal":
                    part = replace(part, journal_since_ms=self._journal_since_ms(name, internal))
        return replace(part, newest=self._newest(name, stats, internal))

    def _internal(self, name: str) -> InternalStats | None:
        """Return the internal stats of a partition whose stats were read."""
        return self._reads.ask(name, lambda: self._admin.topics.internal_stats(name), was_there=True)

    def _journal_since_ms(self, name: str, internal: InternalStats) -> int | None:
        place = next(_waiting(name, internal, JOURNAL_SUBSCRIPTION), None)
        entry = None if place is None else self._entry(*place)
        return None if entry is None else entry.publish_at_ms

    def _head(self, name: str, internal: InternalStats, step: Step) -> Head | None:
        in_intake = step.kind == "intake"

        def timers_at(place: Place) -> tuple[StoredTimer, ...] | None:
            entry = self._entry(place.topic, place.position)
            return None if entry is None else timers_of(place, entry, in_intake=in_intake)

        first = first_timers(_waiting(name, internal, RELAY_SUBSCRIPTION), timers_at)
        if first is None:
            return None
        place, (timer, *_) = first
        if timer.is_first:
            # By a clock that may be ahead of the broker's.
            timer = replace(timer, entered_ms=min(timer.entered_ms, timer.stored_ms))
        own_id = place_id(name, *place.position)
        timer_id = own_id if timer.envelope is None else timer.envelope.timer_id
        return Head(timer_id=timer_id, due_ms=timer.due_ms, release_ms=leaves_ms(step, timer))

    def _newest(self, name: str, stats: TopicStats, internal: InternalStats | None) -> Newest | None:
        if not stats.storage_bytes:
            return None
        if internal is None:
            internal = self._internal(name)
        asked_ms = self._admin.clock.now_ms()
        entry = self._last_entry(name)
        if entry is None:
            return None
        self._last[name] = asked_ms, entry.position
        since_ms = None
        # A message from another cluster may have waited for hours.
        is_own = not entry.is_replicated
        if (
            is_own
            and internal is not None
            and internal.ledgers
            and internal.ledgers[-1].ledger_id == entry.position.ledger
        ):
            since_ms = internal.ledger_since_ms
        return Newest(
            producer=entry.producer,
            published_ms=entry.publish_at_ms,
            seen_ms=self._admin.clock.now_ms(),
            ledger_since_ms=since_ms,
        )

    def again(self, topic: SeenTopic) -> SeenTopic:
        """Read the messages that arrived since `read`, whose storage time is known; look again at what is not read."""
        if any(part.unread for part in topic.parts):
            pause(self._admin.clock, UNREAD_MS)
        return replace(
            topic,
            parts=tuple(
                replace(part, later=self._later(part.name), unread=self._still_unread(part)) for part in topic.parts
            ),
        )

    def _still_unread(self, part: Part) -> Mapping[str, EntryPosition]:
        if not part.unread:
            return {}
        stats = self._reads.ask(part.name, lambda: self._admin.topics.stats(part.name, clients=True))
        internal = self._internal(part.name)
        if stats is None or internal is None:
            return {}
        return dict(part.unread.items() & unread_of(stats, internal).items())

    def _later(self, name: str) -> Newest | None:
        if name not in self._last:
            return None
        absent_ms, before = self._last[name]
        entry = self._last_entry(name, after=before)
        if entry is None:
            return None
        return Newest(
            producer=entry.producer,
            published_ms=entry.publish_at_ms,
            seen_ms=self._admin.clock.now_ms(),
            absent_ms=None if entry.is_replicated else absent_ms,
        )

    def _last_entry(self, name: str, *, after: EntryPosition | None = None) -> StoredEntry | None:
        position = self._reads.ask(name, lambda: self._admin.topics.last_position(name), Source.ENTRIES)
        if position is None or position.entry < 0 or (after is not None and position <= after):
            return None
        return self._entry(name, position)

    def _entry(self, name: str, position: EntryPosition) -> StoredEntry | None:
        return self._reads.ask(name, lambda: self._admin.topics.entry(name, position), Source.ENTRIES)


_ENTRANCES = {"intake": INTAKE_STEP, "journal": JOURNAL_STEP}


def _relayed_by(topic: SeenTopic) -> Step | None:
    """Return the step by which relays move a topic's timers; None if no relay reads them, or the broker delays them."""
    entrance = None if topic.spec is None else _ENTRANCES.get(topic.spec.role)
    return entrance or (None if topic.by_broker else topic.step)


def _waiting(name: str, internal: InternalStats, subscription: str) -> Iterator[Place]:
    """Yield the places of unacknowledged entries, in order."""
    cursor = internal.cursors.get(subscription)
    return iter(()) if cursor is None else open_entries(name, cursor, internal.ledgers).places()


CALLS_AT_ONCE = 8  # topics read concurrently; each takes a dozen calls of some milliseconds
BROKER = "the broker"


def inspect_plan(admin: AdminClient, plan: Plan, *, target: str) -> Seen:
    """Read everything that a plan needs.

    Args:
        admin: Client whose role administers the plan's tenants; the role of a superuser sees more.
        plan: The plan.
        target: The user's name for the plan.

    Raises:
        AdminUnreachable: No broker answers.
    """
    return _Look(admin, target).at_plan(plan)


def inspect_topic(admin: AdminClient, topic: str) -> Seen:
    """Read a topic, whether or not it belongs to timewheel.

    Args:
        admin: Client whose role may read the topic's stats; a tenant's administrator sees more, a superuser everything.
        topic: Full name of a persistent topic, or of a partition.

    Raises:
        NoSuchTarget: The topic does not exist.
        AdminUnreachable: No broker answers.
    """
    return _Look(admin, topic).at_topic()


def unread_of(stats: TopicStats, internal: InternalStats) -> dict[str, EntryPosition]:
    """Return the subscriptions that should be read and are not, with their read positions."""
    cursors = internal.cursors
    return {
        name: cursors[name].read
        for name, one in stats.subscriptions.items()
        if one.should_be_read and name in cursors and not cursors[name].is_read
    }


class _Look:
    """A single read of a setup; not reusable."""

    def __init__(self, admin: AdminClient, target: str) -> None:
        self._admin = admin
        self._target = target
        self._reads = Reader(admin)
        self._at_ms = admin.clock.now_ms()
        self._settings: Mapping[str, str] | None = admin.brokers.runtime_configuration()
        self._version = self._reads.ask(BROKER, admin.brokers.version, Source.SETTINGS) or ""
        self._namespaces: dict[str, NamespacePolicies | None] = {}

    def at_plan(self, plan: Plan) -> Seen:
        noted = self._reads.ask(plan.due_topic, lambda: provisioned(self._admin, plan.due_topic))
        whole = with_noted_namespaces(plan, noted)
        now = topology(plan, self._at_ms)
        stored = self._listed({*Names(whole).namespaces, *(namespace_of(spec.name) for spec in now.topics)})
        every = [name for listed in stored.values() for name in listed]
        former = self._reads.ask(whole.due_topic, lambda: look_into(self._admin, whole, every)) or ()
        all_of_it = topology(plan, self._at_ms, drains=any(topic.holding is not None for topic in former))
        found = [
            self._of_plan(spec, all_of_it, stored.get(namespace_of(spec.name), frozenset()))
            for spec in all_of_it.topics
        ]
        return self._seen(found, plan=plan, former=former)

    def at_topic(self) -> Seen:
        name = whole_topic(self._admin, self._target)
        partitions = self._admin.topics.partitions(name)
        if partitions is None:
            raise NoSuchTarget(self._target, no_such_topic(self._admin, name))
        self._read_namespaces([namespace_of(name)])
        found = SeenTopic(
            name=name,
            namespace=namespace_of(name),
            spec=None,
            state=TopicState(partitions=partitions, existing=frozenset(range(len(parts_of(name, partitions))))),
            by_broker=True,
        )
        return self._seen([found])

    def _seen(
        self, topics: Sequence[SeenTopic], plan: Plan | None = None, former: tuple[FormerTopic, ...] = ()
    ) -> Seen:
        reader = TopicReader(self._admin, self._reads, has_settings=self._settings is not None)
        looks = each(lambda topic: reader.read(topic, self._namespaces.get(topic.namespace)), topics, CALLS_AT_ONCE)
        seen = [read for _, read in looks]
        if plan is None and not any(topic.parts for topic in seen) and not self._reads.unseen:
            raise NoSuchTarget(self._target, no_such_topic(self._admin, topics[0].name))
        profile = profile_by(self._settings, self._version)
        inspect = self._gaps(seen, profile)
        seen = [read for _, read in each(reader.again, seen, CALLS_AT_ONCE)]
        bookies, brokers, dynamic = None, None, frozenset[str]()
        ailment = self._failed_write(seen)
        if self._settings is not None:
            if not ailment:
                ailment = self._reads.ask(BROKER, self._admin.brokers.ailment, Source.BROKERS) or ""
            brokers = self._reads.ask(BROKER, self._admin.brokers.active, Source.BROKERS)
            bookies = self._reads.ask(BROKER, self._admin.bookies, Source.BOOKIES)
            dynamic = self._reads.ask(BROKER, self._admin.brokers.dynamic_settings, Source.SETTINGS) or dynamic
        return Seen(
            target=self._target,
            plan=plan,
            at_ms=self._at_ms,
            profile=profile,
            settings=self._settings,
            dynamic=dynamic,
            bookies=None if bookies is None else len(bookies),
            brokers=None if brokers is None else len(brokers),
            ailment=ailment,
            time=self._reads.ask(BROKER, self._admin.brokers.time, Source.TIME),
            namespaces=self._namespaces,
            topics=tuple(seen),
            former=former,
            gaps=inspect.subscriptions,
            shadowed=inspect.shadowed,
            has_topic_policies=reader.has_topic_policies,
            unread=(*self._reads.unseen, *self._denied_settings()),
        )

    def _failed_write(self, topics: Iterable[SeenTopic]) -> str:
        """Return the plan's write that failed a moment ago, if any: then the broker's health, 10 s, is not asked."""
        failed_ms, name = max(
            ((part.no_ledger_since_ms or 0, part.name) for topic in topics for part in topic.parts), default=(0, "")
        )
        ago_ms = max(self._admin.clock.now_ms() - failed_ms, 0)
        return f"no new ledger for {name} {format_duration(ago_ms // 1000 * 1000)} ago" if ago_ms < LATELY_MS else ""

    def _denied_settings(self) -> tuple[Unseen, ...]:
        if self._settings is not None:
            return ()
        reason = "this role may not read them; it takes a superuser"
        sources = (Source.SETTINGS, Source.BOOKIES, Source.BROKERS)
        return tuple(Unseen(source=source, what=BROKER, reason=reason) for source in sources)

    def _listed(self, namespaces: Iterable[str]) -> dict[str, frozenset[str]]:
        """List all topics of each namespace, each partition under its own name."""
        self._read_namespaces(namespaces)
        listed = {}
        for name, policies in self._namespaces.items():
            if policies is not None:
                found = self._reads.ask(name, partial(self._admin.topics.list, name))
                listed[name] = found
        # If topics may not be listed, no topic counts as missing.
        self._namespaces = {
            name: had for name, had in self._namespaces.items() if had is None or listed[name] is not None
        }
        return {name: frozenset(topics) for name, topics in listed.items() if topics is not None}

    def _read_namespaces(self, names: Iterable[str]) -> None:
        """Read the namespaces' policies: a namespace that may not be read is left out, a missing namespace is None."""
        for name in sorted(names):
            try:
                self._namespaces[name] = self._admin.namespaces.policies(name)
            except AdminMissing:
                self._namespaces[name] = None
            except AdminDenied as error:
                self._reads.lost(name, error.reason, Source.NAMESPACES)

    def _of_plan(self, spec: TopicSpec, whole: Topology, stored: frozenset[str]) -> SeenTopic:
        holding = next((topic for topic in whole.holding if topic.name == spec.name), None)
        partitions = None
        if stored:
            partitions = self._reads.ask(spec.name, lambda: self._admin.topics.partitions(spec.name))
        stray = tuple(sorted(name for name in stored if partition_of(name)[0] == spec.name != name))
        return SeenTopic(
            name=spec.name,
            namespace=namespace_of(spec.name),
            spec=spec,
            state=TopicState(
                partitions=partitions,
                existing=frozenset() if partitions is None else existing_of(stored, spec.name, partitions),
                stray=() if partitions is not None else stray,
            ),
            by_broker=spec.is_consumed or (holding is not None and holding.by_broker),
            step=None if holding is None else holding.step,
        )

    def _gaps(self, topics: Sequence[SeenTopic], profile: BrokerProfile) -> GapSnapshot:
        """Read the gaps of topics under the broker's delay; a relay acknowledges in order and leaves no gaps."""
        delayed = [topic for topic in topics if topic.by_broker and topic.exists]
        names = [
            name
            for topic in delayed
            for name in topic.existing_parts.values()
            if any(part.name == name for part in topic.parts)
        ]
        inspect = inspect_gaps(self._admin, names, profile, at_once=CALLS_AT_ONCE)
        for name in inspect.gone:
            self._reads.lost(name)
        for one in inspect.unseen:
            self._reads.lost(one.what, one.reason)
        return with_shadows(self._admin, inspect)
