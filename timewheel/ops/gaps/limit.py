"""The limit that gaps are held against, and how it is known: not every role may read a broker's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from timewheel.admin.client import AdminClient
from timewheel.core.broker_profile import DEFAULT_PROFILE, BrokerProfile
from timewheel.core.errors import AdminDenied

__all__ = ["Limit", "limit_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a broker keeps of a cursor.

    Args:
        profile: With limit, format and rule.
        source: Where they are from, as the end of a sentence.
    """

    profile: BrokerProfile
    source: str


def limit_of(admin: AdminClient, *, gap_limit_ranges: int | None = None) -> Limit:
    """Read the limit, or take that of the broker's version.

    Args:
        admin: Asked for settings, which takes a superuser, and for its version.
        gap_limit_ranges: Who knows better says so.

    Raises:
        AdminError: It does not answer.
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
