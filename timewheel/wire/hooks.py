"""What happened, for logs and metrics: one `Event` value to every hook, never once per message on the happy path.

The default hook writes structlog events; a metrics hook counts by `Event.name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Event", "Hook", "Hooks", "log_event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that an operator wants counted or read.

    Args:
        name: Short and stable, words joined by underscores: ``relay_partition_stopped``.
        level: ``"info"``, ``"warning"`` or ``"error"``.
        fields: Facts, with units in their names.
    """

    name: str
    level: str = "info"
    fields: Mapping[str, object] = field(default_factory=dict)


Hook = Callable[[Event], None]


def log_event(event: Event) -> None:
    """Write an event with structlog."""
    import structlog  # noqa: PLC0415 - it loads rich where that is installed, which no SDK import should cost

    getattr(structlog.get_logger("timewheel"), event.level)(event.name, **event.fields)


class Hooks:
    """Calls every hook with an event; a hook that raises is reported once per call and stops nothing.

    Args:
        hooks: None: only `log_event`.
    """

    __slots__ = ("_hooks",)

    def __init__(self, hooks: tuple[Hook, ...] | None = None) -> None:
        self._hooks = (log_event,) if hooks is None else hooks

    def emit(self, name: str, level: str = "info", **fields: object) -> None:
        """Make an event and hand it to every hook."""
        event = Event(name=name, level=level, fields=fields)
        for hook in self._hooks:
            try:
                hook(event)
            except Exception as error:  # noqa: BLE001 - a user's hook must not stop a relay
                log_event(Event(name="hook_failed", level="error", fields={"hook": repr(hook), "error": repr(error)}))
