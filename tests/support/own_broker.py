"""A broker with a test module's own settings, by the project's rule for missing brokers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from timewheel.testing import BrokerUnavailable, LocalPulsar

BUCKETS = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "10",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "2",
    "managedLedgerMaxEntriesPerLedger": "30",  # a bucket is stored when the next ledger begins
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
"""A broker whose bucket tracker stores and loads small buckets all the time."""


@contextmanager
def own_broker(
    config: Mapping[str, str], kind: Callable[..., LocalPulsar] = LocalPulsar, *, version: str | None = None
) -> Iterator[LocalPulsar]:
    """Run a broker, of the run's version if none is given, and stop it at the end.

    If no broker can run: a skip in local runs, and a failure in CI.
    """
    with ExitStack() as stack:
        try:
            broker = stack.enter_context(kind(version, config=config))
        except BrokerUnavailable as error:
            if os.environ.get("CI", "").lower() in {"1", "true"}:
                pytest.fail(f"no Pulsar, and this is CI: {error}", pytrace=False)
            pytest.skip(f"no Pulsar: {error}")
        yield broker
