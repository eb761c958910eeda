"""Names of topics and subscriptions: timewheel builds every name of its own here.

A plan's own topics are ``<due topic>.tw.<role>``. The name of a holding topic contains everything that is needed to
read it without its plan: a tier's stay and whether a relay or the broker holds it; a slot's length, the number of slots
in its ring and its index (broker-facts: topics-outside-the-plan). In a separate holding namespace the name begins with
the due topic's tenant and namespace, ``acme~crm~reminders.tw.<role>``: two plans may share that namespace, and the last
part of their due topics' names.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from array import array
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from timewheel.core.durations import DAY_MS, MINUTE_MS, SECOND_MS, format_duration, parse_duration
from timewheel.core.errors import DurationError
from timewheel.core.plan import OWN_INFIX, Calendar, Plan
from timewheel.core.steps import Step

RELAY_SUBSCRIPTION = "timewheel-relay"  # the only subscription of every holding topic
RELAY_CONSUMER = re.compile(r"[0-9a-f]{8}-(.+)", re.ASCII)
"""Form of the names of a relay's consumers: a sort key stands before the relay's id."""
DRAINS_PROPERTY = "timewheel-drains"
"""Property of a relay's consumer that reads the topic as a former topic; the relay finds it again after a restart."""
DEAD_LETTER_SUBSCRIPTION = "timewheel-dead-letter"
"""Created with the topic, so that no dead letter is lost for lack of a reader."""
CANCELLATIONS_SUBSCRIPTION = "timewheel-cancellations"
"""Keeps the cancellations that are not in a pack yet; the consumer that holds it is the compactor."""
JOURNAL_SUBSCRIPTION = "timewheel-journal"
"""Subscription of a journal: keeps the copies until the acknowledgements in the due topic are safe. Its holder is the
mover."""
MOVER_PREFIX = "tw|move|"
"""Prefix of the name of the producer that moves into a partition of the journal. Only one producer at a time can have
the name."""
LOOK_PREFIX = "timewheel-look-"  # prefix of the subscriptions of readers, which end with their connection
STATE_PROPERTY = "timewheel-shadow"  # property of the journal: the desired state of its shadow, as `<state> <since>`
PROVISIONED_PROPERTY = "timewheel-provisioned"
"""Property of a due topic: everything that was created for it, as JSON with ``subscriptions`` and ``namespaces``."""
PARKED_SUBSCRIPTION = "timewheel-parked"  # created with the topic, so that no parked timer is lost for lack of a reader

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CACHED_INTERVALS = 4_096
_UNFIT = re.compile(r"[/?#%\s]|-(?=partition-)")
"""Characters of a subscription's name that are not allowed in a topic's name."""
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)
"""Form that a broker reads: at most the digits of a 32-bit number, and no leading zeros."""
_TIER = re.compile(r"\.(tier|delay)-([0-9]+[a-z]+)", re.ASCII)
_SLOT = re.compile(r"\.ring-([0-9]+[a-z]+)-(\d{1,4})\.(\d{3})", re.ASCII)
_LABEL = re.compile(r"([0-9]+[a-z]+)-(\d{8})(?:T(\d{4})(\d{2})?(?:\.(\d{3}))?Z)?", re.ASCII)


def namespace_of(topic: str) -> str:
    """Return ``tenant/namespace`` of a topic's full name."""
    return topic.partition("://")[2].rpartition("/")[0]


def partition_topic(topic: str, partition: int) -> str:
    """Return the name of one partition of a partitioned topic."""
    return f"{topic}-partition-{partition}"


def partition_of(partition_topic_name: str) -> tuple[str, int]:
    """Split a partition's name into the partitioned topic and its index; index -1: the name has no partition suffix."""
    match = _PARTITION.fullmatch(partition_topic_name)
    return (match[1], int(match[2])) if match else (partition_topic_name, -1)


def parts_of(topic: str, partitions: int) -> tuple[str, ...]:
    """Return the names under which a broker stores a topic: its partitions, or the topic itself if it has none."""
    return tuple(partition_topic(topic, number) for number in range(partitions)) or (topic,)


