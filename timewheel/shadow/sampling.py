"""The delays of a topic as a history for the planner, read by the brokers' own protocol: thousands a second."""

from __future__ import annotations

from collections.abc import Callable

from timewheel.admin.client import AdminClient
from timewheel.binary_protocol.dialing import Dialer
from timewheel.binary_protocol.entries import Entry
from timewheel.core.names import parts_of
from timewheel.ops.errors import NothingToSample
from timewheel.ops.sample import Sample, SampledEntry, envelope_in
from timewheel.shadow.machine.stretches import entries_after, stretches_of
from timewheel.shadow.walking import entries_in
from timewheel.wire.positions import EntryPosition

__all__ = ["DEFAULT_SAMPLES", "sample_of"]

DEFAULT_SAMPLES = 100_000
PIECES = 50
"""Stretches of each partition: entries side by side are alike, so that few long ones would say little."""
_BEGIN = EntryPosition(-1, -1)

Tell = Callable[[int, int], None]


def sample_of(
    admin: AdminClient,
    dialer: Dialer,
    topic: str,
    *,
    samples: int = DEFAULT_SAMPLES,
    tell: Tell = lambda _done, _total: None,
) -> Sample:
    """Look at what a topic stores, acknowledged or not: in stretches at even distances, if it is more than asked for.

    Args:
        admin: Of any broker.
        dialer: Of the binary protocol.
        topic: Full name of a persistent topic, partitioned or not.
        samples: So many entries.
        tell: Told of the progress.

    Raises:
        NothingToSample: There is no such topic, or nothing in it.
        AdminError: The role may not see its stats.
        BinaryProtocolError: Entries cannot be read.
    """
    partitions = admin.topics.partitions(topic)
    if partitions is None:
        raise NothingToSample(topic, "there is no such topic")
    ledgers = {part: admin.topics.internal_stats(part).ledgers for part in parts_of(topic, partitions)}
    counts = {part: entries_after(found, _BEGIN) for part, found in ledgers.items()}
    population = sum(counts.values())
    if not population:
        raise NothingToSample(topic, "it stores no entries: nothing was sent, or all is acknowledged and removed")
    wanted = min(samples, population)
    found: list[SampledEntry] = []
    tell(0, wanted)
    for part, count in counts.items():
        for stretch in stretches_of(ledgers[part], _BEGIN, -(-wanted * count // population), PIECES):
            for entries in entries_in(dialer, part, stretch, admin.clock):
                found += [_sampled(entry) for entry in entries if entry.marker is None and entry.defect is None]
                tell(len(found), wanted)
    if not found:
        raise NothingToSample(topic, "none of its entries could be read")
    return Sample(
        topic=topic,
        partitions=partitions,
        population=population,
        seed=0,
        sampled_at_ms=admin.clock.now_ms(),
        entries=tuple(sorted(found, key=lambda entry: entry.publish_ms)),
        unread=max(wanted - len(found), 0),
    )


def _sampled(entry: Entry) -> SampledEntry:
    """As `timewheel.ops.sample.sampled` makes it of an entry that the admin API shows."""
    envelope = envelope_in(entry.properties)
    publish_ms = entry.publish_ms
    due_ms = entry.deliver_at_ms or publish_ms
    if envelope is not None:
        due_ms = envelope.due_ms
        if not envelope.hops:
            publish_ms = envelope.entered_ms
    return SampledEntry(
        publish_ms=publish_ms,
        due_ms=max(due_ms, publish_ms),
        size_bytes=max(entry.uncompressed_bytes, entry.payload_bytes),
        key=entry.partition_key,
        is_delayed=bool(entry.deliver_at_ms) or (envelope is not None and due_ms > publish_ms),
        is_overdue=due_ms < publish_ms,
        batch_messages=entry.batch_size,
        hops=None if envelope is None else envelope.hops,
    )
