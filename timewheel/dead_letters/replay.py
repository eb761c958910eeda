"""Decide the destination of a replayed dead letter: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from timewheel.client.dead_letters import DEAD_ENCRYPTION, DEAD_PART, DEAD_PREFIX
from timewheel.client.parked import PARKED_PART
from timewheel.core.durations import spelled
from timewheel.core.envelope import (
    FIRST_LIFE,
    ID_PROPERTY,
    MAX_GENERATION,
    MAX_TIMER_ID_CHARS,
    PREFIX,
    Envelope,
    Life,
    due_in,
)
from timewheel.core.names import partition_for_key, partition_of
from timewheel.core.plan import beyond
from timewheel.core.routing import Router
from timewheel.dead_letters.dead_letters import DeadLetter


class ReplayTarget(NamedTuple):
    """Destination of a replayed dead letter.

    Args:
        topic: Full name of the partition, or of a due topic that is not partitioned.
        deliver_at_ms: Delivery time to request from the broker, UTC milliseconds; 0 for at once.
        envelope: The new envelope; None for a dead letter without an id, which is sent unchanged and handled at once.
    """

    topic: str
    deliver_at_ms: int
    envelope: Envelope | None

    def properties(self, had: Mapping[str, str]) -> dict[str, str]:
        """Return the new properties: those of the sender, and the envelope."""
        kept = {name: value for name, value in had.items() if not name.startswith((PREFIX, DEAD_PREFIX))}
        return kept if self.envelope is None else {**kept, **self.envelope.properties()}


class Refused(NamedTuple):
    """The dead letter cannot be replayed this way; the reason is a sentence."""

    reason: str


def again(router: Router, dead_letter: DeadLetter, now_ms: int, *, due_now: bool = False) -> ReplayTarget | Refused:
    """Route a dead letter to where a producer would send it now, under its own id and due time.

    The dead letter keeps its partition, its generation and its group, so that handlers treat it as the same timer. Its
    hops are counted from 0, since too many hops may be the reason why it is dead.

    Args:
        router: Router of the plan.
        dead_letter: The dead letter.
        now_ms: Present time, UTC milliseconds.
        due_now: Make it due now instead of at its due time; required if its due time cannot be read.
    """
    envelope, plan = dead_letter.envelope, router.plan
    if (why := _why_not_whole(dead_letter)) is not None:
        return Refused(why)
    # A message that another client sent to the intake has no envelope, but a due time.
    own_ms = due_in(dead_letter.properties) if envelope is None else envelope.due_ms
    due_ms = now_ms if due_now else own_ms
    if due_ms is None:
        return Refused("it has no due time that can be read: --now sends it to be handled at once")
    if due_ms - now_ms > plan.max_delay_ms:
        delay_ms = due_ms - now_ms
        return Refused(
            f"it is due in {spelled(delay_ms)}, {beyond(delay_ms, plan)}; or --now sends it to be handled at once"
        )
    generation, life = (0, FIRST_LIFE) if envelope is None else (envelope.generation, envelope.life)
    if life.only_for and not router.has_retries(life.only_for):
        return Refused(f"it is a retry of {life.only_for}, which has no retry topic in this plan")
    route = router.route(due_ms, now_ms, life.only_for)
    timer_id = dead_letter.properties.get(ID_PROPERTY) or ""
    if not timer_id and due_ms > now_ms:
        # By its place: a replay that is made again after a crash sends a copy of the same timer.
        timer_id = f"{dead_letter.topic}:{dead_letter.place}"[-MAX_TIMER_ID_CHARS:]
    fresh = (
        Envelope(timer_id, due_ms, now_ms, generation, 0, plan.revision, life)
        if timer_id and len(timer_id) <= MAX_TIMER_ID_CHARS
        else None
    )
    return ReplayTarget(_part(router, route.topic, dead_letter), route.deliver_at_ms, fresh)


def handled_again(
    router: Router, dead_letter: DeadLetter, subscription: str, due_ms: int, now_ms: int, stamp: int
) -> ReplayTarget | Refused:
    """Route a parked timer to the subscription that parked it, and to no other, as a first attempt.

    The timer gets a new generation, so that consumers that remember parking it treat it as a different timer. Earlier
    cancellations do not stop it: an operator wants it handled.

    Args:
        router: Router of the plan.
        dead_letter: The parked timer.
        subscription: Subscription that parked it.
        due_ms: Due time, UTC milliseconds.
        now_ms: Present time, UTC milliseconds.
        stamp: A new stamp (`timewheel.core.cancellations.Stamps`), above the dead letter's generation.
    """
    envelope, plan = dead_letter.envelope, router.plan
    if (why := _why_not_whole(dead_letter)) is not None:
        return Refused(why)
    if envelope is None:
        return Refused("it has no envelope that can be read: publish it again from its source")
    if envelope.generation == MAX_GENERATION:
        return Refused("its generation is the highest possible, which no producer writes: publish it again")
    if not router.has_retries(subscription):
        return Refused(f"{subscription} has no retry topic in this plan: write retry = true in it")
    life = Life(group=envelope.life.group, group_stamp=stamp if envelope.life.group else 0, only_for=subscription)
    fresh = Envelope(envelope.timer_id, due_ms, now_ms, stamp, 0, plan.revision, life)
    route = router.route(due_ms, now_ms, subscription)
    return ReplayTarget(_part(router, route.topic, dead_letter), route.deliver_at_ms, fresh)


def _why_not_whole(dead_letter: DeadLetter) -> str | None:
    """Return the reason why a dead letter differs from the message that was sent; None if it does not."""
    properties = dead_letter.properties
    if (part := properties.get(DEAD_PART) or properties.get(PARKED_PART)) is not None:
        return f"it has {part} of what was sent: join all parts, or ask its sender, and send it again"
    if DEAD_ENCRYPTION in properties:
        return f"it is encrypted: decrypt it ({DEAD_ENCRYPTION} says how), and send it again"
    return None


def _part(router: Router, topic: str, dead_letter: DeadLetter) -> str:
    """Return the partition with the dead letter's former number, so that its key stays in place."""
    had, partitions = partition_of(dead_letter.source)[1], router.plan.own_partitions
    return router.names.part(
        topic, had if 0 <= had < partitions else partition_for_key(dead_letter.key or "", partitions)
    )
