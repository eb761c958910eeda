"""The least rights of senders, services and relays: each row suffices, and a right less is refused."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, NamedTuple

import httpx
import pulsar
import pytest

from tests.broker.conftest import Connect
from tests.broker.due_topic import SUBSCRIPTION, now_ms
from tests.support.secured import Secured
from tests.support.tokens import token_for
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer
from timewheel.core import Plan
from timewheel.core.names import Names
from timewheel.core.plan import Tiered
from timewheel.errors import RoleRefused, SendFailed
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.relay import Relay

DUE, TIER, DEAD = "due topic", "tier", "dead letters"
HELD, DELAYED = timedelta(seconds=8), timedelta(seconds=2)


class Right(NamedTuple):
    action: str
    topic: str


LEAST = {
    "sender": (Right("produce", DUE), Right("produce", TIER)),
    "service": (Right("consume", DUE),),
    "relay": (Right("consume", TIER), Right("produce", DUE), Right("produce", DEAD)),
}


class Granted:
    """A plan's topics in a tenant of others, and clients of roles that were granted these rights alone."""

    def __init__(self, secured: Secured, connect: Connect) -> None:
        self.secured, self._connect = secured, connect
        tenant = f"least-{uuid.uuid4().hex[:8]}"
        self.plan = Plan(
            due_topic=f"persistent://{tenant}/timers/reminders",
            subscriptions=(SUBSCRIPTION,),
            scheme=Tiered(window_ms=3_000, tiers_ms=(3_000,)),
            partitions=1,
            guard_ms=100,
            max_delay_ms=60_000,
        )
        with AdminClient(secured.broker.admin_url, token=token_for("admin")) as admin:
            admin.tenants.create(tenant, admin_roles=["others"])
            ensure(admin, self.plan, now_ms=now_ms(), create_namespaces=True)
        names = Names(self.plan)
        self.topics = {DUE: self.plan.due_topic, TIER: f"{self.plan.due_topic}.tw.tier-3s", DEAD: names.dead_letter}

    def client(self, *rights: Right) -> Any:
        role = f"role-{uuid.uuid4().hex[:8]}"
        for topic in {right.topic for right in rights}:
            actions = [right.action for right in rights if right.topic == topic]
            url = (
                f"{self.secured.broker.admin_url}/admin/v2/{self.topics[topic].replace('://', '/')}/permissions/{role}"
            )
            httpx.post(url, json=actions, headers={"Authorization": f"Bearer {token_for('admin')}"}).raise_for_status()
        return self._connect(self.secured.broker, authentication=pulsar.AuthenticationToken(token_for(role)))


@pytest.fixture
def granted(secured: Secured, connect: Connect) -> Granted:
    return Granted(secured, connect)


def test_the_least_rights_carry_a_timer_from_its_sender_to_its_service(granted: Granted) -> None:
    sender, service, relay = (granted.client(*LEAST[who]) for who in ("sender", "service", "relay"))
    with Relay(relay, granted.plan), DelayedProducer(sender, granted.plan) as producer:
        held = producer.send(b"held", deliver_after=HELD)
        delayed = producer.send(b"delayed", deliver_after=DELAYED)
        with DelayedConsumer(service, granted.plan, SUBSCRIPTION, relay=False) as consumer:
            came = [consumer.receive(timedelta(seconds=30)) for _ in range(2)]
            for message in came:
                consumer.acknowledge(message)
    assert [message.timer_id for message in came] == [delayed.id, held.id]


def less(granted: Granted, who: str, missing: Right) -> Any:
    return granted.client(*(right for right in LEAST[who] if right != missing))


@pytest.mark.parametrize("missing", LEAST["sender"], ids=" ".join)
def test_a_sender_with_a_right_less_is_refused_by_name(granted: Granted, missing: Right) -> None:
    with (
        DelayedProducer(less(granted, "sender", missing), granted.plan) as producer,
        pytest.raises(SendFailed, match="it takes the permission produce") as refused,
    ):
        producer.send(b"x", deliver_after=HELD if missing.topic == TIER else DELAYED)
    assert granted.topics[missing.topic] in str(refused.value)


@pytest.mark.parametrize("missing", LEAST["service"], ids=" ".join)
def test_a_service_with_a_right_less_is_refused_by_name(granted: Granted, missing: Right) -> None:
    with pytest.raises(RoleRefused, match=r"it takes the permission .*consume") as refused:
        DelayedConsumer(less(granted, "service", missing), granted.plan, SUBSCRIPTION, relay=False).start()
    assert granted.topics[missing.topic] in str(refused.value)


@pytest.mark.parametrize("missing", LEAST["relay"], ids=" ".join)
def test_a_relay_with_a_right_less_is_refused_by_name(granted: Granted, missing: Right) -> None:
    with pytest.raises(RoleRefused, match="it takes the permission") as refused:
        Relay(less(granted, "relay", missing), granted.plan).start()
    assert granted.topics[missing.topic] in str(refused.value)
