"""The commands that start a shadow of a topic, for errors and findings."""

from __future__ import annotations

from collections.abc import Sequence

from timewheel.core.escapes import timewheel_command
from timewheel.core.names import partition_of
from timewheel.core.plan import OWN_INFIX

PLAN_FILE = "shadow.toml"


def shadow_commands(topic: str, shadow: str | None = None, reached_by: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the commands from a plan, made without moving any timer, to a running shadow.

    Empty if no shadow is possible, as for timewheel's own topics, or if the topic has a shadow already: the name of its
    plan file is unknown.
    """
    if shadow is not None or is_own(topic) or is_lone_partition(topic):
        return ()
    return (
        timewheel_command("shadow", "start", topic, "-o", PLAN_FILE, "--dry-run", *reached_by),
        timewheel_command("shadow", "start", PLAN_FILE, *reached_by),
        timewheel_command("shadow", "run", PLAN_FILE, *reached_by),
    )


def is_lone_partition(topic: str) -> bool:
    """Return whether a whole topic has the name of a partition: neither a plan nor a shadow is possible for it."""
    return partition_of(topic)[1] >= 0


def is_own(topic: str) -> bool:
    """Return whether a topic is timewheel's own."""
    return OWN_INFIX in topic.rpartition("/")[2]
