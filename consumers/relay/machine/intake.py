"""What a message of the intake says: a timer whose way nobody has begun yet, or why it is none.

Who has an SDK, or is a shadow, puts a whole envelope there. Any other client says only when it is due (``tw-due``), and
the relay makes the envelope of what the broker has stored: so a replay after a crash meets the same one.
"""

from __future__ import annotations

from timewheel.consumers.relay.machine.commands import PROBE, PROBE_PROPERTY, Reading, judged
from timewheel.core.durations import format_duration
from timewheel.core.envelope import (
    DUE_PROPERTY,
    FOR_PROPERTY,
    FROM_PROPERTY,
    GROUP_PROPERTY,
    ID_PROPERTY,
    MAX_TIME_MS,
    MAX_TIMER_ID_CHARS,
    TIMER_PROPERTY,
    Envelope,
    unit_mistake,
)
from timewheel.core.errors import EnvelopeError

__all__ = ["taken_in"]

_DUE_DIGITS = len(str(MAX_TIME_MS))


def taken_in(properties: dict[str, str], publish_ms: int, own_id: str, revision: int, max_delay_ms: int) -> Reading:
    """Read a message of the intake.

    Args:
        properties: Its. Of a timer they are changed into what goes on: with `ID_PROPERTY` and `TIMER_PROPERTY`, and
            without what only the intake knows. Of all else they stay as they are.
        publish_ms: Its publish time as the broker has stored it, UTC milliseconds: when the timer has entered.
        own_id: The timer id of one that has none: its place. The end of it, if it is too long.
        revision: The plan's.
        max_delay_ms: The longest delay that the plan allows. What has an envelope is not held to it here.
    """
    if TIMER_PROPERTY in properties:
        reading = judged(properties)
        if isinstance(reading, Envelope):
            properties.pop(DUE_PROPERTY, None)
            properties.pop(FROM_PROPERTY, None)
        return reading
    due = properties.get(DUE_PROPERTY)
    if due is None:
        return PROBE if PROBE_PROPERTY in properties else _without_due_time(properties)
    # As many digits as are needed at most: Python refuses to read thousands, with an error that is not ours.
    if not (due.isascii() and due.isdigit() and len(due) <= _DUE_DIGITS):
        return EnvelopeError(f"{DUE_PROPERTY} is garbled: UTC milliseconds in decimal digits are needed", due)
    due_ms = int(due)
    if (mistake := unit_mistake(due_ms)) is not None:
        return EnvelopeError(f"{DUE_PROPERTY} is {mistake}", due)
    if due_ms - publish_ms > max_delay_ms:
        return EnvelopeError(
            f"{DUE_PROPERTY} is {format_duration(due_ms - publish_ms)} after the publish, and the plan's max_delay is "
            f"{format_duration(max_delay_ms)}; publish it later, or raise max_delay",
            due,
        )
    # The end tells places apart; a topic's name may be longer than an id.
    timer_id = properties.get(ID_PROPERTY) or own_id[-MAX_TIMER_ID_CHARS:]
    if len(timer_id) > MAX_TIMER_ID_CHARS:
        return EnvelopeError(f"{ID_PROPERTY} is longer than {MAX_TIMER_ID_CHARS} characters", timer_id)
    if GROUP_PROPERTY in properties or FOR_PROPERTY in properties:
        # Without an envelope nothing would heed them, and a group's cancel would miss this timer.
        return EnvelopeError(f"{GROUP_PROPERTY} and {FOR_PROPERTY} need {TIMER_PROPERTY}; {DUE_PROPERTY} has no groups")
    del properties[DUE_PROPERTY]
    properties.pop(FROM_PROPERTY, None)
    properties.update(Envelope.first_properties(timer_id, due_ms, publish_ms, revision))
    return Envelope(timer_id, due_ms, publish_ms, revision=revision)


def _without_due_time(properties: dict[str, str]) -> EnvelopeError:
    return EnvelopeError(
        f"a message in the intake has no due time: neither {DUE_PROPERTY} (UTC milliseconds) nor {TIMER_PROPERTY}",
        properties.get(ID_PROPERTY),
    )