def dead_letter_topic(prefix: str) -> str:
    """Return the dead-letter topic beside holding topics with this prefix (`Names.own_prefixes`)."""
    return f"{prefix}.dead-letter"


def _in_topic(subscription: str) -> str:
    """Encode a subscription's name as the end of a topic's name, percent-encoded if needed: names stay distinct."""
    return _UNFIT.sub(lambda unfit: "".join(f"%{byte:02X}" for byte in unfit[0].encode()), subscription)


def intake_topic(due_topic: str) -> str:
    """Return the intake of a due topic: timers that no SDK has routed. Clients of other languages find it by name."""
    return f"{due_topic}.tw.intake"


def journal_topic(due_topic: str) -> str:
    """Return the journal of a due topic: copies made by its shadow. The shadow acknowledges the originals of these
    copies, so only the role of a shadow may produce to the journal.
    """
    return f"{due_topic}.tw.journal"


def _prefix(due_topic: str, namespace: str) -> str:
    """Return the prefix that a due topic's own topics have in a namespace."""
    domain, rest = due_topic.split("://")
    own, local = rest.rsplit("/", 1)
    # No tenant or namespace has a "~", so the parts cannot run into each other.
    place = "" if namespace == own else own.replace("/", "~") + "~"
    return f"{domain}://{namespace}/{place}{local}.tw"


