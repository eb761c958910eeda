"""Operations: provisioning, topics of earlier plans, life cycle of calendar topics, and inspection of live topics."""

from timewheel.ops.calendar_life import CalendarRoller, roll
from timewheel.ops.former_removal import Removal, RemovalStage, remove_drained
from timewheel.ops.former_topics import FormerTopics
from timewheel.ops.provision import ensure

__all__ = ["CalendarRoller", "FormerTopics", "Removal", "RemovalStage", "ensure", "remove_drained", "roll"]
