"""Reads a stretch of a partition, entry by entry; if the topic moves meanwhile, continues behind the last entry."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.protocol.consumers import EntryReader
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.errors import BinaryProtocolError, BrokerLost, BrokerRefused, BrokerSilent, ConsumerLost
from timewheel.core.clock import Clock, pause
from timewheel.shadow.machine.stretches import Stretch

QUIET_MS = 3_000
"""Silence after which a stretch counts as read to its end: a broker does not deliver its own entries, nor messages
behind an open transaction."""
TRIES = 8
"""Times that a topic may move in a row without an entry in between."""
PAUSE_MS = 500


def entries_in(
    dialer: Dialer, part: str, stretch: Stretch, clock: Clock, *, keep_payload: bool = False, quiet_ms: int = QUIET_MS
) -> Iterator[list[Entry]]:
    """Yield the entries of a stretch, in topic order, some at a time.

    Args:
        dialer: Knows the cluster.
        part: Full name of a partition, or of a topic without partitions.
        stretch: The entries to read.
        clock: For pauses.
        keep_payload: Whether entries keep their payloads.
        quiet_ms: See `QUIET_MS`.

    Raises:
        BinaryProtocolError: The stretch cannot be read.
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
