"""First aid against gaps that delays cause: a shadow, which takes what is far from due out of the topic as it comes."""

from __future__ import annotations

from collections.abc import Sequence

from timewheel.admin.stats import DELAYING_TYPES
from timewheel.core.escapes import timewheel_command
from timewheel.core.names import partition_of
from timewheel.core.plan import OWN_INFIX
from timewheel.ops.gaps.standing import Level, SubscriptionGaps

__all__ = [
    "FIRST_AID",
    "FOR_GOOD",
    "is_lone_partition",
    "is_own",
    "may_have_shadow",
    "may_need_shadow",
    "shadow_commands",
    "shadow_helps",
]

SHADOW_HELPS = (
    "first aid: a shadow lifts what is far from due out of the topic, and brings it back in time; no producer and no "
    "consumer has to change"
)
NO_SHADOW_HELPS = (
    "no shadow helps, and no plan can name the topic: it is called as a partition is, and there is no partitioned "
    "topic of that name; send to another topic"
)
BESIDE_SHADOW = (
    "the topic has its first aid already, a shadow ({state}): timewheel shadow status PLAN, with the plan file that it "
    "was started with, shows what it has left here, and why"
)
FIRST_AID = "now, with no change to any service: a shadow, by a plan of its own"
FOR_GOOD = "in place of a shadow, never beside it, where all services use timewheel's clients: another plan"
PLAN_FILE = "shadow.toml"
MAY_DELAY = DELAYING_TYPES | {"None"}
"""Of a partition that nobody is connected to, the broker does not know the type."""


def may_need_shadow(gaps: SubscriptionGaps) -> bool:
    """Whether a subscription is near its limit, or past it, and delays may be why."""
    return (
        gaps.level is not Level.OK
        and gaps.delayed + gaps.unknown > 0
        and all(part.type in MAY_DELAY for part in gaps.parts)
        and not is_own(gaps.topic)
    )


def may_have_shadow(gaps: SubscriptionGaps) -> bool:
    """Whether it matters if the topic of a subscription has a shadow."""
    return gaps.level is not Level.OK and not is_own(gaps.topic)


def shadow_helps(topic: str, shadow: str | None = None) -> str:
    """Whether a shadow is first aid, as a sentence.

    Args:
        topic: Full name of a whole topic (`timewheel.ops.parts.whole_topic`).
        shadow: The desired state of its shadow; None: it has none.
    """
    if shadow is not None:
        return BESIDE_SHADOW.format(state=shadow)
    return NO_SHADOW_HELPS if is_lone_partition(topic) else SHADOW_HELPS


def shadow_commands(topic: str, shadow: str | None = None, reached_by: Sequence[str] = ()) -> tuple[str, ...]:
    """From a plan, made without moving anything, to a shadow that runs; none where there can be none, as of topics of
    timewheel's own, or where one is there: nobody knows the name of its plan's file.

    Args:
        topic: Full name of a whole topic.
        shadow: The desired state of its shadow; None: it has none.
        reached_by: Options by which a command reaches the cluster.
    """
    if shadow is not None or is_own(topic) or is_lone_partition(topic):
        return ()
    return (
        timewheel_command("shadow", "start", topic, "-o", PLAN_FILE, "--dry-run", *reached_by),
        timewheel_command("shadow", "start", PLAN_FILE, *reached_by),
        timewheel_command("shadow", "run", PLAN_FILE, *reached_by),
    )


def is_lone_partition(topic: str) -> bool:
    """Whether a whole topic has the name of a partition: neither a plan nor a shadow can be for it."""
    return partition_of(topic)[1] >= 0


def is_own(topic: str) -> bool:
    """Whether a topic is timewheel's own."""
    return OWN_INFIX in topic.rpartition("/")[2]
