"""Properties that a dead letter has in addition to those of its message: reason and origin."""

from __future__ import annotations

from collections.abc import Mapping

from timewheel.client.parked import PARKED_PREFIX

DEAD_PREFIX = "tw-dead-"
"""Prefix of these properties."""
DEAD_REASON = f"{DEAD_PREFIX}reason"
"""Reason, as a sentence."""
DEAD_FROM = f"{DEAD_PREFIX}from"
"""Partition topic from which the message was taken."""
DEAD_AT = f"{DEAD_PREFIX}at"
"""Position in that topic: ``ledger:entry``, and ``:index`` within a batch. For messages that a relay never received,
the positions of the messages before and behind them: ``90:3..90:5``."""
DEAD_PART = f"{DEAD_PREFIX}part"
"""Part of the message that this letter holds, if it was too large for one message (`timewheel.client.set_aside`);
``none``: the relay never received the message."""
DEAD_ENCRYPTION = f"{DEAD_PREFIX}encryption"
"""Data needed to decrypt the payload, if it is encrypted (`timewheel.client.native.encryption_of`)."""
DEAD_SCHEMA = f"{DEAD_PREFIX}schema"
"""Schema version in that topic; absent if the message had none."""


def without_notes(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a message that becomes a dead or parked letter, without notes. Notes that its sender
    wrote are left out, since operators and replays rely on them.
    """
    return {name: text for name, text in properties.items() if not name.startswith((DEAD_PREFIX, PARKED_PREFIX))}
