"""A cluster of virtual brokers: topics and who owns them, namespaces, schemas, producers by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BROKER_SETTINGS, PERSIST_AS_BITMAP, BrokerProfile
from timewheel.core.names import namespace_of, partition_of, parts_of
from timewheel.testing.virtual.ledgers import Cursor, Entry, ManagedLedger
from timewheel.testing.virtual.scheduler import MS, Alarm, Process, Scheduler
from timewheel.testing.virtual.subscriptions import ClientEnd, Refused, Subscription

_REFUSED_AS = {"producer_request_hold": "Error", "producer_exception": "Exception"}
NAME_LIFE_MS = 6 * 3_600_000  # of a producer's number (``brokerDeduplicationProducerInactivityTimeoutMinutes``)


@dataclass(eq=False)
class BrokerProducer:
    """The broker's end of a producer."""

    end: ClientEnd
    topic: Topic
    name: str
    schema_version: int
    session: int  # of the topic: what is under way to the bookies in it is stored, though the producer has closed
    is_open: bool = True
    is_killed: bool = False  # with its broker: no answer that is under way arrives

    def leave(self) -> None:
        self.is_open = False
        if self.topic.producers.get(self.name) is self:
            del self.topic.producers[self.name]


class Topic:
    """A topic without partitions, or a partition."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.partition = partition_of(name)[1]
        self.log = ManagedLedger(cluster.profile, cluster.scheduler, cluster.new_ledger_id)
        self.subscriptions: dict[str, Subscription] = {}
        self.producers: dict[str, BrokerProducer] = {}
        # By producer name the highest sequence id that has come, and the highest that is stored.
        self.pushed: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self._named_ms: dict[str, int] = {}  # when the last one came
        self.is_terminated = self.is_loaded = False
        self.session = 0  # a broker's, from the load to the unload
        self.owner = cluster.brokers[0]

    @property
    def delays(self) -> bool:
        """Whether delayed delivery is on."""
        return bool((self.cluster.policy(self.name, "delayed_delivery_policies") or {}).get("active", True))

    @property
    def deduplicates(self) -> bool:
        return bool(self.cluster.policy(self.name, "deduplicationEnabled"))

    @property
    def durable(self) -> list[Subscription]:
        return [one for one in self.subscriptions.values() if one.is_durable]

    def exceeded(self) -> tuple[str, int]:
        """Return what the backlog quota asks for, empty if the backlog is not too large, and the quota's bytes."""
        quota = self.cluster.policy(self.name, "backlog_quota_map").get("destination_storage", {})
        limit: int = quota.get("limitSize", -1)
        is_full = 0 <= limit <= max((one.cursor.backlog_bytes for one in self.durable), default=0)
        return quota["policy"] if is_full else "", limit

    def check(self, *, is_ttl: bool) -> None:
        """Let go of the producers, or drop what is oldest, if the backlog is too large; drop what is too old."""
        action, limit = self.exceeded()
        if action in _REFUSED_AS:
            self._close_producers(is_killed=False)
        ttl_s = self.cluster.policy(self.name, "message_ttl_in_seconds") if is_ttl else None
        for subscription in self.durable:
            if action == "consumer_backlog_eviction":
                subscription.drop_to(0.9 * limit)
            if ttl_s:
                subscription.expire(ttl_s)

    # Producers

    def open_producer(self, end: ClientEnd, name: str, schema: Any) -> tuple[BrokerProducer, int]:
        """Open a producer, unless that is refused; return it, and the highest number that has come under its name."""
        if self.is_terminated:
            raise Refused("TopicTerminated")
        if kind := _REFUSED_AS.get(self.exceeded()[0]):
            raise Refused(f"ProducerBlockedQuotaExceeded{kind}")
        if name in self.producers:
            raise Refused("ProducerBusy")
        version = self.cluster.register_schema(self.name, schema)
        producer = self.producers[name] = BrokerProducer(end, self, name, version, self.session)
        if self.cluster.scheduler.now_ms - self._named_ms.get(name, 0) > NAME_LIFE_MS:
            self.pushed.pop(name, None)
            self.numbers.pop(name, None)
        return producer, self.pushed.get(name, -1) if self.deduplicates else -1

    def push(self, producer: BrokerProducer, number: int) -> bool:
        """Take the number of an entry that has come; return False if an entry with that number is stored. Refused: one
        has come, and may be stored or not (``MessageDupUnknownException``).
        """
        name = producer.name
        if self.deduplicates:
            if number <= self.pushed.get(name, -1):
                if number <= self.numbers.get(name, -1):
                    return False
                raise Refused("UnknownError")
            self.pushed[name], self._named_ms[name] = number, self.cluster.scheduler.now_ms
        return True

    def publish(self, producer: BrokerProducer, entry: Entry) -> EntryPosition:
        """Store an entry whose number was taken; return its position. Refused: the topic is terminated."""
        if self.is_terminated:
            raise Refused("TopicTerminated")
        self.numbers[producer.name] = entry.sequence_id
        entry.schema_version = producer.schema_version
        position = self.log.append(entry)
        for subscription in [*self.subscriptions.values()]:
            subscription.dispatcher.read()
        return position

    # Subscriptions

    def subscription(self, name: str, after: EntryPosition, *, is_durable: bool = True) -> Subscription:
        """Return a subscription, which is made if there is none, and begins behind a position then."""
        if name not in self.subscriptions:
            self.subscriptions[name] = Subscription(self, name, Cursor(self.log, after), is_durable=is_durable)
        return self.subscriptions[name]

    def terminate(self) -> None:
        """Take no further message, and let go of the producers."""
        self.is_terminated = True
        self._close_producers(is_killed=False)

    def unload(self, *, is_orderly: bool = True) -> None:
        """Be served no more: close all clients, forget what is not written down, and delete what all have done with."""
        self.is_loaded = False
        self._close_producers(is_killed=not is_orderly)
        self.pushed = dict(self.numbers)
        self.session += 1
        for subscription in [*self.subscriptions.values()]:
            subscription.close()
            subscription.redeliveries.clear()
            if not subscription.is_durable:
                del self.subscriptions[subscription.name]
                continue
            if not (is_orderly and self.cluster.can_write):
                subscription.cursor.crash()
            subscription.cursor.load(self.cluster.profile)
        if durable := self.durable:
            self.log.trim(min(one.cursor.mark_delete for one in durable))

    def _close_producers(self, *, is_killed: bool) -> None:
        producers, self.producers = [*self.producers.values()], {}
        for producer in producers:
            producer.is_open, producer.is_killed = False, is_killed
            producer.end.closed_by_broker()


