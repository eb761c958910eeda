"""Properties that a parked timer has in addition to those of its message: reason and origin."""

from __future__ import annotations

PARKED_PREFIX = "tw-parked-"
"""Prefix of these properties."""
PARKED_REASON = f"{PARKED_PREFIX}reason"
"""Reason, as a sentence."""
PARKED_ERROR = f"{PARKED_PREFIX}error"
"""Last error of its handler; absent if the reason is another."""
PARKED_FROM = f"{PARKED_PREFIX}from"
"""Partition topic from which the message was taken."""
PARKED_PART = f"{PARKED_PREFIX}part"
"""Part of the message that this timer holds, if it was too large for one message (`timewheel.client.set_aside`)."""
