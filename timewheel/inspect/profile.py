"""The profile of a live broker, from its own settings, and its gap limit: some roles may not read the settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from timewheel.broker.admin.client import AdminClient
from timewheel.core.broker_profile import DEFAULT_PROFILE, BrokerProfile
from timewheel.core.errors import AdminDenied


def profile_of(admin: AdminClient) -> BrokerProfile:
    """Return the profile of the broker that the client connects to.

    The broker's settings decide. For a role that may not read them (they need a superuser), the defaults of the
    broker's version apply, and the client's hooks receive a warning.

    Raises:
        AdminError: The broker does not answer.
        ProfileError: A setting is no number.
    """
    return BrokerProfile.from_broker_settings(admin.brokers.runtime_configuration() or {}, admin.brokers.version())


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The broker's limit on the stored ranges of a cursor, with format and rule; the source ends a sentence."""

    profile: BrokerProfile
    source: str


def limit_of(admin: AdminClient, *, gap_limit_ranges: int | None = None) -> Limit:
    """Read the limit from the broker's settings, or else use the default of its version. A limit given by the user
    takes precedence.

    Raises:
        AdminError: The broker does not answer.
        ProfileError: A setting is no number.
    """
    settings = admin.brokers.runtime_configuration()
    try:
        version = admin.brokers.version()
    except AdminDenied:
        version = ""
    if settings is not None:
        found = Limit(profile=BrokerProfile.from_broker_settings(settings, version), source="read from the broker")
    elif version:
        found = Limit(
            profile=BrokerProfile.from_broker_settings({}, version),
            source=f"the default of Pulsar {version}, since this role may not read the broker's settings",
        )
    else:
        found = Limit(
            profile=BrokerProfile.named(DEFAULT_PROFILE),
            source=f"the default of Pulsar {DEFAULT_PROFILE}, since this role may read neither settings nor version",
        )
    if gap_limit_ranges is None:
        return found
    return Limit(profile=replace(found.profile, gap_limit_ranges=gap_limit_ranges), source="as given")
