"""The version and the settings that a broker for tests starts with; all other settings keep the broker's default."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_VERSION = "4.0.7"
"""The LTS line, which most users run."""
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
"""Settings of a broker that starts from the bare defaults instead of a distribution's `standalone.conf`."""
