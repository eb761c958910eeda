"""Whether anything still waits outside the due topic."""

from __future__ import annotations

from timewheel.admin.client import AdminClient
from timewheel.core.names import RELAY_SUBSCRIPTION, parts_of
from timewheel.core.plan import Plan
from timewheel.core.topology import entrances_of
from timewheel.ops.former_topics import held_backlog

__all__ = ["waiting"]


def waiting(admin: AdminClient, plan: Plan) -> int:
    """How many entries wait in the intake, in the journal and in holding topics, those of earlier plans among them.

    Raises:
        AdminError: The broker did not tell.
    """
    parts = [part for topic in entrances_of(plan) for part in parts_of(topic.name, plan.own_partitions)]
    stats = [admin.topics.stats(part, precise_backlog=True).subscriptions.get(RELAY_SUBSCRIPTION) for part in parts]
    return held_backlog(admin, plan, with_former=True) + sum(one.backlog for one in stats if one is not None)
