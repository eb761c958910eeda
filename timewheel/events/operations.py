"""Of commands, and of hooks themselves."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Event

__all__ = [
    "BrokerConfigurationDenied",
    "HookFailed",
    "RelayProcessEnded",
]


@event(
    "broker_configuration_denied",
    "warning",
    means="The role may not read the broker's settings, so those of its version are assumed.",
    do="Give the command a superuser's token, or check the limits by hand.",
)
class BrokerConfigurationDenied(Event):
    endpoint: str
    reason: str
    consequence: str


@event(
    "hook_failed",
    "error",
    means="A hook raised; the event that it was told of went to the other hooks.",
    do="Repair the hook.",
)
class HookFailed(Event):
    hook: str
    error: str


@event(
    "relay_process_ended",
    "error",
    means="One of several relay processes (`--processes`) has ended by itself; it is started again after a pause.",
    do="See why in the log before it. The others go on, and take over its partitions meanwhile.",
)
class RelayProcessEnded(Event):
    relay_id: str
    exit_code: int
    again_in_ms: int
