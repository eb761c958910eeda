"""The choice of the broker for tests, its version, and the settings that it starts with; all others keep the broker's
default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from timewheel.testing.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping


DEFAULT_VERSION = "4.0.7"  # the LTS line, which most users run
SUPPORTED_VERSIONS = ("4.0.7", "4.2.4")
"""The versions that the broker tests run on. Any other release can be requested."""
VERSION_VARIABLE = "TIMEWHEEL_PULSAR_VERSION"


def version_asked_for() -> str:
    """Return the version in `$TIMEWHEEL_PULSAR_VERSION`, else the default."""
    return os.environ.get(VERSION_VARIABLE) or DEFAULT_VERSION


COMMON_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        # Without it an entry of 5 MB makes the broker roll ledgers for ever (broker-facts: largest-entry).
        "nettyMaxFrameSizeBytes": "5253120",
        # Policies of single topics (broker-facts: policies-of-topics) are stored in a system topic.
        "systemTopicEnabled": "true",
        "topicLevelPoliciesEnabled": "true",
    }
)
"""Settings of every test broker, however it is started."""

BOOKIE_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        # The bookie uses the chosen port. Otherwise it takes one of the kernel's ephemeral ports, and an outgoing
        # connection can hold that port when the broker comes back: no bookie, no data.
        "allowEphemeralPorts": "true",
        "listeningInterface": "lo",
        # A confirmed message is in the page cache: it survives kill -9 of the broker, not a power failure.
        "journalSyncData": "false",
        # A developer's disk is often nearly full, and the bookie would turn read-only.
        "diskUsageThreshold": "0.999",
        "diskUsageWarnThreshold": "0.998",
    }
)
"""Settings of every bookie on this machine."""

STANDALONE_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        **COMMON_SETTINGS,
        "clusterName": "standalone",
        # A single bookie, so a single copy of each entry.
        "managedLedgerDefaultEnsembleSize": "1",
        "managedLedgerDefaultWriteQuorum": "1",
        "managedLedgerDefaultAckQuorum": "1",
        "loadBalancerEnabled": "false",
        # As in the distribution: languages without a Pulsar client use it.
        "webSocketServiceEnabled": "true",
        **BOOKIE_SETTINGS,
    }
)
"""Settings of a broker that starts from the bare defaults instead of a distribution's `standalone.conf`."""


BROKER_VARIABLE = "TIMEWHEEL_TEST_BROKER"
BROKER_ADMIN_VARIABLE = "TIMEWHEEL_TEST_BROKER_ADMIN"
"""A separate variable, not `PULSAR_ADMIN_URL`, which may be set for the commands and name another broker."""
SERVICE_VARIABLE = "PULSAR_SERVICE_URL"
ADMIN_VARIABLE = "PULSAR_ADMIN_URL"
SERVICE_SCHEMES = ("pulsar://", "pulsar+ssl://")
ELSEWHERE = f"or choose another broker: {BROKER_VARIABLE}=local, or its service URL"  # end of an error about containers


class BrokerKind(Enum):
    """Kinds of brokers for tests."""

    ANY = "any"  # a container if a Docker engine answers, else a local broker
    CONTAINER = "container"
    LOCAL = "local"
    GIVEN = "given"  # a broker that already runs; the choice holds its addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChoice:
    """A kind of broker and, for a given broker, its addresses."""

    kind: BrokerKind
    service_url: str = ""
    admin_url: str = ""
    variable: str = ""  # the variable that made the choice; empty for `BrokerKind.ANY`


def broker_choice(environment: Mapping[str, str]) -> BrokerChoice:
    """Read the choice from an environment; empty variables count as unset.

    `TIMEWHEEL_TEST_BROKER` decides. Without it `PULSAR_SERVICE_URL`, the variable of the commands, is used if set.

    Raises:
        ValueError: `TIMEWHEEL_TEST_BROKER` is none of `container`, `local` and a service URL.
        BrokerUnavailable: A service URL is set, but its admin URL is not.
    """
    asked = environment.get(BROKER_VARIABLE, "")
    if asked in {BrokerKind.CONTAINER.value, BrokerKind.LOCAL.value}:
        return BrokerChoice(kind=BrokerKind(asked), variable=BROKER_VARIABLE)
    if asked.startswith(SERVICE_SCHEMES):
        return _given(environment, BROKER_VARIABLE, BROKER_ADMIN_VARIABLE)
    if asked:
        raise ValueError(
            f"{BROKER_VARIABLE} is {asked!r}; it may be container, local, or a service URL such as "
            "pulsar://localhost:6650"
        )
    if environment.get(SERVICE_VARIABLE):
        return _given(environment, SERVICE_VARIABLE, ADMIN_VARIABLE)
    return BrokerChoice(kind=BrokerKind.ANY)


def _given(environment: Mapping[str, str], variable: str, admin_variable: str) -> BrokerChoice:
    admin_url = environment.get(admin_variable, "")
    if not admin_url:
        raise BrokerUnavailable(
            f"{variable} is set and {admin_variable} is not; both are needed, such as pulsar://localhost:6650 and "
            "http://localhost:8080"
        )
    return BrokerChoice(
        kind=BrokerKind.GIVEN, service_url=environment[variable], admin_url=admin_url, variable=variable
    )
