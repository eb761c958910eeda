"""Names of topics and subscriptions: every name that timewheel makes up is made up here.

A plan's own topics are ``<due topic>.tw.<role>``. The name of a holding topic tells all that one needs to know to read
it without the plan that made it: a tier's stay and who holds it, a slot's length, the number of slots in its ring and
its index (broker-facts: topics-outside-the-plan). In a holding namespace of its own the topic's tenant and namespace
stand before it, ``acme~crm~reminders.tw.<role>``: two plans may share that namespace, and the last part of their due
topics' names.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import NamedTuple
from urllib.parse import unquote

from timewheel.core.durations import DAY_MS, MINUTE_MS, SECOND_MS, format_duration, parse_duration
from timewheel.core.errors import DurationError
from timewheel.core.plan import OWN_INFIX, Calendar, Plan
from timewheel.core.steps import Step

__all__ = [
    "CUTS_SUBSCRIPTION",
    "DEAD_LETTER_SUBSCRIPTION",
    "DRAINS_PROPERTY",
    "JOURNAL_SUBSCRIPTION",
    "LIFTER_PREFIX",
    "PARKED_SUBSCRIPTION",
    "PROVISIONED_PROPERTY",
    "RELAY_CONSUMER",
    "RELAY_SUBSCRIPTION",
    "STATE_PROPERTY",
    "CalendarTopic",
    "Names",
    "SlotTopic",
    "TierTopic",
    "dead_letter_topic",
    "intake_topic",
    "journal_topic",
    "namespace_of",
    "partition_of",
    "partition_topic",
    "parts_of",
]

RELAY_SUBSCRIPTION = "timewheel-relay"
"""The one subscription of every holding topic."""
RELAY_CONSUMER = re.compile(r"[0-9a-f]{8}-(.+)", re.ASCII)
"""How a relay names its consumers: what sorts them stands before its id."""
DRAINS_PROPERTY = "timewheel-drains"
"""Of a relay's consumer: it reads the topic as one of an earlier plan, and finds it again when it begins anew."""
DEAD_LETTER_SUBSCRIPTION = "timewheel-dead-letter"
"""Exists from the start, so that no dead letter is lost for want of a reader."""
CUTS_SUBSCRIPTION = "timewheel-cuts"
"""Keeps the cut-offs that no pack has yet; whoever holds it is the janitor."""
JOURNAL_SUBSCRIPTION = "timewheel-journal"
"""Of a journal: keeps the copies until the acknowledgements in the due topic are safe; its holder is the lifter."""
LIFTER_PREFIX = "tw|lift|"
"""How the name of the producer begins that lifts into a partition of the journal; only one at a time can have it."""
STATE_PROPERTY = "timewheel-shadow"
"""Of the journal: what is wished for its shadow, as ``<state> <since>``."""
PROVISIONED_PROPERTY = "timewheel-provisioned"
"""Of a due topic: what was made for it, as JSON with ``subscriptions`` and ``namespaces``."""
PARKED_SUBSCRIPTION = "timewheel-parked"
"""Exists from the start, so that no parked timer is lost for want of a reader."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CACHED_INTERVALS = 4_096
_UNFIT = re.compile(r"[/?#%\s]|-(?=partition-)")
"""Parts of a subscription's name that no topic's name can have."""
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)
"""As a broker reads it: of no more digits than a number of 32 bits, and without leading zeros."""
_TIER = re.compile(r"\.(tier|delay)-([0-9]+[a-z]+)", re.ASCII)
_SLOT = re.compile(r"\.ring-([0-9]+[a-z]+)-(\d{1,4})\.(\d{3})", re.ASCII)
_LABEL = re.compile(r"([0-9]+[a-z]+)-(\d{8})(?:T(\d{4})(\d{2})?(?:\.(\d{3}))?Z)?", re.ASCII)


def namespace_of(topic: str) -> str:
    """``tenant/namespace`` of a topic's full name."""
    return topic.partition("://")[2].rpartition("/")[0]


def partition_topic(topic: str, partition: int) -> str:
    """The name of one partition of a partitioned topic."""
    return f"{topic}-partition-{partition}"


def partition_of(partition_topic_name: str) -> tuple[str, int]:
    """Split a partition's name into the partitioned topic and its index; the index is -1 if there is none."""
    match = _PARTITION.fullmatch(partition_topic_name)
    return (match[1], int(match[2])) if match else (partition_topic_name, -1)


def parts_of(topic: str, partitions: int) -> tuple[str, ...]:
    """The names under which a broker stores a topic: its partitions', or its own where it has none.

    Args:
        topic: Full name, without a partition suffix.
        partitions: How many it has; 0: it is not partitioned.
    """
    return tuple(partition_topic(topic, number) for number in range(partitions)) or (topic,)


