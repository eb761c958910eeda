"""The admin client with tokens and TLS on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.tokens import token_for
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.http import tls_context
from timewheel.core.errors import AdminDenied, AdminUnreachable

if TYPE_CHECKING:
    from tests.support.secured import Secured
    from timewheel.hooks import Event


def test_a_token_opens_what_its_role_may_and_nothing_else(secured: Secured) -> None:
    with AdminClient(secured.broker.admin_url, token=token_for("admin")) as admin:
        assert admin.tenants.create("acme", admin_roles=["ops"]) is True
        assert admin.tenants.create("other") is True

    with AdminClient(secured.broker.admin_url, token=lambda: token_for("ops") + "\n") as ops:
        assert ops.namespaces.create("acme/crm") is True
        assert ops.topics.create("persistent://acme/crm/reminders", 2) is True
        assert ops.subscriptions.create("persistent://acme/crm/reminders", "billing") is True
        with pytest.raises(AdminDenied) as denied:
            ops.namespaces.create("other/crm")
        with pytest.raises(AdminDenied, match="superuser"):
            ops.tenants.list()

    assert denied.value.endpoint == "PUT /admin/v2/namespaces/other/crm"
    assert "the token's role is 'ops'" in denied.value.reason
    assert "admin of tenant 'other'" in denied.value.reason


def test_without_the_right_to_read_settings_there_are_none_and_a_warning(secured: Secured) -> None:
    warnings: list[Event] = []

    with AdminClient(secured.broker.admin_url, token=token_for("ops"), hooks=(warnings.append,)) as ops:
        assert ops.brokers.runtime_configuration() is None
        with pytest.raises(AdminDenied):
            ops.brokers.is_healthy()  # not allowed to ask is not the same as sick

    assert [(warning.name, warning.level) for warning in warnings] == [("broker_configuration_denied", "warning")]
    assert warnings[0].fields["endpoint"] == "GET /admin/v2/brokers/configuration/runtime"


def test_token_and_tls_work_together_and_an_unknown_authority_is_refused(secured: Secured) -> None:
    tls = tls_context(ca_path=secured.ca_path)

    with AdminClient(secured.tls_url, token=token_for("admin"), tls=tls) as admin:
        assert admin.brokers.is_healthy() is True
        assert "public" in admin.tenants.list()
    with AdminClient(secured.tls_url, token=token_for("ops"), tls=tls) as ops, pytest.raises(AdminDenied):
        ops.tenants.list()
    with AdminClient(secured.tls_url, token=token_for("admin"), retry_for_s=0) as stranger:  # noqa: SIM117
        with pytest.raises(AdminUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            stranger.tenants.list()