class Names:
    """Names of one plan's topics."""

    __slots__ = (
        "_calendar",
        "_held",
        "_plan",
        "cancellations",
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
        self.holding_namespace = plan.holding_namespace or due  # namespace of the holding topics
        self._held = _prefix(plan.due_topic, self.holding_namespace)
        self.dead_letter = dead_letter_topic(self._held)
        self.cancellations = f"{plan.due_topic}.tw.cancellations"
        """Log of cancellations, beside the due topic: it belongs to the consumers, independent of holding topics."""
        self.intake = intake_topic(plan.due_topic)
        self.journal = journal_topic(plan.due_topic)
        places = {due, self.holding_namespace, *plan.former_namespaces}
        self.own_prefixes = tuple(sorted(_prefix(plan.due_topic, place) for place in places))
        """Prefixes of all names that timewheel builds for this due topic, in each of `namespaces`. A full stop follows
        the prefix."""
        self.namespaces = tuple(sorted(places))
        """Namespaces in which the due topic may have topics: its own, the holding namespace, former namespaces."""
        self._calendar: dict[int, str] = {}

    def part(self, topic: str, partition: int) -> str:
        """Return the name under which a broker stores a partition of a topic of the plan.

        An unpartitioned due topic is stored under its own name, whichever partition a timer comes from.
        """
        return partition_topic(topic, partition) if self.is_partitioned(topic) else topic

    def is_partitioned(self, topic: str) -> bool:
        """Return whether a topic of the plan has partitions: all but a due topic declared unpartitioned."""
        return topic != self._plan.due_topic or self._plan.is_partitioned

    def parked(self, subscription: str) -> str:
        """Return the topic of the parked timers of a subscription, which wait for an operator's command."""
        return f"{self._plan.due_topic}.tw.parked.{_in_topic(subscription)}"

    def parked_by(self, topic: str) -> str | None:
        """Return the subscription whose parked timers lie in a topic; None: it is not a topic of parked timers."""
        beginning = self.parked("")
        return unquote(topic.removeprefix(beginning)) if topic.startswith(beginning) else None

    def retry(self, subscription: str) -> str:
        """Return the last topic of timers that a subscription tries again, where they wait until they are due. The
        subscription reads it too, under its own name.
        """
        return f"{self._plan.due_topic}.tw.retry.{_in_topic(subscription)}"

    def of_step(self, step: Step) -> tuple[str, ...]:
        """Return the holding topics of a step: one for a tier, one per slot for a ring, none for other kinds."""
        match step.kind:
            case "tier":
                return (TierTopic(self._held, step.stay_ms, by_broker=not self._plan.holds_in_relay).name,)
            case "slot":
                return tuple(SlotTopic(self._held, step.slot_ms, step.slots, slot).name for slot in range(step.slots))
            case "due" | "intake" | "journal":
                return ()

    def calendar_topic(self, interval: int) -> str:
        """Return the due topic of a calendar interval, numbered since 1970 (due time // interval length)."""
        name = self._calendar.get(interval)
        if name is None:
            if len(self._calendar) >= _CACHED_INTERVALS:
                self._calendar.clear()
            interval_ms = self._plan.scheme.interval_ms if isinstance(self._plan.scheme, Calendar) else DAY_MS
            topic = CalendarTopic(self._plan.due_topic, interval_ms, interval * interval_ms)
            name = self._calendar[interval] = topic.name
        return name


class TierTopic(NamedTuple):
    """Holding topic of a tier."""

    prefix: str  # prefix of the name (`Names.own_prefixes`)
    stay_ms: int  # time that a timer stays
    # True if the broker's delay holds the timers, False if a relay does. Messages under the broker's delay and messages
    # without it must never share a topic.
    by_broker: bool

    @property
    def name(self) -> str:
        return f"{self.prefix}.{'delay' if self.by_broker else 'tier'}-{format_duration(self.stay_ms)}"

    @classmethod
    def parse(cls, prefix: str, name: str) -> TierTopic | None:
        """Read a topic's name; None if the topic is not a tier."""
        match = _TIER.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
        stay_ms = _duration(match[2]) if match else None
        if match is None or not stay_ms:
            return None
        topic = cls(prefix, stay_ms, by_broker=match[1] == "delay")
        return topic if topic.name == name else None


class SlotTopic(NamedTuple):
    """Holding topic of a slot."""

    prefix: str  # prefix of the name (`Names.own_prefixes`)
    slot_ms: int  # length of a slot
    slots: int  # number of slots in the ring: with another number the same due time falls into another slot
    slot: int  # index of the slot

    @property
    def name(self) -> str:
        return f"{self.prefix}.ring-{format_duration(self.slot_ms)}-{self.slots}.{self.slot:03d}"

    @classmethod
    def parse(cls, prefix: str, name: str) -> SlotTopic | None:
        """Read a topic's name; None if the topic is not a slot."""
        match = _SLOT.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
        slot_ms = _duration(match[1]) if match else None
        if match is None or not slot_ms:
            return None
        topic = cls(prefix, slot_ms, int(match[2]), int(match[3]))
        return topic if topic.slot < topic.slots and topic.name == name else None


class CalendarTopic(NamedTuple):
    """Due topic of a calendar interval."""

    due_topic: str  # the plan's due topic
    interval_ms: int  # length of the interval
    start_ms: int  # start of the interval, UTC milliseconds; a multiple of the length

    @property
    def end_ms(self) -> int:
        """Start of the next interval."""
        return self.start_ms + self.interval_ms

    @property
    def name(self) -> str:
        """Full name of the topic: due topic, length, and the start with the precision that the length needs."""
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
        """Read a topic's name; None if the topic is not an interval of this due topic, of any length."""
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
        # Accept only a name that we would have written: any other name is foreign, and its topic not ours to remove.
        return topic if start_ms % interval_ms == 0 and topic.name == name else None


def _duration(text: str) -> int | None:
    try:
        return parse_duration(text)
    except DurationError:
        return None


_CACHED_KEYS = 16_384
_CACHED_CHARS = 256  # longest key that is cached: a broker takes keys of up to 5 MB


def java_string_hash(text: str) -> int:
    """Compute Java's ``String.hashCode()``, sign bit cleared: over UTF-16 code units, modulo 2**32."""
    units = array("H")
    units.frombytes(text.encode("utf-16-le", "surrogatepass"))
    if sys.byteorder == "big":
        units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def partition_for_key(key: str, partitions: int) -> int:
    """Return the partition of a key, 0 to ``partitions - 1``, like `JavaStringHash` routing.

    Python's and Java's clients agree on few keys (broker-facts: keys-and-partitions). So the SDK computes the partition
    itself, and writes to partition topics: the same key meets the same partition from either language.
    """
    return (_cached_hash if len(key) <= _CACHED_CHARS else java_string_hash)(key) % partitions


_cached_hash = lru_cache(maxsize=_CACHED_KEYS)(java_string_hash)
