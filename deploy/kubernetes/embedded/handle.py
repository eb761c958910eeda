"""Handles the timers of a plan, with its relay inside: `python handle.py PLAN`."""

import os
import sys
from pathlib import Path

import pulsar

from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core import Plan
from timewheel.tokens import TokenReader


def handle(message: DelayedMessage) -> None:  # returns = acknowledged, raises = delivered again
    print("handled", message.timer_id, flush=True)


def client() -> pulsar.Client:
    token, trusted = os.environ.get("PULSAR_TOKEN_FILE"), os.environ.get("PULSAR_TLS_TRUST_CERTS_FILE_PATH")
    return pulsar.Client(
        os.environ["PULSAR_SERVICE_URL"],
        authentication=pulsar.AuthenticationToken(TokenReader(Path(token))) if token else None,
        tls_trust_certs_file_path=trusted,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


if __name__ == "__main__":
    with DelayedConsumer(client(), Plan.load(sys.argv[1]), "billing") as consumer:
        consumer.run(handle, workers=8)
