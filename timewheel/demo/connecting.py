"""The demo's Pulsar clients: real ones, whose complaints go to a file instead of into the table."""

from __future__ import annotations

from pathlib import Path

import pulsar

__all__ = ["CLIENT_LOG", "connect"]

OPERATION_TIMEOUT_S = 300
"""For a broker on a busy machine to open a topic."""
CLIENT_LOG = "client.log"
"""In the folder of the results; all processes append to it."""


def connect(service_url: str, out: Path) -> pulsar.Client:
    """A client that logs errors to ``client.log`` in ``out``, a folder that exists."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(out / CLIENT_LOG))
    return pulsar.Client(service_url, logger=logger, operation_timeout_seconds=OPERATION_TIMEOUT_S)
