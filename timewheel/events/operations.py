"""Events about commands, tokens, and hooks themselves."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Event

__all__ = [
    "BrokerConfigurationDenied",
    "HookFailed",
    "LookFailed",
    "RelayProcessEnded",
    "SecretFileOpen",
    "TokenExpired",
    "TokenUnreadable",
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
    "secret_file_open",
    "warning",
    means="Others can read a file with a secret: of a token or a key, or a connection's file that holds one itself.",
    do="`chmod 600` it, and renew the secret if others may have read it.",
)
class SecretFileOpen(Event):
    path: str


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
    "look_failed",
    "warning",
    means="The exporter could not look at all; what it saw before is told on, with its time.",
    do="See the error. While it keeps on, its metrics are old.",
)
class LookFailed(Event):
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


@event(
    "token_expired",
    "error",
    means="The client shows a token that has expired, by this machine's clock. The broker drops it without a reason, "
    "and the client tries again for ever; told once per token.",
    do="Renew the token in its file: the client reads it again at its next try and goes on, with nothing lost. A token "
    "that was given as text needs a restart.",
)
class TokenExpired(Event):
    source: str
    expired_at_ms: int


@event(
    "token_unreadable",
    "warning",
    means="The token could not be read when the client asked for it; it shows the one that was read before.",
    do="See that the file is there. Renew it by a rename, so that it is never half written.",
)
class TokenUnreadable(Event):
    source: str
    reason: str
