"""Next step after the outcome of an attempt: success, another topic, or an error. Pure; shared by both producers."""

from __future__ import annotations

from timewheel.client.results import Outcome
from timewheel.core.errors import PayloadTooLarge, SendFailed, SendOutcomeUnknown, TimewheelError
from timewheel.core.routing import Router
from timewheel.producers.sending.outgoing import Outgoing

MAX_ATTEMPTS = 4
"""Limit on sends of a timer on changing routes. A calendar's route changes once per interval, a slot's once: more than
two sends happen only if intervals are shorter than sends."""


def send_outcome(
    router: Router, outgoing: Outgoing, outcome: Outcome, cause: str, now_ms: int, *, attempts: int, stored: bool
) -> Outgoing | TimewheelError | None:
    """Decide the next step when the outcome of an attempt is known.

    Args:
        router: The plan's router.
        outgoing: The message that was sent.
        outcome: Outcome of the attempt.
        cause: The client's description of the outcome.
        now_ms: UTC milliseconds.
        attempts: Number of attempts for this timer, including this attempt.
        stored: True if an earlier attempt was confirmed, in a slot that had been swept, or may have been.

    Returns:
        None: the timer is stored in the right topic. An Outgoing: send this message as well, under the same timer id.
        An error: report it to the caller.
    """
    plan = router.plan
    if outcome is Outcome.OK:
        if not outgoing.release_at_ms or now_ms < outgoing.release_at_ms - plan.skew_ms:
            return None
        # The slot may have been swept before the message was in it, and is swept again only a slot later: a second
        # copy goes to the due topic, and consumers drop the copy that comes second (broker-facts: slot-sweep). The
        # relay sweeps by its own clock, which may be ahead of this machine's.
        return outgoing.sent_to(router.to_due(outgoing.due_ms, now_ms), now_ms, plan.revision)
    if attempts < MAX_ATTEMPTS:
        if outcome in (Outcome.REOPEN, Outcome.DROPPED):
            return outgoing
        if outcome is Outcome.ROUTE_AGAIN:
            # Never the same topic again: it is terminated, or would be created without policies and subscriptions
            # (broker-facts: removing-a-topic).
            route = router.route(outgoing.due_ms, now_ms)
            if route.topic != outgoing.topic:
                return outgoing.sent_to(route, now_ms, plan.revision)
    topic = router.names.part(outgoing.topic, outgoing.partition)
    if stored or outcome in (Outcome.UNKNOWN, Outcome.DROPPED):
        # A copy in a swept slot arrives, though late: the error must not be "not stored".
        return SendOutcomeUnknown(outgoing.timer_id, topic, cause)
    if outcome is Outcome.TOO_LARGE:
        return PayloadTooLarge(outgoing.size_bytes(), None)
    return SendFailed(outgoing.timer_id, topic, cause)
