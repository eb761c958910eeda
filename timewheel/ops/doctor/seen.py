"""What was seen of a setup: everything that the checks judge by, and what could not be seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from timewheel.admin.brokers import BrokerTime
from timewheel.admin.namespaces import NamespacePolicies
from timewheel.admin.policies import Policy
from timewheel.admin.stats import SubscriptionStats, TopicStats
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.escapes import timewheel_command
from timewheel.core.former_topics import FormerTopic
from timewheel.core.names import STATE_PROPERTY, parts_of
from timewheel.core.plan import Plan
from timewheel.core.steps import Step
from timewheel.core.topology import TopicSpec
from timewheel.ops.gaps import SubscriptionGaps
from timewheel.ops.provision_steps import TopicState

__all__ = ["Head", "Newest", "Part", "Seen", "SeenTopic", "Source", "Unread"]


class Source(Enum):
    """Where checks get what they judge by."""

    SETTINGS = "the broker's settings"
    BOOKIES = "the list of bookies"
    NAMESPACES = "policies of namespaces"
    POLICIES = "policies of topics"
    TOPICS = "topics and their stats"
    ENTRIES = "stored messages"
    TIME = "the broker's clock"


OPTIONAL = frozenset({Source.SETTINGS, Source.BOOKIES, Source.ENTRIES, Source.TIME})
"""Not every role may see them, and what matters most is told by topics and namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """What could not be read.

    Args:
        source: Of what kind it is.
        subject: A topic, a namespace or the broker.
        reason: The broker's.
    """

    source: Source
    subject: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first timer that waits in a partition of a holding topic, of the intake or of the journal.

    Args:
        timer_id: Its name.
        due_ms: When it is due, UTC milliseconds.
        release_ms: When it should leave, UTC milliseconds.
    """

    timer_id: str
    due_ms: int
    release_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The last message of a partition.

    Args:
        producer: Name of its producer.
        published_ms: By the clock of its producer, UTC milliseconds.
        seen_ms: By this machine's clock, when it was already there.
        absent_ms: By this machine's clock, when it was not there yet; None: not known.
        ledger_since_ms: By the broker's clock, when the ledger was begun in which it is; None: not known.
    """

    producer: str
    published_ms: int
    seen_ms: int
    absent_ms: int | None = None
    ledger_since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One partition, or a topic without partitions.

    Args:
        name: Full name.
        stats: With clients.
        head: None: nothing waits, or it could not be read, or no relay holds this topic.
        newest: None: nothing was sent, or it could not be read.
        later: The last one at the end of the whole look; None: the same, or it could not be read.
        producer_names: That the broker remembers for deduplication; None: not asked for.
        journal_since_ms: Of the journal: when the oldest copy that it keeps was stored, UTC milliseconds; None: there
            is none, or it could not be read.
    """

    name: str
    stats: TopicStats
    head: Head | None = None
    newest: Newest | None = None
    later: Newest | None = None
    producer_names: int | None = None
    journal_since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTopic:
    """One topic, with all its partitions.

    Args:
        name: Full name without a partition's suffix.
        namespace: ``tenant/namespace``.
        spec: What the plan says of it; None: there is no plan.
        state: As provisioning sees it.
        by_broker: Its messages wait under the broker's delay.
        step: Of a holding topic; None: it is none.
        applied: Policies in force that are set neither on the topic nor on its namespace, where the broker's settings
            may not be read.
        pauses: By a policy of the topic or its namespace nothing more is delivered at the limit on gaps; None: not
            known.
        parts: Those that there are.
        properties: What is noted beside it, of the journal and of due topics; nothing where it could not be read.
    """

    name: str
    namespace: str
    spec: TopicSpec | None
    state: TopicState
    by_broker: bool
    step: Step | None = None
    applied: Mapping[Policy[Any], Any] = field(default_factory=dict)
    pauses: bool | None = None
    parts: tuple[Part, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return self.state.partitions is not None

    @property
    def existing_parts(self) -> Mapping[int, str]:
        """The names under which the broker stores it, by number, of what is really there."""
        partitions = self.state.partitions
        names = () if partitions is None else parts_of(self.name, partitions)
        return {number: name for number, name in enumerate(names) if number in self.state.existing}

    @property
    def backlog(self) -> int:
        return sum(subscription.backlog for _, _, subscription in self.subscriptions())

    @property
    def delayed(self) -> int:
        """Messages that the broker waits to deliver, on the subscription and partition with most."""
        return max((subscription.delayed for _, _, subscription in self.subscriptions()), default=0)

    def subscriptions(self) -> Iterator[tuple[Part, str, SubscriptionStats]]:
        """Every durable subscription of every partition."""
        for part in self.parts:
            for name, subscription in part.stats.subscriptions.items():
                if subscription.is_durable:
                    yield part, name, subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything.

    Args:
        target: What the user named: a plan's file, or a topic.
        plan: None: the target is a topic.
        at_ms: When it was begun to look, UTC milliseconds, by this machine's clock.
        profile: The broker's limits; those of its version, where they may not be read.
        settings: The broker's; None: they may not be read.
        dynamic: Names of the settings that can be changed without a restart.
        bookies: How many there are; None: not known.
        time: The broker's clock; None: not known.
        namespaces: By name; None: there is no such namespace.
        topics: In the plan's order.
        former: Topics of earlier plans.
        gaps: Of all subscriptions under the broker's delay.
        shadowed: Desired states of shadows, by topic; of topics near their limit.
        has_topic_policies: Whether the broker has policies of topics at all.
        unread: What could not be read.
    """

    target: str
    plan: Plan | None
    at_ms: int
    profile: BrokerProfile
    settings: Mapping[str, str] | None = None
    dynamic: frozenset[str] = frozenset()
    bookies: int | None = None
    time: BrokerTime | None = None
    namespaces: Mapping[str, NamespacePolicies | None] = field(default_factory=dict)
    topics: tuple[SeenTopic, ...] = ()
    former: tuple[FormerTopic, ...] = ()
    gaps: tuple[SubscriptionGaps, ...] = ()
    shadowed: Mapping[str, str] = field(default_factory=dict)
    has_topic_policies: bool = True
    unread: tuple[Unread, ...] = ()

    @property
    def is_blind(self) -> bool:
        """Something could not be read that must be, before one can say that a setup is in order."""
        return any(one.source not in OPTIONAL for one in self.unread)

    @property
    def shadow_state(self) -> str:
        """The desired state of the plan's shadow; empty: it has none, nobody has noted any, or it could not be read."""
        if self.plan is None or not self.plan.intake:
            return ""
        journals = (topic for topic in self.topics if topic.spec is not None and topic.spec.role == "journal")
        return next((topic.properties.get(STATE_PROPERTY, "").partition(" ")[0] for topic in journals), "")

    @property
    def provisions(self) -> str:
        """The command that makes topics, subscriptions and policies."""
        return timewheel_command("topics", "ensure", self.target)
