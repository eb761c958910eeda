"""What a dead letter says besides what the message had: why it is one, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from timewheel.wire.parked import PARKED_PREFIX

__all__ = [
    "DEAD_AT",
    "DEAD_ENCRYPTION",
    "DEAD_FROM",
    "DEAD_PART",
    "DEAD_PREFIX",
    "DEAD_REASON",
    "DEAD_SCHEMA",
    "without_notes",
]

DEAD_PREFIX = "tw-dead-"
"""How the names of these properties begin."""
DEAD_REASON = f"{DEAD_PREFIX}reason"
"""Why, as a sentence."""
DEAD_FROM = f"{DEAD_PREFIX}from"
"""The partition topic that it was taken from."""
DEAD_AT = f"{DEAD_PREFIX}at"
"""Its position there: ``ledger:entry``, and ``:index`` within a batch. Of what a relay was not given, the positions of
the messages before and behind it: ``90:3..90:5``."""
DEAD_PART = f"{DEAD_PREFIX}part"
"""Which part of it this is, if it was too large for one message (`timewheel.wire.set_aside`); ``none``: the relay was
not given it."""
DEAD_ENCRYPTION = f"{DEAD_PREFIX}encryption"
"""What it takes to decrypt the payload, if it is encrypted (`timewheel.wire.native.encryption_of`)."""
DEAD_SCHEMA = f"{DEAD_PREFIX}schema"
"""The schema version there; absent if it had none."""


def without_notes(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a message that becomes a letter, dead or parked: whatever its sender wrote in place of the
    notes is left out, since whoever deals with the letter goes by them.
    """
    return {name: text for name, text in properties.items() if not name.startswith((DEAD_PREFIX, PARKED_PREFIX))}
