"""Read a topic: its policies, its partitions with their clients, the first waiting timer and the newest message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.internals import DEDUPLICATION as DEDUPLICATION_CURSOR
from timewheel.broker.admin.internals import EntryPosition, InternalStats
from timewheel.broker.admin.namespaces import NamespacePolicies
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
from timewheel.broker.admin.stats import TopicStats
from timewheel.core.errors import AdminError
from timewheel.core.ids import place_id
from timewheel.core.names import JOURNAL_SUBSCRIPTION, RELAY_SUBSCRIPTION
from timewheel.core.steps import INTAKE_STEP, JOURNAL_STEP, Step
from timewheel.inspect.doctor.asking import Asking
from timewheel.inspect.doctor.seen import Head, Newest, Part, SeenTopic, Source
from timewheel.inspect.plan_stored import StoredTimer, first_timers, leaves_ms, timers_of
from timewheel.inspect.sample import Place
from timewheel.inspect.status.runs import open_runs, positions_of
from timewheel.provision.provision_steps import TopicState
from timewheel.provision.provisioned import Provisioned

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
SWITCHED_OFF = 405
"""Method Not Allowed: the broker's answer if topic policies are disabled."""


class TopicReader:
    """Reads topics, several concurrently.

    Args:
        admin: Client of the cluster.
        asking: Records refusals.
        has_settings: True if the broker's settings are known, and with them the values that topics inherit.
    """

    def __init__(self, admin: AdminClient, asking: Asking, *, has_settings: bool) -> None:
        self._admin = admin
        self._asking = asking
        self._has_settings = has_settings
        self.has_topic_policies = True
        self._last: dict[str, tuple[int, EntryPosition]] = {}
        """For each partition, the time of the read of its last entry, and the entry's position."""

    def read(self, topic: SeenTopic, policies: NamespacePolicies | None) -> SeenTopic:
        """Return the topic with everything that the broker reports about it.

        Args:
            topic: The topic's name, its part of the plan, and its partitions.
            policies: Policies of its namespace; None if unknown.
        """
        if not topic.exists:
            return topic
        parts = [part for name in topic.existing_parts.values() if (part := self._part(topic, name)) is not None]
        properties = self._properties(topic)
        return replace(
            topic,
            state=TopicState(
                partitions=topic.state.partitions,
                existing=topic.state.existing,
                subscriptions=self._subscriptions(topic, parts),
                policies=self._own(topic.name),
                stray=topic.state.stray,
                provisioned=Provisioned.read(properties),
            ),
            applied={} if self._has_settings else self._applied(topic.name, policies),
            pauses=self._policy(topic.name, PAUSE_ON_ACK_STATE, applied=True),
            parts=tuple(parts),
            properties=properties,
        )

    def _properties(self, topic: SeenTopic) -> dict[str, str]:
        """Return properties set by a shadow (journal) or by provisioning (due topics); empty before Pulsar 2.11."""
        if topic.spec is None or topic.spec.role not in {"journal", "due"}:
            return {}
        return self._asking.ask(Source.TOPICS, topic.name, lambda: self._admin.topics.properties(topic.name)) or {}

    def _own(self, topic: str) -> dict[Policy[Any], Any]:
        own = {policy: self._policy(topic, policy) for policy in (*READ, MAX_MESSAGE_BYTES)}
        return {policy: value for policy, value in own.items() if value is not None}

    def _applied(self, topic: str, policies: NamespacePolicies | None) -> dict[Policy[Any], Any]:
        every: list[Policy[Any]] = [*READ]
        unsaid = [policy for policy in every if policies is None or policies.get(policy) is None]
        return {policy: self._policy(topic, policy, applied=True) for policy in unsaid}

    def _policy(self, topic: str, policy: Policy[Any], *, applied: bool = False) -> Any:
        if not self.has_topic_policies:
            return None
        try:
            return self._ask(Source.POLICIES, topic, lambda: self._get(topic, policy, applied=applied))
        except _SwitchedOff:
            self.has_topic_policies = False
            return None

    def _get(self, topic: str, policy: Policy[Any], *, applied: bool) -> Any:
        try:
            return self._admin.topic_policies.get(topic, policy, applied=applied)
        except AdminError as error:
            if error.status == SWITCHED_OFF:
                raise _SwitchedOff from error
            raise

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
        stats = self._asking.ask(
            Source.TOPICS, name, lambda: self._admin.topics.stats(name, clients=True), was_there=listed
        )
        if stats is None:
            return None
        part = Part(name=name, stats=stats)
        internal: InternalStats | None = None
        deduplicates = topic.spec is not None and topic.spec.deduplication and topic.spec.role != "slot"
        relay, step = stats.subscriptions.get(RELAY_SUBSCRIPTION), _relayed_by(topic)
        waits = step is not None and relay is not None and relay.backlog > 0
        if deduplicates or waits:
            internal = self._internal(name)
            if internal is not None:
                cursor = internal.cursors.get(DEDUPLICATION_CURSOR)
                part = replace(part, producer_names=None if cursor is None else cursor.property_count)
                if waits and step is not None:
                    part = replace(part, head=self._head(name, internal, step))
                if topic.spec is not None and topic.spec.role == "journal":
                    part = replace(part, journal_since_ms=self._journal_since_ms(name, internal))
        return replace(part, newest=self._newest(name, stats, internal))

    def _internal(self, name: str) -> InternalStats | None:
        """Return the internal stats of a partition whose stats were read."""
        return self._asking.ask(Source.TOPICS, name, lambda: self._admin.topics.internal_stats(name), was_there=True)

    def _journal_since_ms(self, name: str, internal: InternalStats) -> int | None:
        position = next(_waiting(internal, JOURNAL_SUBSCRIPTION), None)
        entry = None if position is None else self._entry(name, position)
        return None if entry is None else entry.publish_at_ms

    def _head(self, name: str, internal: InternalStats, step: Step) -> Head | None:
        in_intake = step.kind == "intake"

        def timers_at(place: Place) -> tuple[StoredTimer, ...] | None:
            entry = self._entry(place.topic, place.position)
            return None if entry is None else timers_of(place, entry, in_intake=in_intake)

        waiting = _waiting(internal, RELAY_SUBSCRIPTION)
        first = first_timers((Place(name, position) for position in waiting), timers_at)
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
        """Read the messages that arrived since `read`: their time of storage is known."""
        return replace(topic, parts=tuple(replace(part, later=self._later(part.name)) for part in topic.parts))

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
        position = self._ask(Source.ENTRIES, name, lambda: self._admin.topics.last_position(name))
        if position is None or position.entry < 0 or (after is not None and position <= after):
            return None
        return self._entry(name, position)

    def _entry(self, name: str, position: EntryPosition) -> StoredEntry | None:
        return self._asking.ask(Source.ENTRIES, name, lambda: self._admin.topics.entry(name, position))

    def _ask(self, source: Source, subject: str, call: Callable[[], Any]) -> Any:
        return self._asking.ask(source, subject, call)


_ENTRANCES = {"intake": INTAKE_STEP, "journal": JOURNAL_STEP}


class _SwitchedOff(Exception):
    """Topic policies are disabled on the broker."""


def _relayed_by(topic: SeenTopic) -> Step | None:
    """Return the step by which relays move a topic's timers; None if no relay reads them, or the broker delays them."""
    entrance = None if topic.spec is None else _ENTRANCES.get(topic.spec.role)
    return entrance or (None if topic.by_broker else topic.step)


def _waiting(internal: InternalStats, subscription: str) -> Iterator[EntryPosition]:
    """Yield the positions of unacknowledged entries, in order."""
    cursor = internal.cursors.get(subscription)
    runs = () if cursor is None else open_runs(cursor, internal.ledgers)
    return positions_of(runs, range(sum(run.entries for run in runs)))
