"""Operations: provisioning, topics of earlier plans, life cycle of calendar topics, and inspection of live topics."""

from timewheel.provision.calendar_life import CalendarRoller, roll
from timewheel.provision.former_topics import FormerTopics, Removal, RemovalStage, remove_drained
from timewheel.provision.provisioning import ensure

__all__ = ["CalendarRoller", "FormerTopics", "Removal", "RemovalStage", "ensure", "remove_drained", "roll"]
