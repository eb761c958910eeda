"""Plans on a broker and what lies in their topics: for tests of the producer, without any consumer or relay."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pulsar

from tests.broker.due_topic import now_ms
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.internals import EntryPosition
from timewheel.core import Calendar, Native, Plan, Tiered, Wheel
from timewheel.core.names import partition_topic
from timewheel.provision.provisioning import ensure
from timewheel.testing import Broker

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
READ_TIMEOUT_MS = 10_000

TIERED = Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS))
"""Far longer than any test: what is held stays held."""
TIER_1D = ".tw.tier-1d"


def make_plan(
    broker: Broker,
    topic: str,
    scheme: Native | Tiered | Calendar | Wheel = TIERED,
    *,
    at_ms: int | None = None,
    **changes: Any,
) -> Plan:
    """A plan whose topics are there."""
    plan = Plan(due_topic=topic, subscriptions=("billing",), scheme=scheme, **changes)
    with AdminClient(broker.admin_url) as admin:
        ensure(admin, plan, now_ms=now_ms() if at_ms is None else at_ms)
    return plan


def stored_messages(client: Any, topic: str, count: int, *, partition: int = 0, schema: Any = None) -> list[Any]:
    """The first messages of a partition; a reader is given delayed ones at once. Fails if there are fewer."""
    options = {} if schema is None else {"schema": schema}
    reader = client.create_reader(partition_topic(topic, partition), pulsar.MessageId.earliest, **options)
    try:
        return [reader.read_next(READ_TIMEOUT_MS) for _ in range(count)]
    finally:
        reader.close()


def stored_entries(broker: Broker, topic: str, *, partition: int = 0) -> int:
    """Entries that were written to a partition; a batch is one."""
    with AdminClient(broker.admin_url) as admin:
        return admin.topics.internal_stats(partition_topic(topic, partition)).entries_added


def stored_entry(broker: Broker, topic: str, message_id: Any, *, partition: int = 0) -> StoredEntry:
    """One entry as the broker keeps it, its delay included."""
    with AdminClient(broker.admin_url) as admin:
        position = EntryPosition(message_id.ledger_id(), message_id.entry_id())
        return admin.topics.entry(partition_topic(topic, partition), position)


def crypto_keys(folder: Path) -> Any:
    """A new pair to encrypt with, and to decrypt."""
    private, public = folder / "private.pem", folder / "public.pem"
    for arguments in (
        ["genrsa", "-out", str(private), "2048"],
        ["rsa", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
    return pulsar.CryptoKeyReader(str(public), str(private))
