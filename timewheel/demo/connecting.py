"""The demo's Pulsar clients: real clients, whose log goes to a file instead of into the table."""

from __future__ import annotations

from pathlib import Path

import pulsar

OPERATION_TIMEOUT_S = 300
"""Time for a broker on a busy machine to open a topic."""
CLIENT_LOG = "client.log"
"""File in the folder of the results; all processes append to it."""


def connect(service_url: str, out: Path) -> pulsar.Client:
    """Connect a client that logs errors to ``client.log`` in ``out``, an existing folder."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(out / CLIENT_LOG))
    return pulsar.Client(service_url, logger=logger, operation_timeout_seconds=OPERATION_TIMEOUT_S)
