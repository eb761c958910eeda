"""First aid against gaps that delays cause: a shadow, which takes what is far from due out of the topic as it comes."""

from __future__ import annotations

from timewheel.admin.stats import DELAYING_TYPES
from timewheel.core.plan import OWN_INFIX
from timewheel.ops.gaps.standing import Level, SubscriptionGaps

__all__ = ["SHADOW_HELPS", "begins_shadow", "may_need_shadow", "shadow_commands"]

SHADOW_HELPS = (
    "first aid: a shadow lifts what is far from due out of the topic, and brings it back in time; no producer and no "
    "consumer has to change"
)
PLAN_FILE = "shadow.toml"
MAY_DELAY = DELAYING_TYPES | {"None"}
"""Of a partition that nobody is connected to, the broker does not know the type."""


def may_need_shadow(gaps: SubscriptionGaps) -> bool:
    """Whether a subscription is near its limit, or past it, and delays may be why."""
    return (
        gaps.level is not Level.OK
        and gaps.delayed > 0
        and all(part.type in MAY_DELAY for part in gaps.parts)
        and not _is_own(gaps.topic)
    )


def begins_shadow(topic: str) -> str:
    """The command that makes a plan for a topic, says what its shadow would do, and moves nothing."""
    return f"timewheel shadow start {topic} -o {PLAN_FILE} --dry-run"


def shadow_commands(topic: str) -> tuple[str, ...]:
    """From that to a shadow that runs; none for topics of timewheel's own."""
    if _is_own(topic):
        return ()
    return begins_shadow(topic), f"timewheel shadow start {PLAN_FILE}", f"timewheel shadow run {PLAN_FILE}"


def _is_own(topic: str) -> bool:
    return OWN_INFIX in topic.rpartition("/")[2]