def dead_letter_topic(prefix: str) -> str:
    """The dead-letter topic beside holding topics whose names begin so (`Names.own_prefixes`)."""
    return f"{prefix}.dead-letter"


def _in_topic(subscription: str) -> str:
    """A subscription's name as the end of a topic's: percent-encoded where it must be, so that no two become one."""
    return _UNFIT.sub(lambda unfit: "".join(f"%{byte:02X}" for byte in unfit[0].encode()), subscription)


def intake_topic(due_topic: str) -> str:
    """Where timers of a due topic come in that no SDK has routed, beside it: other clients find it by its name."""
    return f"{due_topic}.tw.intake"


def journal_topic(due_topic: str) -> str:
    """Where the copies of a due topic's shadow come in, beside it. Their originals are acknowledged for them, so only a
    shadow's role may produce there.
    """
    return f"{due_topic}.tw.journal"


def _prefix(due_topic: str, namespace: str) -> str:
    """How the names of a due topic's own topics begin in a namespace."""
    domain, rest = due_topic.split("://")
    own, local = rest.rsplit("/", 1)
    # No tenant or namespace has a "~", so the parts cannot run into each other.
    place = "" if namespace == own else own.replace("/", "~") + "~"
    return f"{domain}://{namespace}/{place}{local}.tw"


class Names:
    """The names of one plan's topics."""

    __slots__ = (
        "_calendar",
        "_held",
        "_plan",
        "cuts",
        "dead_letter",
        "holding_namespace",
        "intake",
        "journal",
        "namespaces",
        "own_prefixes",
    )

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        due = namespace_of(plan.due_topic)
        self.holding_namespace = plan.holding_namespace or due
        """Where holding topics are."""
        self._held = _prefix(plan.due_topic, self.holding_namespace)
        self.dead_letter = dead_letter_topic(self._held)
        self.cuts = f"{plan.due_topic}.tw.cuts"
        """The log of cut-offs, beside the due topic: it is the consumers', whatever becomes of holding topics."""
        self.intake = intake_topic(plan.due_topic)
        self.journal = journal_topic(plan.due_topic)
        places = {due, self.holding_namespace, *plan.former_namespaces}
        self.own_prefixes = tuple(sorted(_prefix(plan.due_topic, place) for place in places))
        """How all names begin that timewheel makes up for this due topic, in every namespace in which there may be any:
        its own, the holding one, former ones. A full stop follows."""
        self.namespaces = tuple(sorted(places))
        """Those namespaces."""
        self._calendar: dict[int, str] = {}

    def part(self, topic: str, partition: int) -> str:
        """The name under which a broker stores one partition of one of the plan's topics.

        That of a due topic which is not partitioned is its own, from whichever partition a timer comes.

        Args:
            topic: Full name, without a partition suffix.
            partition: Its index, below the plan's ``own_partitions``.
        """
        return partition_topic(topic, partition) if self.is_partitioned(topic) else topic

    def is_partitioned(self, topic: str) -> bool:
        """Whether one of the plan's topics has partitions: all have, but for a due topic of which the plan says so."""
        return topic != self._plan.due_topic or self._plan.is_partitioned

    def parked(self, subscription: str) -> str:
        """Where timers of one subscription lie that nobody handles without being told to."""
        return f"{self._plan.due_topic}.tw.parked.{_in_topic(subscription)}"

    def parked_by(self, topic: str) -> str | None:
        """The subscription whose parked timers lie in a topic; None: it is for none."""
        beginning = self.parked("")
        return unquote(topic.removeprefix(beginning)) if topic.startswith(beginning) else None

    def retry(self, subscription: str) -> str:
        """Where timers of one subscription wait at the end of their way when they are tried again; it reads that too,
        under its own name.
        """
        return f"{self._plan.due_topic}.tw.retry.{_in_topic(subscription)}"

    def of_step(self, step: Step) -> tuple[str, ...]:
        """The holding topics of a step: one for a tier, one per slot for a ring, none for others."""
        match step.kind:
            case "tier":
                return (TierTopic(self._held, step.stay_ms, by_broker=not self._plan.holds_in_relay).name,)
            case "slot":
                return tuple(SlotTopic(self._held, step.slot_ms, step.slots, slot).name for slot in range(step.slots))
            case "due" | "intake" | "journal":
                return ()

    def calendar_topic(self, interval: int) -> str:
        """The due topic of one calendar interval.

        Args:
            interval: Intervals since 1970 (due time // interval length).
        """
        name = self._calendar.get(interval)
        if name is None:
            if len(self._calendar) >= _CACHED_INTERVALS:
                self._calendar.clear()
            interval_ms = self._plan.scheme.interval_ms if isinstance(self._plan.scheme, Calendar) else DAY_MS
            topic = CalendarTopic(self._plan.due_topic, interval_ms, interval * interval_ms)
            name = self._calendar[interval] = topic.name
        return name


