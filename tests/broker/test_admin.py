"""The admin client's verbs on a real broker."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from timewheel.broker.admin import policies
from timewheel.broker.admin.client import AdminClient
from timewheel.client.positions import EntryPosition
from timewheel.core.errors import AdminError, AdminMissing
from timewheel.core.names import namespace_of
from timewheel.testing import eventually
from timewheel.testing.admin_calls import bundle_of
from timewheel.testing.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timewheel.testing.service import Broker

EVICTING = policies.BacklogQuota(limit_bytes=10_000_000, limit_s=100, action="consumer_backlog_eviction")

VALUES: list[tuple[policies.Policy[Any], Any]] = [
    (policies.MESSAGE_TTL_S, 77),
    (policies.SIZE_QUOTA, EVICTING),
    (policies.AGE_QUOTA, EVICTING),
    (
        policies.INACTIVE_TOPIC,
        policies.InactiveTopic(delete=True, after_s=120, mode="delete_when_subscriptions_caught_up"),
    ),
    (policies.DEDUPLICATION, True),
    (
        policies.RETENTION,
        policies.Retention(time_min=200, size_mb=10),
    ),  # above the age quota, or brokers refuse the pair
    (policies.DELAYED_DELIVERY, policies.DelayedDelivery(active=True, tick_ms=2_000, max_delay_ms=5_000)),
    (policies.MAX_UNACKED_PER_CONSUMER, 1_234),
    (policies.SUBSCRIPTION_EXPIRY_MIN, 9),
    (policies.MAX_UNACKED_PER_SUBSCRIPTION, 12_345),
    (policies.PERSISTENCE, policies.Persistence(ensemble=1, write_quorum=1, ack_quorum=1, mark_deletes_per_s=0.5)),
]


@pytest.fixture
def topic(namespace: str) -> str:
    return f"persistent://{namespace}/t-{uuid.uuid4().hex[:8]}"


def publish(client: Any, topic: str, count: int, **options: Any) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(count):
        producer.send(str(number).encode(), **options)
    producer.close()


# --- tenants and namespaces


def test_tenants_and_namespaces_come_and_go(admin: AdminClient) -> None:
    tenant = f"gone-{uuid.uuid4().hex[:8]}"
    namespace = f"{tenant}/n"

    assert admin.tenants.create(tenant) is True
    assert admin.tenants.create(tenant) is False
    assert tenant in admin.tenants.list()
    assert admin.namespaces.list(tenant) == ()
    assert admin.namespaces.create(namespace, bundles=1) is True
    assert admin.namespaces.create(namespace) is False
    assert admin.namespaces.list(tenant) == (namespace,)
    policies = admin.namespaces.policies(namespace)
    assert policies.document["bundles"]["numBundles"] == 1
    assert policies.replication_clusters == admin.clusters()
    assert policies.schema_validation_enforced is False
    with pytest.raises(AdminError, match="active namespaces"):
        admin.tenants.delete(tenant)
    assert admin.namespaces.delete(namespace) is True
    assert admin.namespaces.delete(namespace) is False
    assert admin.tenants.delete(tenant) is True
    assert admin.tenants.delete(tenant) is False


def test_what_is_not_there_is_missing_by_name(admin: AdminClient, namespace: str) -> None:
    nowhere = "persistent://no-such-tenant/n/t"
    missing = f"persistent://{namespace}/missing"

    with pytest.raises(AdminMissing, match="Tenant does not exist"):
        admin.namespaces.create("no-such-tenant/n")
    with pytest.raises(AdminMissing, match="Namespace"):
        admin.topics.create(nowhere, 1)
    with pytest.raises(AdminMissing, match=missing):
        admin.topics.stats(missing)
    with pytest.raises(AdminMissing, match=missing):
        admin.topics.partitioned_stats(missing)
    with pytest.raises(AdminMissing, match=missing):
        admin.topics.unload(missing)
    with pytest.raises(AdminMissing, match=missing):
        admin.topic_policies.set(missing, policies.MESSAGE_TTL_S, 0)
    with pytest.raises(AdminMissing):
        admin.subscriptions.create(missing, "s")
    assert admin.topics.partitions(missing) is None, "nor is the topic made"


@pytest.mark.parametrize("ask", ["properties", "last_position", "delete", "delete_unpartitioned", "update_properties"])
def test_a_namespace_made_after_a_question_about_its_topic_has_all_its_bundles(
    ask: str, pulsar_broker: Broker, admin: AdminClient, topic: str
) -> None:
    later = topic.replace("/t-", "-later/t-")
    with suppress(AdminMissing):
        getattr(admin.topics, ask)(later, *[{"a": "b"}][: ask == "update_properties"])
    admin.namespaces.create(namespace_of(later), bundles=4)
    assert bundle_of(pulsar_broker.admin_url, later) != "0x00000000_0xffffffff"


# --- topics


def test_a_partitioned_topic_is_made_once_grows_and_goes(admin: AdminClient, topic: str, namespace: str) -> None:
    assert admin.topics.partitions(topic) is None

    assert admin.topics.create(topic, 2) is True
    assert admin.topics.create(topic, 3) is False
    assert admin.topics.partitions(topic) == 2
    assert topic in admin.topics.list_partitioned(namespace)
    assert {f"{topic}-partition-0", f"{topic}-partition-1"} <= set(admin.topics.list(namespace))

    admin.subscriptions.create(topic, "s")
    admin.topics.update_partitions(topic, 3)
    assert admin.topics.partitions(topic) == 3
    assert admin.subscriptions.list(f"{topic}-partition-2") == ("s",)
    with pytest.raises(AdminError, match="can't be less") as refused:
        admin.topics.update_partitions(topic, 2)
    assert refused.value.status == 422

    assert admin.topics.delete(topic) is True
    assert admin.topics.delete(topic) is False
    assert admin.topics.partitions(topic) is None


def test_a_topic_in_use_is_deleted_by_force_only(admin: AdminClient, topic: str, pulsar_client: Any) -> None:
    admin.topics.create(topic, 1)
    consumer = pulsar_client.subscribe(topic, "s")

    with pytest.raises(AdminError) as refused:
        admin.topics.delete(topic)
    assert refused.value.status == 412
    with pytest.raises(AdminError) as kept:
        admin.subscriptions.delete(topic, "s")
    assert kept.value.status == 412
    consumer.close()
    assert admin.subscriptions.delete(topic, "s") is True

    consumer = pulsar_client.subscribe(topic, "s")
    assert admin.topics.delete(topic, force=True) is True
    consumer.close()


@pytest.mark.parametrize("name", ["a b%b+é€", "100%25", "q?x#y;colon:"])
def test_odd_names_reach_what_clients_call_the_same(
    admin: AdminClient, namespace: str, pulsar_client: Any, name: str
) -> None:
    topic = f"persistent://{namespace}/{name}-{uuid.uuid4().hex[:8]}"
    admin.topics.create(topic, 1)
    assert topic in admin.topics.list_partitioned(namespace)

    admin.subscriptions.create(topic, name)
    publish(pulsar_client, topic, 1)
    consumer = pulsar_client.subscribe(topic, name, consumer_type=pulsar.ConsumerType.Shared)
    consumer.acknowledge(consumer.receive(10_000))  # it was published after the subscription was made by us
    consumer.close()

    assert admin.subscriptions.list(topic) == (name,)
    assert list(admin.topics.partitioned_stats(topic).total.subscriptions) == [name]
    assert admin.subscriptions.delete(topic, name) is True
    assert admin.subscriptions.list(topic) == ()


# --- subscriptions


def test_a_backlog_is_skipped_and_cleared(admin: AdminClient, topic: str, pulsar_client: Any) -> None:
    admin.topics.create(topic, 1)
    partition = f"{topic}-partition-0"
    admin.subscriptions.create(topic, "s")
    publish(pulsar_client, partition, 5)

    def backlog() -> int:
        return admin.topics.stats(partition, precise_backlog=True).subscriptions["s"].backlog

    admin.subscriptions.skip(partition, "s", 2)
    assert backlog() == 5 - 2
    admin.subscriptions.clear(topic, "s")
    assert backlog() == 0
    with pytest.raises(AdminMissing):
        admin.subscriptions.clear(topic, "no-such-subscription")


# --- policies


def test_each_policy_of_a_topic_is_set_read_and_removed(admin: AdminClient, topic: str) -> None:
    admin.topics.create(topic, 1)
    with pytest.raises(ValueError, match="no topic level: set it on the namespace"):
        admin.topic_policies.set(topic, policies.SUBSCRIPTION_EXPIRY_MIN, 0)
    own = [pair for pair in VALUES if pair[0].name]
    assert [admin.topic_policies.get(topic, policy) for policy, _ in own] == [None] * len(own)
    defaults = {policy: admin.topic_policies.get(topic, policy, applied=True) for policy, _ in own}
    for policy, value in own:
        assert defaults[policy] not in (None, value)
        admin.topic_policies.set(topic, policy, value)
    for policy, value in own:
        admin.topic_policies.await_value(topic, policy, value)
        admin.topic_policies.await_value(topic, policy, value, applied=True)
        admin.topic_policies.remove(topic, policy)
    for policy, _ in own:
        admin.topic_policies.await_value(topic, policy, None)
        admin.topic_policies.await_value(topic, policy, defaults[policy], applied=True)


def test_each_policy_of_a_namespace_is_set_read_and_removed(admin: AdminClient) -> None:
    assert [policy for policy, _ in VALUES] == list(policies.POLICIES)
    tenant = f"policies-{uuid.uuid4().hex[:8]}"
    admin.tenants.create(tenant)
    for number, (policy, value) in enumerate(VALUES):
        namespace = f"{tenant}/n{number}"
        admin.namespaces.create(namespace)

        def found(policy: policies.Policy[Any] = policy, namespace: str = namespace) -> Any:
            return admin.namespaces.policies(namespace).get(policy)

        assert found() is None
        admin.namespaces.set_policy(namespace, policy, value)
        eventually(lambda: found() == value)  # noqa: B023 - called before the next
        admin.namespaces.remove_policy(namespace, policy)
        eventually(lambda: found() is None)


# --- stats


@pytest.fixture
def sick_partition(admin: AdminClient, topic: str, pulsar_client: Any) -> Iterator[str]:
    """Entries 0 to 9 delivered to one connected consumer, of which 1, 3, 4 and 7 acknowledged; entry 10 is delayed."""
    admin.topics.create(topic, 1)
    partition = f"{topic}-partition-0"
    admin.subscriptions.create(topic, "s")
    publish(pulsar_client, partition, 10)
    publish(pulsar_client, partition, 1, deliver_at=int(time.time() * 1000) + 600_000)
    consumer = pulsar_client.subscribe(partition, "s", consumer_type=pulsar.ConsumerType.Shared, consumer_name="reader")
    for message in [consumer.receive(10_000) for _ in range(10)]:
        if int(message.data()) in {1, 3, 4, 7}:
            consumer.acknowledge(message)

    def acknowledged_and_delayed() -> bool:
        found = admin.topics.stats(partition).subscriptions["s"]
        return (found.gap_count, found.unacked, found.delayed) == (3, 10 - 4, 1)

    eventually(acknowledged_and_delayed)
    yield partition
    consumer.close()


def test_stats_count_what_a_subscription_has_of_a_topic_and_of_each_partition(
    admin: AdminClient, topic: str, sick_partition: str
) -> None:
    stats = admin.topics.stats(sick_partition)
    subscription = stats.subscriptions["s"]
    assert subscription.type == "Shared"
    assert subscription.gap_count == stats.gap_count == 3  # 1, 3-4 and 7
    assert subscription.gap_bytes > 0
    assert (subscription.backlog, subscription.unacked, subscription.delivered) == (11 - 4, 10 - 4, 10)
    assert subscription.delayed == 1
    assert subscription.delayed_index_bytes == stats.delayed_index_bytes > 0
    assert (subscription.expired, subscription.blocked) == (0, False)
    assert stats.published == 11
    assert stats.storage_bytes == stats.published_bytes > 0
    assert stats.owner

    whole = admin.topics.partitioned_stats(topic)
    assert whole.partition_count == 1
    assert {name: one.subscriptions["s"] for name, one in whole.partitions.items()} == {sick_partition: subscription}
    total = whole.total.subscriptions["s"]
    assert (total.gap_count, total.backlog, total.delayed) == (3, 11 - 4, 1)
    assert total.delayed_index_bytes == subscription.delayed_index_bytes
    assert admin.topics.partitioned_stats(topic, per_partition=False).partitions == {}

    assert (stats.publishers, subscription.consumers) == (None, None), "clients are told on demand"
    with_clients = admin.topics.stats(sick_partition, clients=True, precise_backlog=True)
    assert with_clients.publishers == 0
    assert with_clients.subscriptions["s"].backlog == 11 - 4
    consumers = with_clients.subscriptions["s"].consumers or ()
    assert [(found.name, found.unacked, found.blocked) for found in consumers] == [("reader", 10 - 4, False)]

    internals = admin.topics.internal_stats(sick_partition)
    cursor, ledger = internals.cursors["s"], internals.ledgers[-1].ledger_id
    assert (internals.entries, internals.entries_added) == (11, 11)
    assert sum(ledger.entries for ledger in internals.ledgers) == 11
    assert internals.last_confirmed == admin.topics.last_position(sick_partition) == EntryPosition(ledger, 10)
    assert cursor.mark_delete == EntryPosition(ledger, -1)
    assert cursor.gap_count == 3
    assert [(acked.after.entry, acked.upto.entry) for acked in cursor.acked_ranges()] == [(0, 1), (2, 4), (6, 7)]
    assert admin.topics.partitioned_internal_stats(topic)[sick_partition].cursors["s"].gap_count == 3


# --- entries


def test_a_stored_entry_is_looked_at_without_consuming_it(admin: AdminClient, topic: str, pulsar_client: Any) -> None:
    admin.topics.create(topic, 1)
    partition = f"{topic}-partition-0"
    admin.subscriptions.create(topic, "s")
    before_ms = int(time.time() * 1000)
    due_ms = before_ms + 600_000
    producer = pulsar_client.create_producer(partition, batching_enabled=False, producer_name="billing")
    producer.send(
        b"renew",
        properties={"tw.id": "sub-42", "plain": "ü"},
        partition_key="k",
        ordering_key="o",
        event_timestamp=1_700_000_000_123,
        deliver_at=due_ms,
    )
    producer.send(None)
    producer.send(b"")
    producer.close()
    last = admin.topics.last_position(partition)

    entry, null, empty = (admin.topics.entry(partition, EntryPosition(last.ledger, number)) for number in range(3))

    assert entry.payload == b"renew"
    assert entry.deliver_at_ms == due_ms
    assert before_ms <= entry.publish_at_ms <= int(time.time() * 1000)
    assert entry.event_at_ms == 1_700_000_000_123
    assert entry.properties == {"tw.id": "sub-42", "plain": "ü"}
    assert (entry.partition_key, entry.ordering_key, entry.producer) == ("k", b"o", "billing")
    assert (entry.batch_messages, entry.encrypted, entry.null_payload) == (None, False, False)
    assert (null.payload, null.null_payload, null.deliver_at_ms) == (b"", True, None)
    assert (empty.payload, empty.null_payload) == (b"", False)
    assert admin.topics.stats(partition).subscriptions["s"].backlog == 3
    with pytest.raises(AdminMissing, match="LastConfirmedEntry"):
        admin.topics.entry(partition, EntryPosition(last.ledger, last.entry + 1))
    with pytest.raises(AdminMissing, match="not found"):
        admin.topics.entry(partition, EntryPosition(last.ledger + 1_000_000, 0))


# --- brokers


def test_a_broker_says_how_it_is_set(admin: AdminClient, pulsar_broker: Broker) -> None:
    assert admin.brokers.is_healthy() is True
    assert admin.brokers.version() == pulsar_broker.version

    settings = admin.brokers.runtime_configuration()

    assert settings is not None
    assert int(settings["managedLedgerMaxUnackedRangesToPersist"]) > 0
    assert settings["managedLedgerPersistIndividualAckAsLongArray"] in {"true", "false"}
    (port,) = free_ports(1)
    with AdminClient(f"http://127.0.0.1:{port}", retry_for_s=0) as nobody:
        assert nobody.brokers.is_healthy() is False
