"""Operations: the admin client, provisioning, and the life of calendar topics."""

from timewheel.ops.admin import AdminClient
from timewheel.ops.calendar_life import CalendarKeeper, roll
from timewheel.ops.former import FormerTopics
from timewheel.ops.provision import ensure

__all__ = ["AdminClient", "CalendarKeeper", "FormerTopics", "ensure", "roll"]
