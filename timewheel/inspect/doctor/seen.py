"""Checks with their kinds of findings, and the state of a setup that they judge by, as far as the role may read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from timewheel.broker.admin.client import BrokerTime, NamespacePolicies
from timewheel.broker.admin.policies import Policy
from timewheel.broker.admin.stats import SubscriptionStats, TopicStats
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.escapes import timewheel_command
from timewheel.core.names import STATE_PROPERTY, parts_of
from timewheel.core.plan import Plan
from timewheel.core.steps import Step
from timewheel.core.topology import FormerTopic, TopicSpec
from timewheel.inspect.gaps import SubscriptionGaps
from timewheel.inspect.reader import Source, Unseen
from timewheel.provision.findings import Finding, Kind
from timewheel.provision.provision_steps import TopicState

OPTIONAL = frozenset({Source.SETTINGS, Source.BOOKIES, Source.BROKERS, Source.ENTRIES, Source.TIME})
"""Sources that some roles may not read; the most important facts come from topics and namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first waiting timer in a partition of a holding topic, of the intake or of the journal.

    Args:
        timer_id: Id of the timer.
        due_ms: Due time, UTC milliseconds.
        release_ms: Time at which the timer should leave, UTC milliseconds.
    """

    timer_id: str
    due_ms: int
    release_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The last message of a partition."""

    producer: str  # name of its producer
    published_ms: int  # publish time by the producer's clock, UTC milliseconds
    seen_ms: int  # time by the local clock at which the message was already stored
    absent_ms: int | None = None  # time by the local clock at which it was not stored yet; None if unknown
    # time by the broker's clock at which the message's ledger was opened; None if unknown
    ledger_since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A partition, or a topic without partitions."""

    name: str  # full name
    stats: TopicStats  # stats with clients
    # first waiting timer; None if no timer waits, it could not be read, or no relay reads this topic
    head: Head | None = None
    newest: Newest | None = None  # last message; None if the partition is empty or could not be read
    later: Newest | None = None  # last message at the end of the whole read; None if unchanged or unreadable
    producer_names: int | None = None  # producer names that the broker remembers for deduplication; None if not read
    # journal only: time of storage of the oldest copy, UTC milliseconds; None if the journal is empty or could not be
    # read
    journal_since_ms: int | None = None
    # time when the broker last failed to create a ledger, UTC milliseconds; None if the newest attempt succeeded, or if
    # not read
    no_ledger_since_ms: int | None = None
    # subscriptions that should be read and are not, with their read positions; those that stay so during the whole read
    unread: Mapping[str, EntryPosition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTopic:
    """A topic with all its partitions."""

    name: str  # full name without a partition's suffix
    namespace: str  # `tenant/namespace`
    spec: TopicSpec | None  # the plan's specification of the topic; None without a plan
    state: TopicState  # state as provisioning reads it
    by_broker: bool  # True if its messages wait under the broker's delay
    step: Step | None = None  # step of a holding topic; None for other topics
    # policies in force that neither the topic nor its namespace sets; read only if the broker's settings may not be
    # read
    applied: Mapping[Policy[Any], Any] = field(default_factory=dict)
    # True if a policy of the topic or its namespace stops delivery at the gap limit; None if unknown
    pauses: bool | None = None
    parts: tuple[Part, ...] = ()  # existing partitions
    # properties of the journal and of due topics; empty if they could not be read
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return self.state.partitions is not None

    @property
    def existing_parts(self) -> Mapping[int, str]:
        """Names of the existing partitions, by number."""
        partitions = self.state.partitions
        names = () if partitions is None else parts_of(self.name, partitions)
        return {number: name for number, name in enumerate(names) if number in self.state.existing}

    @property
    def backlog(self) -> int:
        return sum(subscription.backlog for _, _, subscription in self.subscriptions())

    @property
    def delayed(self) -> int:
        """Number of delayed messages that the broker holds, on the subscription and partition with the most."""
        return max((subscription.delayed for _, _, subscription in self.subscriptions()), default=0)

    def stands_still(self, delayed: int) -> bool:
        """Return whether the broker holds so many delayed messages of a subscription, and leaves others unread."""
        return any(
            delayed <= one.delayed < one.backlog - one.unacked and one.is_consumed for _, _, one in self.subscriptions()
        )

    def subscriptions(self) -> Iterator[tuple[Part, str, SubscriptionStats]]:
        """Yield every durable subscription of every partition."""
        for part in self.parts:
            for name, subscription in part.stats.subscriptions.items():
                if subscription.is_durable:
                    yield part, name, subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """State of a setup.

    Args:
        target: Target named by the user: the file of a plan, or a topic.
        plan: The plan; None if the target is a topic.
        at_ms: Start of the read by the local clock, UTC milliseconds.
        profile: The broker's limits; those of its version if its settings may not be read.
        settings: The broker's settings; None if they may not be read.
        dynamic: Names of the settings that can be changed without a restart.
        bookies: Number of registered bookies, with those that are away; None if unknown.
        brokers: Number of running brokers; None if unknown.
        ailment: Why a broker cannot store a message; empty if it can, or if unknown.
        time: The broker's clock; None if unknown.
        namespaces: Policies by namespace; None for a missing namespace.
        topics: Topics in the plan's order.
        former: Topics of earlier plans.
        gaps: Gaps of all subscriptions under the broker's delay.
        shadowed: Desired states of shadows by topic, for topics near their limit.
        has_topic_policies: True if topic policies are enabled on the broker.
        unread: Data that could not be read.
    """

    target: str
    plan: Plan | None
    at_ms: int
    profile: BrokerProfile
    settings: Mapping[str, str] | None = None
    dynamic: frozenset[str] = frozenset()
    bookies: int | None = None
    brokers: int | None = None
    ailment: str = ""
    time: BrokerTime | None = None
    namespaces: Mapping[str, NamespacePolicies | None] = field(default_factory=dict)
    topics: tuple[SeenTopic, ...] = ()
    former: tuple[FormerTopic, ...] = ()
    gaps: tuple[SubscriptionGaps, ...] = ()
    shadowed: Mapping[str, str] = field(default_factory=dict)
    has_topic_policies: bool = True
    unread: tuple[Unseen, ...] = ()

    @property
    def is_blind(self) -> bool:
        """True if data is unread without which a setup cannot be declared sound."""
        return any(one.source not in OPTIONAL for one in self.unread)

    @property
    def shadow_state(self) -> str:
        """Desired state of the plan's shadow; empty without a shadow, or if missing or unreadable."""
        if self.plan is None or not self.plan.intake:
            return ""
        journals = (topic for topic in self.topics if topic.spec is not None and topic.spec.role == "journal")
        return next((topic.properties.get(STATE_PROPERTY, "").partition(" ")[0] for topic in journals), "")

    @property
    def provisions(self) -> str:
        """The command that creates topics, subscriptions and policies."""
        return timewheel_command("topics", "ensure", self.target)


def some_of(texts: Sequence[str], joint: str = ", ", last: str = " and ", most: int = 3) -> str:
    """List texts, the first of them in full, the others as their number."""
    more = f"{last}{len(texts) - most} more" if len(texts) > most else ""
    return str.join(joint, texts[:most]) + more


Look = Callable[[Seen], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check: its kinds of findings, and the sources that it judges by.

    If part of a source could not be read, "nothing found" is no "all is well". It makes no calls.
    """

    kinds: tuple[Kind, ...]
    inspect: Look
    needs: frozenset[Source]
    of_any_topic: bool = False


def check(*kinds: Kind, needs: Iterable[Source] = (), of_any_topic: bool = False) -> Callable[[Look], Check]:
    """Make a check of a function; for the arguments see `Check`."""
    return lambda inspect: Check(kinds=kinds, inspect=inspect, needs=frozenset(needs), of_any_topic=of_any_topic)
