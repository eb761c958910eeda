"""The log of cancellations is over its quota, or closed to a role: each says so, and no timer is lost by it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from tests.broker.due_topic import SUBSCRIPTION, Handled, running
from tests.broker.test_cancel import WAIT_S, nothing_is_left, plan_on, provisioned
from tests.support.tokens import token_for
from timewheel.broker.admin import AdminClient
from timewheel.broker.admin.policies import SIZE_QUOTA, BacklogQuota
from timewheel.consumers import DelayedConsumer
from timewheel.core.names import Names
from timewheel.errors import CancelFailed, TimewheelError
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.testing import Broker, eventually

if TYPE_CHECKING:
    from tests.broker.conftest import Connect
    from tests.support.secured import Secured

SOON = timedelta(seconds=6)


def test_over_its_quota_a_cancel_fails_with_the_reason_and_the_timer_comes(
    connect: Connect, pulsar_broker: Broker, topic: str
) -> None:
    client: Any = connect(pulsar_broker)
    plan = provisioned(pulsar_broker, plan_on(topic))
    log = Names(plan).cancellations
    with DelayedProducer(client, plan) as producer:
        dead = producer.send(b"x", deliver_after=SOON, timer_id="dead")
        producer.cancel(dead)
    with AdminClient(pulsar_broker.admin_url) as admin:
        full = BacklogQuota(action="producer_exception", limit_bytes=1)
        admin.topic_policies.set(log, SIZE_QUOTA, full)
        eventually(lambda: admin.topic_policies.get(log, SIZE_QUOTA) == full)
    handled = Handled()
    with DelayedProducer(client, plan) as producer:
        alive = producer.send(b"x", deliver_after=SOON, timer_id="alive")
        with pytest.raises(CancelFailed, match="uota") as refused:
            producer.cancel(alive)
        assert log in str(refused.value)
        # What replaces another is stored all the same, and says that the other one is not cut off.
        with pytest.raises(TimewheelError, match="uota"):
            producer.reschedule(alive, b"y", deliver_after=SOON)
        with running(DelayedConsumer(client, plan, SUBSCRIPTION), handled):
            eventually(lambda: nothing_is_left(pulsar_broker, plan), WAIT_S)
    assert dict(handled.times) == {"alive": 2}


def test_a_role_that_may_not_use_the_log_is_told_so(connect: Connect, secured: Secured) -> None:
    plan = plan_on("persistent://orders/shop/reminders", partitions=1)
    token = token_for("admin")
    with AdminClient(secured.broker.admin_url, token=token) as admin:
        admin.tenants.create("orders", admin_roles=["ops"])
        ensure(admin, plan, now_ms=0, create_namespaces=True)
    allowed = (plan.due_topic, Names(plan).retry(SUBSCRIPTION), Names(plan).parked(SUBSCRIPTION))
    for name in allowed:
        url = f"{secured.broker.admin_url}/admin/v2/{name.replace('://', '/')}/permissions/shop"
        granted = httpx.post(url, json=["produce", "consume"], headers={"Authorization": f"Bearer {token}"})
        assert granted.is_success, granted.text
    client: Any = connect(secured.broker, authentication=pulsar.AuthenticationToken(token_for("shop")))
    with DelayedProducer(client, plan) as producer:
        timer = producer.send(b"x", deliver_after=SOON, timer_id="t")
        with pytest.raises(CancelFailed, match=r"tw\.cancellations.*uthoriz"):
            producer.cancel(timer)
    with pytest.raises(pulsar.AuthorizationError):
        DelayedConsumer(client, plan, SUBSCRIPTION, relay=False).start()
