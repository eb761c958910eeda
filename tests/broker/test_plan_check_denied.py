"""Checks of a live plan by roles that may do less than all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.tokens import token_for
from timewheel.broker.admin.client import AdminClient
from timewheel.core.plan import Plan
from timewheel.errors import AdminDenied, NothingToSample
from timewheel.inspect.profile import profile_of
from timewheel.provision.provisioning import ensure
from timewheel.watch import check

if TYPE_CHECKING:
    from tests.support.secured import Secured
    from timewheel.hooks import Event

PLAN = Plan(due_topic="persistent://watched/crm/reminders", subscriptions=("billing",))


def test_a_role_that_may_not_look_is_told_so_and_a_tenants_admin_may(secured: Secured) -> None:
    events: list[Event] = []

    def client(role: str) -> AdminClient:
        return AdminClient(secured.broker.admin_url, token=token_for(role), hooks=(events.append,))

    with client("admin") as admin, client("ops") as ops, client("stranger") as stranger:
        assert admin.tenants.create("watched", admin_roles=["ops"])
        ensure(ops, PLAN, now_ms=1_767_225_600_000, create_namespaces=True)
        events.clear()

        with pytest.raises(AdminDenied):
            check(stranger, PLAN, profile_of(stranger))

        with pytest.raises(NothingToSample, match="stores an entry"):
            check(ops, PLAN, profile_of(ops))
        # Its limit takes a superuser: the version's default is taken, and that is said.
        assert {event.name for event in events} == {"broker_configuration_denied"}
