"""The reader: reads everything that the checks judge by, and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.namespaces import NamespacePolicies
from timewheel.broker.admin.parts import whole_topic
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import AdminDenied, AdminMissing
from timewheel.core.former_topics import FormerTopic
from timewheel.core.names import Names, namespace_of, partition_of, parts_of
from timewheel.core.plan import Plan
from timewheel.core.topology import TopicSpec, Topology, topology
from timewheel.inspect.doctor.asking import Asking
from timewheel.inspect.doctor.reading_topics import TopicReader
from timewheel.inspect.doctor.seen import Seen, SeenTopic, Source, Unread
from timewheel.inspect.doctor.settings import profile_by
from timewheel.inspect.errors import NoSuchTarget
from timewheel.inspect.gaps import GapSnapshot, inspect_gaps
from timewheel.inspect.gaps.snapshot import with_shadows
from timewheel.inspect.missing_topics import no_such_topic
from timewheel.provision.former_topics import look_into
from timewheel.provision.provision_steps import TopicState, existing_of
from timewheel.provision.provisioned import provisioned, with_noted_namespaces

CALLS_AT_ONCE = 8
"""Topics read concurrently; each takes a dozen calls of some milliseconds."""
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


class _Look:
    """A single read of a setup; not reusable."""

    def __init__(self, admin: AdminClient, target: str) -> None:
        self._admin = admin
        self._target = target
        self._asking = Asking()
        self._at_ms = admin.clock.now_ms()
        self._settings = self._read_settings()
        self._version = self._asking.ask(Source.SETTINGS, BROKER, admin.brokers.version) or ""
        self._namespaces: dict[str, NamespacePolicies | None] = {}

    def at_plan(self, plan: Plan) -> Seen:
        noted = self._asking.ask(Source.TOPICS, plan.due_topic, lambda: provisioned(self._admin, plan.due_topic))
        whole = with_noted_namespaces(plan, noted)
        now = topology(plan, self._at_ms)
        stored = self._listed({*Names(whole).namespaces, *(namespace_of(spec.name) for spec in now.topics)})
        every = [name for listed in stored.values() for name in listed]
        former = self._former(whole, every)
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
            state=TopicState(
                partitions=partitions,
                existing=frozenset(range(len(parts_of(name, partitions)))),
                subscriptions={},
                policies={},
            ),
            by_broker=True,
        )
        return self._seen([found])

    def _seen(
        self, topics: Sequence[SeenTopic], plan: Plan | None = None, former: tuple[FormerTopic, ...] = ()
    ) -> Seen:
        reader = TopicReader(self._admin, self._asking, has_settings=self._settings is not None)
        with ThreadPoolExecutor(CALLS_AT_ONCE, "timewheel-doctor") as pool:
            seen = list(pool.map(lambda topic: reader.read(topic, self._namespaces.get(topic.namespace)), topics))
        if plan is None and not any(topic.parts for topic in seen) and not self._asking.unread:
            raise NoSuchTarget(self._target, no_such_topic(self._admin, topics[0].name))
        profile = profile_by(self._settings, self._version)
        inspect = self._gaps(seen, profile)
        with ThreadPoolExecutor(CALLS_AT_ONCE, "timewheel-doctor") as pool:
            seen = list(pool.map(reader.again, seen))
        bookies = None if self._settings is None else self._asking.ask(Source.BOOKIES, BROKER, self._admin.bookies)
        return Seen(
            target=self._target,
            plan=plan,
            at_ms=self._at_ms,
            profile=profile,
            settings=self._settings,
            dynamic=self._dynamic(),
            bookies=None if bookies is None else len(bookies),
            time=self._asking.ask(Source.TIME, BROKER, self._admin.brokers.time),
            namespaces=self._namespaces,
            topics=tuple(seen),
            former=former,
            gaps=inspect.subscriptions,
            shadowed=inspect.shadowed,
            has_topic_policies=reader.has_topic_policies,
            unread=(*self._asking.unread, *self._denied_settings()),
        )

    def _read_settings(self) -> Mapping[str, str] | None:
        return self._admin.brokers.runtime_configuration()

    def _denied_settings(self) -> tuple[Unread, ...]:
        if self._settings is not None:
            return ()
        reason = "this role may not read them; it takes a superuser"
        return tuple(
            Unread(source=source, subject=BROKER, reason=reason) for source in (Source.SETTINGS, Source.BOOKIES)
        )

    def _dynamic(self) -> frozenset[str]:
        if self._settings is None:
            return frozenset()
        return self._asking.ask(Source.SETTINGS, BROKER, self._admin.brokers.dynamic_settings) or frozenset()

    def _listed(self, namespaces: Iterable[str]) -> dict[str, frozenset[str]]:
        """List all topics of each namespace, each partition under its own name."""
        self._read_namespaces(namespaces)
        listed = {}
        for name, policies in self._namespaces.items():
            if policies is not None:
                found = self._asking.ask(Source.TOPICS, name, partial(self._admin.topics.list, name))
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
                self._asking.refused(Source.NAMESPACES, name, error)

    def _former(self, plan: Plan, names: Sequence[str]) -> tuple[FormerTopic, ...]:
        found = self._asking.ask(Source.TOPICS, plan.due_topic, lambda: look_into(self._admin, plan, names))
        return found or ()

    def _of_plan(self, spec: TopicSpec, whole: Topology, stored: frozenset[str]) -> SeenTopic:
        holding = next((topic for topic in whole.holding if topic.name == spec.name), None)
        partitions = None
        if stored:
            partitions = self._asking.ask(Source.TOPICS, spec.name, lambda: self._admin.topics.partitions(spec.name))
        stray = tuple(sorted(name for name in stored if partition_of(name)[0] == spec.name != name))
        return SeenTopic(
            name=spec.name,
            namespace=namespace_of(spec.name),
            spec=spec,
            state=TopicState(
                partitions=partitions,
                existing=frozenset() if partitions is None else existing_of(stored, spec.name, partitions),
                subscriptions={},
                policies={},
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
            self._asking.lost(Source.TOPICS, name)
        for one in inspect.unseen:
            self._asking.lost(Source.TOPICS, one.what, one.reason)
        return with_shadows(self._admin, inspect)
