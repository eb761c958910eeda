"""What a live broker forgets and pins: its profile, from its own settings."""

from __future__ import annotations

from timewheel.admin.client import AdminClient
from timewheel.core.broker_profile import BrokerProfile

__all__ = ["profile_of"]


def profile_of(admin: AdminClient) -> BrokerProfile:
    """The profile of the broker that the client asks.

    Its settings decide. A role that may not read them (it takes a superuser) gets the defaults of the broker's version,
    and the client's hooks a warning.

    Raises:
        AdminError: It does not answer.
        ProfileError: A setting is no number.
    """
    return BrokerProfile.from_broker_settings(admin.brokers.runtime_configuration() or {}, admin.brokers.version())
