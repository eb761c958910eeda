"""Dispatch of events to hooks."""

from __future__ import annotations

from timewheel.events import HookFailed
from timewheel.hooks import Event, Hook, log_event

__all__ = ["Hooks"]


class Hooks:
    """Calls every hook with an event. A hook that raises is logged, and stops nothing.

    Args:
        hooks: Hooks to call; None: only `log_event`.
    """

    __slots__ = ("_hooks",)

    def __init__(self, hooks: tuple[Hook, ...] | None = None) -> None:
        self._hooks = (log_event,) if hooks is None else hooks

    def emit(self, event: Event) -> None:
        """Call every hook with an event."""
        for hook in self._hooks:
            try:
                hook(event)
            except Exception as error:  # noqa: BLE001 - a user's hook must not stop a relay
                log_event(HookFailed(hook=repr(hook), error=repr(error)))
