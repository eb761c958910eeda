"""Unplanned ends of a subscription, and the properties of a dead letter."""

from __future__ import annotations

from typing import Any

from timewheel.client.dead_letters import DEAD_AT, DEAD_ENCRYPTION, DEAD_FROM, DEAD_REASON, DEAD_SCHEMA
from timewheel.client.native import NO_SCHEMA, decryption_failed, encryption_of, schema_version_of

MAX_REASON_CHARS = 500


class SessionFailed(Exception):
    """A send, a receive or the connection failed: drop consumer and producers, restart (broker-facts: exact-hops)."""


class HoleFound(Exception):
    """A readable message between two positions was not delivered: begin anew, without the known positions
    (broker-facts: holes-in-positions).
    """


def dead_letter_properties(message: Any, reason: str, source: str, at: str) -> dict[str, str]:
    """Return the properties that a dead letter adds: its reason and its origin."""
    version = schema_version_of(message)
    return {
        DEAD_REASON: reason[:MAX_REASON_CHARS],
        DEAD_FROM: source,
        DEAD_AT: at,
        **({} if version == NO_SCHEMA else {DEAD_SCHEMA: str(version)}),
        **({DEAD_ENCRYPTION: encryption_of(message)} if decryption_failed(message) else {}),
    }
