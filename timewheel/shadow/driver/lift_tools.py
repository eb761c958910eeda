"""What the lifters of one shadow share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timewheel.admin.client import AdminClient
from timewheel.binary_protocol.dialing import Dialer
from timewheel.core.chance import Chance
from timewheel.core.clock import Clock
from timewheel.core.plan import Plan
from timewheel.shadow.driver.looking import Looker
from timewheel.shadow.machine.journal import HOLD_MS
from timewheel.wire.hooks import Hooks
from timewheel.wire.positions import EntryPosition

__all__ = ["LiftTools"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftTools:
    """What all lifters of a shadow share.

    Args:
        client: The user's `pulsar.Client`.
        dialer: Of the binary protocol.
        admin: Of any broker.
        plan: Has an intake.
        looker: Knows the wish and the subscriptions.
        clock: Time.
        chance: For pauses.
        hooks: Whom to tell.
        hold_ms: For how long the journal keeps what every subscription has passed.
        struck_to: Up to which copy of a journal's partition the originals are acknowledged, as far as this process
            knows: another one may relay it. None: it does not know.
    """

    client: Any
    dialer: Dialer
    admin: AdminClient
    plan: Plan
    looker: Looker
    clock: Clock
    chance: Chance
    hooks: Hooks
    hold_ms: int = HOLD_MS
    struck_to: Callable[[int], EntryPosition | None] = lambda _: None
