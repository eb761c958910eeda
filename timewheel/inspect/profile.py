"""The profile of a live broker, from its own settings."""

from __future__ import annotations

from timewheel.broker.admin.client import AdminClient
from timewheel.core.broker_profile import BrokerProfile


def profile_of(admin: AdminClient) -> BrokerProfile:
    """Return the profile of the broker that the client connects to.

    The broker's settings decide. For a role that may not read them (they need a superuser), the defaults of the
    broker's version apply, and the client's hooks receive a warning.

    Raises:
        AdminError: The broker does not answer.
        ProfileError: A setting is no number.
    """
    return BrokerProfile.from_broker_settings(admin.brokers.runtime_configuration() or {}, admin.brokers.version())
