"""A broker's profile where its settings may not be read; tests/broker reads those of a real one."""

from __future__ import annotations

import httpx
import pytest

from timewheel.broker.admin.client import AdminClient
from timewheel.core.broker_profile import BrokerProfile
from timewheel.hooks import Event
from timewheel.inspect.profile import profile_of


@pytest.mark.parametrize(("version", "line"), [("4.0.7", "4.0"), ("4.2.4", "4.2"), ("5.0.0", "5.0")])
def test_a_role_that_may_not_read_settings_gets_the_versions_defaults_and_a_warning(version: str, line: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/brokers/version"):
            return httpx.Response(200, text=version)
        return httpx.Response(403, json={"reason": "not a superuser"})

    events: list[Event] = []
    with AdminClient("http://b:1", transport=httpx.MockTransport(answer), hooks=(events.append,)) as admin:
        profile = profile_of(admin)

    assert profile.name == version
    assert profile.gap_limit_ranges == BrokerProfile.named(line).gap_limit_ranges
    assert profile.ack_format == BrokerProfile.named(line).ack_format
    assert [event.name for event in events] == ["broker_configuration_denied"]
