"""Readings of messages: a timer, or the reason why it is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from timewheel.core.durations import MINUTE_MS, spelled
from timewheel.core.envelope import (
    DUE_PROPERTY,
    FOR_PROPERTY,
    FROM_PROPERTY,
    GROUP_PROPERTY,
    ID_PROPERTY,
    MAX_TIMER_ID_CHARS,
    PROBE_PROPERTY,
    TIMER_PROPERTY,
    Envelope,
    read_due,
)
from timewheel.core.errors import EnvelopeError
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.plan import Plan, beyond


class Unreadable(NamedTuple):
    """A message that this relay can neither read nor carry."""

    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A relay's own message at a topic's end: once received, so are all before it (broker-facts: empty-needs-proof)."""


PROBE = Probe()


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A message of an entry that is set aside as a whole; the entry's last message stands for all of them."""


PASSED_OVER = PassedOver()

Reading = Envelope | EnvelopeError | Unreadable | Probe | PassedOver | None
"""The reading of a message's properties; None if they contain no envelope."""


FOREIGN = "no envelope: a foreign producer's message"


def why_dead(reading: Reading) -> str:
    """Return why a message that is no timer goes to the dead-letter topic, as a sentence."""
    if isinstance(reading, Unreadable):
        return reading.reason
    return str(reading) if isinstance(reading, EnvelopeError) else FOREIGN


def of_large_batch(batch_index: int, batch_size: int) -> Unreadable | PassedOver | None:
    """Return the reading of a message in an oversized batch, whatever its content; None if the content decides."""
    if batch_size <= LARGEST_BATCH:
        return None
    if batch_index < batch_size - 1:
        return PASSED_OVER
    return Unreadable(
        f"a batch of {batch_size} messages, set aside as a whole: a relay takes {LARGEST_BATCH} in one entry at most; "
        "let its producer put fewer into a batch (batchingMaxMessages), and send those timers again"
    )


def parsed(properties: dict[str, str]) -> Reading:
    """Return a message's envelope, or its error as a value."""
    try:
        envelope = Envelope.read(properties)
    except EnvelopeError as error:
        return error
    return PROBE if envelope is None and PROBE_PROPERTY in properties else envelope


ENTERED_SLACK_MS = 5 * MINUTE_MS
"""How far the "entered" time of an envelope may be from its publish: a publish that waited, a clock that differs."""


def taken_in(properties: dict[str, str], publish_ms: int, own_id: str, plan: Plan) -> Reading:
    """Read a message of the intake: a timer whose way has not begun, or the reason why it is none.

    An SDK puts a complete envelope there. Any other client states only the due time (``tw-due``), and the relay makes
    the envelope from data that the broker has stored: so a replay after a crash gives the same envelope.

    Args:
        properties: Its properties. For a timer they are changed to those of its next hop: with `ID_PROPERTY` and
            `TIMER_PROPERTY`, and without those for the intake only. For all other messages they stay unchanged.
        publish_ms: Its publish time as stored by the broker, UTC milliseconds: the time at which the timer entered.
        own_id: The timer id for a message without an id: its position. If it is too long, the end of it is used.
        plan: Bounds the delay.
    """
    if TIMER_PROPERTY in properties:
        return _written(properties, publish_ms, plan)
    due = properties.get(DUE_PROPERTY)
    if due is None:
        if PROBE_PROPERTY in properties:
            return PROBE
        problem = f"neither {DUE_PROPERTY} (UTC milliseconds) nor {TIMER_PROPERTY}"
        return EnvelopeError(f"a message in the intake has no due time: {problem}", properties.get(ID_PROPERTY))
    try:
        due_ms = read_due(due)
    except EnvelopeError as error:
        return error
    if due_ms - publish_ms > plan.max_delay_ms:
        return _beyond(f"{DUE_PROPERTY} is", due_ms - publish_ms, plan, due)
    # The end distinguishes positions; a topic's name may be longer than an id.
    timer_id = properties.get(ID_PROPERTY) or own_id[-MAX_TIMER_ID_CHARS:]
    if len(timer_id) > MAX_TIMER_ID_CHARS:
        return EnvelopeError(f"{ID_PROPERTY} is longer than {MAX_TIMER_ID_CHARS} characters", timer_id)
    if GROUP_PROPERTY in properties or FOR_PROPERTY in properties:
        # Without an envelope they would have no effect, and a group's cancel would miss this timer.
        return EnvelopeError(f"{GROUP_PROPERTY} and {FOR_PROPERTY} need {TIMER_PROPERTY}; {DUE_PROPERTY} has no groups")
    del properties[DUE_PROPERTY]
    properties.pop(FROM_PROPERTY, None)
    properties.update(Envelope.first_properties(timer_id, due_ms, publish_ms, plan.revision))
    return Envelope(timer_id, due_ms, publish_ms, revision=plan.revision)


def _written(properties: dict[str, str], publish_ms: int, plan: Plan) -> Reading:
    """Read a message with an envelope; as in `taken_in`."""
    envelope = parsed(properties)
    if not isinstance(envelope, Envelope):
        return envelope
    if envelope.due_ms - publish_ms > plan.max_delay_ms:
        line = properties[TIMER_PROPERTY]
        return _beyond(f"{TIMER_PROPERTY} is due", envelope.due_ms - publish_ms, plan, line)
    properties.pop(DUE_PROPERTY, None)
    properties.pop(FROM_PROPERTY, None)
    if abs(envelope.entered_ms - publish_ms) > ENTERED_SLACK_MS:
        # It entered with its publish, whatever its envelope states (broker-facts: entered-long-ago).
        envelope = envelope._replace(entered_ms=publish_ms)
        properties[TIMER_PROPERTY] = envelope.line()
    return envelope


def _beyond(which: str, delay_ms: int, plan: Plan, found: str) -> EnvelopeError:
    return EnvelopeError(f"{which} {spelled(delay_ms)} after the publish, {beyond(delay_ms, plan)}", found)
