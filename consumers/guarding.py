"""Optional inbox of a consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock
from timewheel.core.plan import Plan
from timewheel.core.rng import Random

if TYPE_CHECKING:
    from timewheel.consumers.inbox.protocol import Inbox
    from timewheel.consumers.inbox_guard import InboxGuard


def guarding(
    inbox: Inbox | None,
    plan: Plan,
    subscription: str,
    *,
    goes_on: Callable[[Exception], bool] | None,
    clock: Clock,
    rng: Random,
    hooks: Hooks,
) -> InboxGuard | None:
    """Return the guard that asks an inbox around each handler of a subscription; None without an inbox.

    Args:
        inbox: The store.
        plan: The consumer's plan.
        subscription: The consumer's subscription.
        goes_on: As for `InboxGuard`.
        clock: As for `InboxGuard`.
        rng: As for `InboxGuard`.
        hooks: As for `InboxGuard`.
    """
    if inbox is None:
        return None
    # Imported here, so that a consumer without an inbox does not pay for the import.
    from timewheel.consumers.inbox.protocol import DEFAULT_KEEP_MS  # noqa: PLC0415
    from timewheel.consumers.inbox_guard import InboxGuard  # noqa: PLC0415

    return InboxGuard(
        inbox,
        plan.due_topic,
        subscription,
        keep_ms=max(DEFAULT_KEEP_MS, 0 if plan.cancel is None else plan.cancel.keep_ms),
        goes_on=goes_on,
        clock=clock,
        rng=rng,
        hooks=hooks,
    )
