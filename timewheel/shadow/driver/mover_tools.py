"""The objects that the movers of a shadow share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.protocol.dialing import Dialer
from timewheel.client.hooks import Hooks
from timewheel.client.positions import EntryPosition
from timewheel.core.clock import Clock
from timewheel.core.plan import Plan
from timewheel.core.rng import Random
from timewheel.shadow.driver.inspector import TopicInspector
from timewheel.shadow.machine.journal import HOLD_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverTools:
    """The objects that all movers of a shadow share.

    Args:
        client: The user's `pulsar.Client`.
        dialer: Dialer of the binary protocol.
        admin: Admin client of any broker.
        plan: A plan with an intake.
        inspector: Knows the desired state and the subscriptions.
        clock: Time.
        rng: For pauses.
        hooks: Receive events.
        hold_ms: How long the journal keeps a copy after every subscription has passed its original.
        acked_to: Returns the copy of a journal's partition up to which the originals are acknowledged, as far as this
            process knows, or None: another process may relay the partition.
    """

    client: Any
    dialer: Dialer
    admin: AdminClient
    plan: Plan
    inspector: TopicInspector
    clock: Clock
    rng: Random
    hooks: Hooks
    hold_ms: int = HOLD_MS
    acked_to: Callable[[int], EntryPosition | None] = lambda _: None