class TierTopic(NamedTuple):
    """The holding topic of one tier.

    Args:
        prefix: What the name begins with (`Names.own_prefixes`).
        stay_ms: How long a timer stays.
        by_broker: Whether it is held by the broker's delay, or else by a relay. Messages under that delay and messages
            without it must never share a topic.
    """

    prefix: str
    stay_ms: int
    by_broker: bool

    @property
    def name(self) -> str:
        """The topic's full name."""
        return f"{self.prefix}.{'delay' if self.by_broker else 'tier'}-{format_duration(self.stay_ms)}"

    @classmethod
    def parse(cls, prefix: str, name: str) -> TierTopic | None:
        """Read a topic's name; None if it is not that of a tier."""
        match = _TIER.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
        stay_ms = _duration(match[2]) if match else None
        if match is None or not stay_ms:
            return None
        topic = cls(prefix, stay_ms, by_broker=match[1] == "delay")
        return topic if topic.name == name else None


class SlotTopic(NamedTuple):
    """The holding topic of one slot.

    Args:
        prefix: As of a `TierTopic`.
        slot_ms: Length of a slot.
        slots: How many the ring has: with another number the same due time falls into another slot.
        slot: Which of them.
    """

    prefix: str
    slot_ms: int
    slots: int
    slot: int

    @property
    def name(self) -> str:
        """The topic's full name."""
        return f"{self.prefix}.ring-{format_duration(self.slot_ms)}-{self.slots}.{self.slot:03d}"

    @classmethod
    def parse(cls, prefix: str, name: str) -> SlotTopic | None:
        """Read a topic's name; None if it is not that of a slot."""
        match = _SLOT.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
        slot_ms = _duration(match[1]) if match else None
        if match is None or not slot_ms:
            return None
        topic = cls(prefix, slot_ms, int(match[2]), int(match[3]))
        return topic if topic.slot < topic.slots and topic.name == name else None


class CalendarTopic(NamedTuple):
    """The due topic of one calendar interval.

    Args:
        due_topic: The plan's.
        interval_ms: Length of the interval.
        start_ms: When it begins, UTC milliseconds; a multiple of the length.
    """

    due_topic: str
    interval_ms: int
    start_ms: int

    @property
    def end_ms(self) -> int:
        """When the next interval begins."""
        return self.start_ms + self.interval_ms

    @property
    def name(self) -> str:
        """The topic's full name: due topic, length, and start as far as the length needs it."""
        start = _EPOCH + dt.timedelta(milliseconds=self.start_ms)
        if self.interval_ms % DAY_MS == 0:
            label = f"{start:%Y%m%d}"
        elif self.interval_ms % MINUTE_MS == 0:
            label = f"{start:%Y%m%dT%H%M}Z"
        elif self.interval_ms % SECOND_MS == 0:
            label = f"{start:%Y%m%dT%H%M%S}Z"
        else:
            label = f"{start:%Y%m%dT%H%M%S}.{start.microsecond // 1000:03d}Z"
        return f"{self.due_topic}{OWN_INFIX}{format_duration(self.interval_ms)}-{label}"

    @classmethod
    def parse(cls, due_topic: str, name: str) -> CalendarTopic | None:
        """Read a topic's name; None if it is not that of an interval of this due topic, of whatever length."""
        head = due_topic + OWN_INFIX
        match = _LABEL.fullmatch(name, len(head)) if name.startswith(head) else None
        if match is None:
            return None
        length, day, minute, second, millisecond = match.groups(default="")
        interval_ms = _duration(length)
        try:
            start = dt.datetime.strptime(f"{day}{minute or '0000'}{second or '00'}+0000", "%Y%m%d%H%M%S%z")
        except ValueError:
            return None
        if not interval_ms:
            return None
        start_ms = round((start - _EPOCH).total_seconds()) * SECOND_MS + int(millisecond or 0)
        topic = cls(due_topic, interval_ms, start_ms)
        # Only what we would have written ourselves: anything else is a stranger's, and not ours to remove.
        return topic if start_ms % interval_ms == 0 and topic.name == name else None


def _duration(text: str) -> int | None:
    try:
        return parse_duration(text)
    except DurationError:
        return None
