"""Reads a stretch of a partition, entry by entry; a topic that moves meanwhile is read on behind the last entry."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.binary_protocol.dialing import Dialer
from timewheel.binary_protocol.entries import Entry
from timewheel.binary_protocol.errors import BinaryProtocolError, BrokerLost, BrokerRefused, BrokerSilent, ConsumerLost
from timewheel.binary_protocol.reading import EntryReader
from timewheel.core.clock import Clock, pause
from timewheel.shadow.machine.stretches import Stretch

__all__ = ["QUIET_MS", "entries_in"]

QUIET_MS = 3_000
"""So long nothing comes before a stretch counts as read to its end: what a broker writes for itself it gives nobody,
and behind an open transaction it gives nothing."""
TRIES = 8
"""That a topic may move while it is read; each time it has come further."""
PAUSE_MS = 500


def entries_in(
    dialer: Dialer, part: str, stretch: Stretch, clock: Clock, *, keep_payload: bool = False, quiet_ms: int = QUIET_MS
) -> Iterator[list[Entry]]:
    """The entries of a stretch, in topic order, some at a time.

    Args:
        dialer: Knows the cluster.
        part: Full name of a partition, or of a topic without partitions.
        stretch: Which entries.
        clock: For pauses.
        keep_payload: Whether entries have their payloads.
        quiet_ms: See `QUIET_MS`.

    Raises:
        BinaryProtocolError: It cannot be read.
    """
    after, failures = stretch.after, 0
    while True:
        try:
            with EntryReader(dialer, part, after=after, keep_payload=keep_payload) as reader:
                while entries := reader.read(quiet_ms):
                    after, failures = entries[-1].position, 0
                    if after < stretch.upto:
                        yield entries
                        continue
                    yield [entry for entry in entries if entry.position <= stretch.upto]
                    return
                return
        except (BrokerLost, ConsumerLost, BrokerSilent, BrokerRefused) as error:
            failures += 1
            if failures >= TRIES or not _passes(error):
                raise
            pause(clock, PAUSE_MS)


def _passes(error: BinaryProtocolError) -> bool:
    return error.is_passing if isinstance(error, BrokerRefused) else True
