"""What follows from the outcome of one attempt: nothing, another topic, or an error. Pure; both producers use it."""

from __future__ import annotations

from timewheel.core.errors import PayloadTooLarge, SendFailed, SendOutcomeUnknown, TimewheelError
from timewheel.core.routing import Router
from timewheel.producers.sending.outgoing import Outgoing
from timewheel.wire.results import Outcome

__all__ = ["MAX_ATTEMPTS", "afterwards"]

MAX_ATTEMPTS = 4
"""Sends of one timer on changing routes. A calendar's route changes once per interval, a slot's once: more than two
happen only where intervals are shorter than sends."""


def afterwards(
    router: Router, outgoing: Outgoing, outcome: Outcome, cause: str, now_ms: int, *, attempts: int, stored: bool
) -> Outgoing | TimewheelError | None:
    """Decide what to do when the outcome of an attempt is known.

    Args:
        router: The plan's.
        outgoing: What was sent.
        outcome: What became of it.
        cause: The client's words for it.
        now_ms: UTC milliseconds.
        attempts: How many were made for this timer, this one included.
        stored: Whether an earlier attempt was confirmed, in a slot that had been swept, or may have been.

    Returns:
        None: stored where it belongs. An Outgoing: send this as well, under the same timer id. An error: tell the
        caller.
    """
    plan = router.plan
    if outcome is Outcome.OK:
        if not outgoing.release_at_ms or now_ms < outgoing.release_at_ms - plan.skew_ms:
            return None
        # Its slot may have been swept before the message was in it, and is swept again a slot later only: a second
        # copy goes to the due topic, and consumers drop whichever comes second (broker-facts: slot-sweep). The relay
        # sweeps by its own clock, which may be ahead of ours.
        return outgoing.sent_to(router.to_due(outgoing.due_ms, now_ms), now_ms, plan.revision)
    if attempts < MAX_ATTEMPTS:
        if outcome in (Outcome.REOPEN, Outcome.DROPPED):
            return outgoing
        if outcome is Outcome.ROUTE_AGAIN:
            # Never the same topic again: it is terminated, or would be created bare (broker-facts: removing-a-topic).
            route = router.route(outgoing.due_ms, now_ms)
            if route.topic != outgoing.topic:
                return outgoing.sent_to(route, now_ms, plan.revision)
    topic = router.names.part(outgoing.topic, outgoing.partition)
    if stored or outcome in (Outcome.UNKNOWN, Outcome.DROPPED):
        # A copy that is stored in a swept slot arrives, though late: it must not be called "not stored".
        return SendOutcomeUnknown(outgoing.timer_id, topic, cause)
    if outcome is Outcome.TOO_LARGE:
        return PayloadTooLarge(outgoing.size_bytes(), None)
    return SendFailed(outgoing.timer_id, topic, cause)
