"""What a parked timer says besides what the message had: why it is parked, and where it comes from."""

from __future__ import annotations

__all__ = ["PARKED_ERROR", "PARKED_FROM", "PARKED_PART", "PARKED_PREFIX", "PARKED_REASON"]

PARKED_PREFIX = "tw-parked-"
"""How the names of these properties begin."""
PARKED_REASON = f"{PARKED_PREFIX}reason"
"""Why, as a sentence."""
PARKED_ERROR = f"{PARKED_PREFIX}error"
"""What its handler raised at last; absent if that is not why."""
PARKED_FROM = f"{PARKED_PREFIX}from"
"""The partition topic that it was taken from."""
PARKED_PART = f"{PARKED_PREFIX}part"
"""Which part of it this is, if it was too large for one message (`timewheel.wire.set_aside`)."""
