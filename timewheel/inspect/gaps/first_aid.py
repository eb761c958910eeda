"""First aid against gaps caused by delays: a shadow, which moves timers that are far from due out of the topic."""

from __future__ import annotations

from collections.abc import Sequence

from timewheel.broker.admin.stats import DELAYING_TYPES
from timewheel.core.escapes import admin_options, timewheel_command
from timewheel.inspect.gaps.gap_status import Level, SubscriptionGaps
from timewheel.provision.shadow_commands import is_lone_partition, is_own

SHADOW_HELPS = (
    "first aid: a shadow moves timers far from due out of the topic, and brings them back in time; no producer and no "
    "consumer has to change"
)
NO_SHADOW_HELPS = (
    "no shadow helps, and no plan can name the topic: its name is that of a partition, and no partitioned topic has "
    "that name; send to another topic"
)
BESIDE_SHADOW = (
    "the topic has its first aid already, a shadow ({state}): timewheel shadow status PLAN, with the plan file that it "
    "was started with, shows the timers that it has left here, and why"
)
PLAN_HELPS = "the plan leaves too many: a shorter window, or more partitions"
"""For a topic of a plan for timewheel's clients, which a shadow cannot stand beside."""
FIRST_AID = "now, with no change to any service: a shadow, by a plan of its own"
FOR_GOOD = "in place of a shadow, never beside it, where all services use timewheel's clients: another plan"
MAY_DELAY = DELAYING_TYPES | {"None"}
"""Types that may delay; the broker does not know the type of a partition without a connected consumer."""


def may_need_shadow(gaps: SubscriptionGaps) -> bool:
    """Return whether a subscription is near or past its limit, and delays may be the cause."""
    return (
        gaps.level is not Level.OK
        and gaps.delayed + gaps.unknown > 0
        and all(part.type in MAY_DELAY for part in gaps.parts)
        and not is_own(gaps.topic)
    )


def may_have_shadow(gaps: SubscriptionGaps) -> bool:
    """Return whether a shadow of the subscription's topic would matter."""
    return gaps.level is not Level.OK and not is_own(gaps.topic)


def shadow_helps(topic: str, shadow: str | None = None) -> str:
    """State in a sentence whether a shadow is first aid.

    Args:
        topic: Full name of a whole topic (`timewheel.broker.admin.parts.whole_topic`).
        shadow: Desired state of its shadow; None without a shadow.
    """
    if shadow is not None:
        return BESIDE_SHADOW.format(state=shadow)
    return NO_SHADOW_HELPS if is_lone_partition(topic) else SHADOW_HELPS


def plan_command(file: str, reached_by: Sequence[str] = ()) -> str:
    """Return the command that looks for a change of an SDK's plan that keeps the limit on gaps.

    Args:
        file: The plan file.
        reached_by: Options by which a command connects to the cluster.
    """
    words = ["--broker" if word == "--admin-url" else word for word in admin_options(reached_by)]
    return timewheel_command("plan", "check", file, *words)
