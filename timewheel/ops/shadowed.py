"""Whether a topic is shadowed: a shadow's desired state stands in the properties of its journal."""

from __future__ import annotations

from timewheel.admin.client import AdminClient
from timewheel.core.errors import AdminError, AdminUnreachable
from timewheel.core.names import STATE_PROPERTY, journal_topic

__all__ = ["ENDS", "LIFTS", "UNDER_WAY", "shadow_of"]

LIFTS = "shadowing"
UNDER_WAY = frozenset({LIFTS, "paused", "draining"})
"""States in which the journal may hold what is nowhere else."""
ENDS = frozenset({"draining", "native"})
"""States in which all goes back, and nothing new is moved: the plan is being left, or was."""


def shadow_of(admin: AdminClient, topic: str) -> str | None:
    """The desired state of a topic's shadow, one of `UNDER_WAY`; None: it has no shadow, or the role may not see it.

    Args:
        admin: One request.
        topic: Full name, without a partition's suffix.

    Raises:
        AdminUnreachable: No broker answers.
    """
    try:
        properties = admin.topics.properties(journal_topic(topic))
    except AdminUnreachable:
        raise
    except AdminError:
        return None
    state = properties.get(STATE_PROPERTY, "").partition(" ")[0]
    return state if state in UNDER_WAY else None
