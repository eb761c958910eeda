"""Provisioning with a role that may do some of it, on a broker with authorization."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.tokens import token_for
from timewheel.broker.admin.client import AdminClient
from timewheel.core.errors import AdminDenied
from timewheel.core.plan import Plan, Tiered
from timewheel.provision.provisioning import ensure

if TYPE_CHECKING:
    from tests.support.secured import Secured
    from timewheel.hooks import Event

NOW_MS = 1_767_225_600_000
PLAN = Plan(
    due_topic="persistent://umbrella/crm/reminders",
    subscriptions=("billing",),
    scheme=Tiered(window_ms=86_400_000, tiers_ms=(86_400_000,)),
    holding_namespace="umbrella/held",
)


def test_a_missing_right_is_named_with_the_step_that_needs_it(secured: Secured) -> None:
    events: list[Event] = []

    def client(role: str) -> AdminClient:
        return AdminClient(secured.broker.admin_url, token=token_for(role), hooks=(events.append,))

    with client("admin") as admin, client("ops") as ops, client("stranger") as stranger:
        assert admin.tenants.create("umbrella", admin_roles=["ops"])

        with pytest.raises(AdminDenied) as denied:
            ensure(stranger, PLAN, now_ms=NOW_MS, create_namespaces=True)
        assert "role is 'stranger'" in str(denied.value)
        assert "admin of tenant 'umbrella'" in str(denied.value)
        assert "while looking into namespace umbrella/crm" in str(denied.value)

        # A tenant admin is enough (broker-facts: policies-of-topics); what takes a superuser is guessed, and said.
        report = ensure(ops, PLAN, now_ms=NOW_MS, create_namespaces=True)
        assert {str(step) for step in report.steps[:2]} == {"create namespace"}
        assert ensure(ops, PLAN, now_ms=NOW_MS).steps == ()
        assert {event.name for event in events} == {"broker_configuration_denied"}
