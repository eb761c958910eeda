"""Simulates, entry by entry, both formats in which a broker persists a cursor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from timewheel.core.broker_profile import AckFormat, BrokerProfile

Flags = NDArray[np.bool_]


def redelivered_exactly(
    acknowledged: Flags, ledgers_of: int | NDArray[np.int64], profile: BrokerProfile, ack_format: AckFormat
) -> int:
    """Count acknowledged entries of a partition that an unload delivers again.

    Args:
        acknowledged: Flag of each entry, in position order.
        ledgers_of: Entries of every ledger, the last ledger has the rest; or the ledger of each entry.
    """
    numbers = np.arange(len(acknowledged)) // ledgers_of if isinstance(ledgers_of, int) else ledgers_of
    open_ = np.flatnonzero(~acknowledged)
    if not len(open_):
        return 0  # the mark-delete position is at the end
    past = acknowledged.copy()
    past[: open_[0]] = False
    ranges: list[int] = []
    ledgers: list[int] = []
    for ledger in np.split(past, np.flatnonzero(np.diff(numbers)) + 1):
        if not ledger.any():
            continue
        begins = np.flatnonzero(ledger & ~np.r_[False, ledger[:-1]])
        ends = np.flatnonzero(ledger & ~np.r_[ledger[1:], False])
        ranges += (ends - begins + 1).tolist()
        ledgers.append(int(ledger.sum()))
    if ack_format == "bitmap" and len(ranges) > profile.metadata_store_limit_ranges:
        kept, total = 0, 0
        for entries in ledgers:
            before, total = total, total + entries
            if (before if profile.keeps_crossing_ledger else total) <= profile.gap_limit_ranges:
                kept += entries
        if kept:
            return sum(ledgers) - kept
    stored: list[int] = []
    for length in ranges:
        stored.append(length)
        if len(stored) > profile.gap_limit_ranges:  # checked after adding: the broker stores limit + 1 ranges
            break
    return sum(ranges) - sum(stored)
