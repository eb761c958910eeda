"""Where a letter goes when it is sent again: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from timewheel.core.envelope import FIRST_LIFE, ID_PROPERTY, MAX_GENERATION, MAX_TIMER_ID_CHARS, PREFIX, Envelope, Life
from timewheel.core.keys import partition_for_key
from timewheel.core.names import partition_of
from timewheel.core.routing import Router
from timewheel.ops.letters.letters import Letter
from timewheel.wire.dead_letters import DEAD_ENCRYPTION, DEAD_PART, DEAD_PREFIX
from timewheel.wire.parked import PARKED_PART

__all__ = ["Again", "Refused", "again", "handled_again"]


class Again(NamedTuple):
    """Publish it there.

    Args:
        topic: Full name of the partition, or of a due topic that is not partitioned.
        deliver_at_ms: What to ask the broker for, UTC milliseconds; 0: at once.
        envelope: Its new one; None: it has no id, so it goes as it is, and is handled at once.
    """

    topic: str
    deliver_at_ms: int
    envelope: Envelope | None

    def properties(self, had: Mapping[str, str]) -> dict[str, str]:
        """Its new properties: the caller's own, and the envelope."""
        kept = {name: value for name, value in had.items() if not name.startswith((PREFIX, DEAD_PREFIX))}
        return kept if self.envelope is None else {**kept, **self.envelope.properties()}


class Refused(NamedTuple):
    """It cannot be sent again so, with the reason as a sentence."""

    reason: str


def again(router: Router, letter: Letter, now_ms: int, *, due_now: bool = False) -> Again | Refused:
    """Decide where a dead letter goes: where a producer would send it now, under its own id and due time.

    Its partition stays, its generation and its group, so that handlers take it for the same timer; hops are counted
    from 0, since too many of them may be what it died of.

    Args:
        router: The plan's.
        letter: The dead letter.
        now_ms: UTC milliseconds.
        due_now: It is due now, whatever it says; needed where it says nothing that can be read.
    """
    envelope, plan = letter.envelope, router.plan
    if (why := _why_not_whole(letter)) is not None:
        return Refused(why)
    if envelope is None and not due_now:
        return Refused("it has no due time that can be read: --now sends it to be handled at once")
    due_ms = now_ms if due_now or envelope is None else envelope.due_ms
    if due_ms - now_ms > plan.max_delay_ms:
        return Refused("it is due beyond the plan's max_delay: --now sends it to be handled at once")
    generation, life = (0, FIRST_LIFE) if envelope is None else (envelope.generation, envelope.life)
    if life.only_for and not router.has_retries(life.only_for):
        return Refused(f"it is to be tried again by {life.only_for}, which has no topic for that in this plan")
    route = router.route(due_ms, now_ms, life.only_for)
    timer_id = letter.properties.get(ID_PROPERTY) or ""
    fresh = (
        Envelope(timer_id, due_ms, now_ms, generation, 0, plan.revision, life)
        if timer_id and len(timer_id) <= MAX_TIMER_ID_CHARS
        else None
    )
    return Again(_part(router, route.topic, letter), route.deliver_at_ms, fresh)


def handled_again(
    router: Router, letter: Letter, subscription: str, due_ms: int, now_ms: int, stamp: int
) -> Again | Refused:
    """Decide where a parked letter goes: to the subscription that parked it, and to no other, as a first attempt.

    It gets a new generation, so that whoever remembers that it went here takes it for another; and what was cancelled
    before this moment does not stop it: somebody wants it handled.

    Args:
        router: The plan's.
        letter: The parked letter.
        subscription: Whose it is.
        due_ms: When it is to be handled, UTC milliseconds.
        now_ms: UTC milliseconds.
        stamp: A new one (`timewheel.core.cut_offs.Stamps`), above the letter's generation.
    """
    envelope, plan = letter.envelope, router.plan
    if (why := _why_not_whole(letter)) is not None:
        return Refused(why)
    if envelope is None:
        return Refused("it has no envelope that can be read: publish it anew from where it comes from")
    if envelope.generation == MAX_GENERATION:
        return Refused("its generation is the highest there is, which no producer writes: publish it anew")
    if not router.has_retries(subscription):
        return Refused(f"{subscription} has no topic for what it tries again in this plan: write retry = true in it")
    life = Life(group=envelope.life.group, group_stamp=stamp if envelope.life.group else 0, only_for=subscription)
    fresh = Envelope(envelope.timer_id, due_ms, now_ms, stamp, 0, plan.revision, life)
    route = router.route(due_ms, now_ms, subscription)
    return Again(_part(router, route.topic, letter), route.deliver_at_ms, fresh)


def _why_not_whole(letter: Letter) -> str | None:
    """Why a letter is not the message that was sent; None: it is."""
    properties = letter.properties
    if (part := properties.get(DEAD_PART) or properties.get(PARKED_PART)) is not None:
        return f"it has {part} of what was sent: put all parts together, or ask its sender, and send it anew"
    if DEAD_ENCRYPTION in properties:
        return f"it is encrypted: decrypt it ({DEAD_ENCRYPTION} says how), and send it anew"
    return None


def _part(router: Router, topic: str, letter: Letter) -> str:
    """Of the partitions of a topic the one that the letter had, so that its key stays there."""
    had, partitions = partition_of(letter.source)[1], router.plan.own_partitions
    return router.names.part(topic, had if 0 <= had < partitions else partition_for_key(letter.key or "", partitions))
