"""What a dead letter says besides what the message had: why it is one, and where it comes from."""

from __future__ import annotations

__all__ = ["DEAD_FROM", "DEAD_PREFIX", "DEAD_REASON", "DEAD_SCHEMA"]

DEAD_PREFIX = "tw-dead-"
"""How the names of these properties begin."""
DEAD_REASON = f"{DEAD_PREFIX}reason"
"""Why, as a sentence."""
DEAD_FROM = f"{DEAD_PREFIX}from"
"""The partition topic that it was taken from."""
DEAD_SCHEMA = f"{DEAD_PREFIX}schema"
"""The schema version there; absent if it had none."""