@dataclass
class Broker:
    """A broker of the cluster."""

    name: str
    is_up: bool = True


class Cluster:
    """Brokers with one metadata store, whose ledgers and cursors have the limits of a profile."""

    def __init__(self, scheduler: Scheduler, profile: BrokerProfile, *, brokers: int = 1) -> None:
        self.scheduler = scheduler
        self.profile = profile
        self.brokers = [Broker(f"virtual-{number}") for number in range(brokers)]
        self.latency_ns = 0  # of a message from a client to a broker, and back
        # A cursor that has stopped moving is written after this time (``managedLedgerCursorPositionFlushSeconds``).
        self.cursor_flush_ms = 60_000
        # Runs each step of a client at a broker, instead of the broker: for faults right after a step.
        self.run_step: Callable[[Process | None, Callable[[], None]], None] | None = None
        self.can_write = True  # False: too few bookies; sends wait, cursors are not written, and no topic is loaded
        self._watch, self._checks = Alarm(scheduler, self._check), 0
        self._writes: list[Callable[[], None]] = []  # that wait until it can
        self.version = f"{profile.name}.0"
        self.tenants: set[str] = {"public"}
        self.namespaces: dict[str, dict[str, Any]] = {"public/default": {}}  # policies, by the name of the admin API
        self.partitioned: dict[str, int] = {}  # number of partitions, by topic
        self.topics: dict[str, Topic] = {}  # topics without partitions, and partitions
        self.topic_policies: dict[str, dict[str, Any]] = {}
        self.topic_properties: dict[str, dict[str, str]] = {}
        self.schemas: dict[str, list[Any]] = {}  # `_pulsar.SchemaInfo` of each version, by topic
        self.new_ledger_id: Callable[[], int] = partial(next, count(1))
        self.new_number: Callable[[], int] = partial(next, count())  # of a producer without a name

    # Topics

    def topic(self, name: str, *, make: bool = True) -> Topic:
        """Return a topic without partitions, or a partition, loaded by its broker. Refused: it does not exist
        (``make=False``), or its broker is away.
        """
        name = full_name(name)
        found = self.topics.get(name)
        if found is None:
            is_known = make or name in self.partitions(partition_of(name)[0])
            if not is_known or namespace_of(name) not in self.namespaces:
                raise Refused("TopicNotFound")
            found = self.topics[name] = Topic(self, name)
            self.scheduler.happen()
        if not found.owner.is_up and (up := [broker for broker in self.brokers if broker.is_up]):
            found.owner = up[sum(name.encode()) % len(up)]  # the same in every process
        if not found.owner.is_up or not (found.is_loaded or self.can_write):
            raise Refused("ServiceUnitNotReady")
        if not found.is_loaded and found.log.added:
            found.log.open_ledger()  # as each broker does that loads a topic
        found.is_loaded = True
        return found

    def partitions(self, topic: str) -> list[str]:
        """Return the names of a topic's partitions; of a topic without any, its own name."""
        topic = full_name(topic)
        return [*parts_of(topic, self.partitioned.get(topic, 0))]

    def policy(self, topic: str, name: str) -> Any:
        """Return the policy that applies: the topic's own, else its namespace's; None: neither has it."""
        own = self.topic_policies.get(partition_of(topic)[0], {}).get(name)
        of_namespace = self.namespaces.get(namespace_of(topic), {}).get(name)
        if name == "backlog_quota_map":  # each quota by itself
            return {**(of_namespace or {}), **(own or {})}
        return own if own is not None else of_namespace

    def watch(self) -> None:
        """Look at each topic once a minute, and at its time to live every fifth, while any policy asks for it."""
        for policies in (*self.namespaces.values(), *self.topic_policies.values()):
            quotas = policies.get("backlog_quota_map", {}).values()
            if policies.get("message_ttl_in_seconds") or any(one.get("limitSize", -1) >= 0 for one in quotas):
                self._watch.set(60_000 * MS)

    def _check(self) -> None:
        self._checks += 1
        for topic in [*self.topics.values()]:
            if topic.is_loaded:
                topic.check(is_ttl=self._checks % 5 == 0)
        self.watch()

    def register_schema(self, topic: str, info: Any) -> int:
        """Return the version of a schema in a topic, where it is stored if it is new; -1: no schema. Refused: it is of
        another type than the versions before it.
        """
        if info is None or not info.schema():
            return -1
        versions = self.schemas.setdefault(partition_of(topic)[0], [])
        for number, version in enumerate(versions):
            if (version.schema_type(), version.schema()) == (info.schema_type(), info.schema()):
                return number
        if versions and versions[-1].schema_type() != info.schema_type():
            raise Refused("IncompatibleSchema")
        versions.append(info)
        return len(versions) - 1

    def settings(self) -> dict[str, str]:
        """Return the runtime configuration, as texts by the names of ``broker.conf``."""
        found = {name: str(getattr(self.profile, field) // unit) for name, (field, unit) in BROKER_SETTINGS.items()}
        return found | {PERSIST_AS_BITMAP: str(self.profile.ack_format == "bitmap").lower()}

    # Faults

    def write(self, action: Callable[[], None]) -> None:
        """Do what writes an entry, once it can be written."""
        if self.can_write:
            action()
        else:
            self._writes.append(action)

    def resume_writes(self) -> None:
        """Have the bookies back: what waits is stored, whether or not its sender still waits for it."""
        self.can_write = True
        writes, self._writes = self._writes, []
        for write in writes:
            write()

    def unload(self, topic: str) -> None:
        """Unload a topic with all its partitions, in good order."""
        for name in self.partitions(topic):
            if (found := self.topics.get(name)) is not None and found.is_loaded:
                found.unload()

    def kill(self, broker: Broker) -> None:
        """Kill a broker: its topics are served by others, without what was not written down."""
        broker.is_up = False
        for topic in [*self.topics.values()]:
            if topic.owner is broker and topic.is_loaded:
                topic.unload(is_orderly=False)


def full_name(topic: str) -> str:
    """Return a topic's name with domain, tenant and namespace."""
    if "://" in topic:
        return topic
    return f"persistent://{topic}" if topic.count("/") == 2 else f"persistent://public/default/{topic}"
