"""Dispatch of events to hooks."""

from __future__ import annotations

from collections.abc import Sequence

from timewheel.core.errors import BadArgument
from timewheel.events import HookFailed
from timewheel.hooks import Event, Hook, log_event


class Hooks:
    """Calls every hook with an event. A hook that raises is logged, and stops nothing.

    Args:
        hooks: Hooks to call; None: only `log_event`.

    Raises:
        BadArgument: The hooks are no sequence of functions.
    """

    __slots__ = ("_hooks",)

    def __init__(self, hooks: tuple[Hook, ...] | None = None) -> None:
        given: object = hooks
        if given is not None and not (isinstance(given, Sequence) and all(map(callable, given))):
            raise BadArgument("hooks", hooks, "a tuple of functions is needed, such as hooks=(my_hook,)")
        self._hooks = (log_event,) if hooks is None else hooks

    def emit(self, event: Event) -> None:
        """Call every hook with an event."""
        for hook in self._hooks:
            try:
                hook(event)
            except Exception as error:  # noqa: BLE001 - a user's hook must not stop a relay
                log_event(HookFailed(hook=repr(hook), error=repr(error)))
