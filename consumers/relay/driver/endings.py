"""How a subscription ends before it was told to, and what a dead letter says."""

from __future__ import annotations

from typing import Any

from timewheel.wire.dead_letters import DEAD_AT, DEAD_ENCRYPTION, DEAD_FROM, DEAD_REASON, DEAD_SCHEMA
from timewheel.wire.native import NO_SCHEMA, decryption_failed, encryption_of, schema_version_of

__all__ = ["HoleFound", "SessionFailed", "dead_letter_properties"]

MAX_REASON_CHARS = 500


class SessionFailed(Exception):
    """A send, a receive or the connection failed: drop consumer and producers, begin anew
    (broker-facts: exact-hops).
    """


class HoleFound(Exception):
    """Between two positions something was not handed out that can be read: begin anew, without what is known
    (broker-facts: holes-in-positions).
    """


def dead_letter_properties(message: Any, reason: str, source: str, at: str) -> dict[str, str]:
    """The properties of a dead letter besides those that it had: why it is one, and where it comes from."""
    version = schema_version_of(message)
    return {
        DEAD_REASON: reason[:MAX_REASON_CHARS],
        DEAD_FROM: source,
        DEAD_AT: at,
        **({} if version == NO_SCHEMA else {DEAD_SCHEMA: str(version)}),
        **({DEAD_ENCRYPTION: encryption_of(message)} if decryption_failed(message) else {}),
    }
