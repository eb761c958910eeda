"""Events about commands, tokens, and hooks themselves."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Event


@event(
    "broker_configuration_denied",
    "warning",
    means="The role may not read the broker's settings; the defaults of its version are assumed.",
    do="Use a superuser's token, or check the limits by hand.",
)
class BrokerConfigurationDenied(Event):
    endpoint: str
    reason: str
    consequence: str


@event(
    "secret_file_open",
    "warning",
    means="Others can read a file with a token, a key, or a connection that holds a secret.",
    do="`chmod 600` it, and renew the secret if others may have read it.",
)
class SecretFileOpen(Event):
    path: str


@event(
    "hook_failed",
    "error",
    means="A hook raised; the other hooks got its event.",
    do="Repair the hook.",
)
class HookFailed(Event):
    hook: str
    error: str


@event(
    "snapshot_failed",
    "warning",
    means="The exporter could not look at all; it exports the last snapshot, with its time.",
    do="See the error.",
)
class SnapshotFailed(Event):
    error: str


@event(
    "relay_process_ended",
    "error",
    means="A relay process of `--processes` ended by itself; it is started again after a pause, and others take over "
    "its partitions.",
    do="See why in the log before it.",
)
class RelayProcessEnded(Event):
    relay_id: str
    exit_code: int
    again_in_ms: int


@event(
    "token_expired",
    "error",
    means="The client shows a token that has expired by this machine's clock. The broker drops it silently, and the "
    "client tries for ever. Once per token.",
    do="Renew the token in its file: the client reads it again, and nothing is lost. A token given as text needs a "
    "restart.",
)
class TokenExpired(Event):
    source: str
    expired_at_ms: int


@event(
    "token_unreadable",
    "warning",
    means="The token could not be read when the client asked for it; the client shows the last one.",
    do="See that the file is there. Renew it by a rename, so that it is never half written.",
)
class TokenUnreadable(Event):
    source: str
    reason: str
