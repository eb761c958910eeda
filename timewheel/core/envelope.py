"""Envelope: the Pulsar properties that a timer carries through all its hops, two for most timers.

``tw-id`` is the timer id as the caller gave it. ``tw-timer`` is one line of numbers,
``<version> <due> <generation> <hops> <entered> <revision>``, readable with ``curl`` in the broker's per-entry headers.

Version 1 has no room for a timer that has replaced another timer, belongs to a group, is a repeated attempt, or is for
a single subscription. The line of such a timer has version 2, ``2 <due> <generation> <hops> <entered> <revision>
<attempt> <first due>``. If it has a group or a subscription of its own, ``tw-group`` (``<stamp> <group>``) and
``tw-for`` name them. All other timers stay in version 1, which older consumers and relays read as well.
``tw-due`` (UTC milliseconds) is the due time with which a client without an SDK sends a timer to the intake. With
``tw-from`` (``<ledger>:<entry> <published>``) a shadow records the position in the due topic from which it moved a
message. Neither leaves the intake. ``tw-nudge`` marks a message that a shadow puts into a due topic to make the broker
read on, and takes out again. All other names under the prefix ``tw-`` are reserved for later versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from timewheel.core.durations import whole_number
from timewheel.core.errors import EnvelopeError, EnvelopeTooNew

PREFIX = "tw-"
ID_PROPERTY = "tw-id"
TIMER_PROPERTY = "tw-timer"
GROUP_PROPERTY = "tw-group"
FOR_PROPERTY = "tw-for"
DUE_PROPERTY = "tw-due"
FROM_PROPERTY = "tw-from"
NUDGE_PROPERTY = "tw-nudge"
PROBE_PROPERTY = "tw-probe"
"""Marks a probe, by which a relay learns that it has received all waiting messages; its value names the relay."""
ENVELOPE_VERSION = 2  # highest version that is read. Envelopes that fit into version 1 are written in version 1.

MAX_TIME_MS = 253_402_300_799_999  # last millisecond of the year 9999, the latest time of a datetime
_TIME_DIGITS = len(str(MAX_TIME_MS))
_VERSION_DIGITS = 9
MIN_DUE_MS = MAX_TIME_MS // 1_000 + 1
"""Least due time, in January 1978: every due time given in seconds, up to the year 9999, is below it, and no real timer
is due before it."""
MAX_HOPS_WRITTEN = 999_999  # highest number of hops that the line has room for; the plan has the limit on hops
MAX_TIMER_ID_CHARS = 256
"""A timer id is a key in memory for each handled timer; longer ids would make the size of that memory unbounded."""
MAX_GROUP_CHARS = 256  # limited like a timer id: a cancelled group is a key in memory
MAX_SUBSCRIPTION_CHARS = 1_024
MAX_GENERATION = 9_999_999_999_999_999  # stamps are microseconds since 1970, in 16 digits
_SHORT_GENERATION = 999_999_999  # highest generation that version 1 has room for

# One regular expression checks form, version and sizes at once: fewer steps per message than any loop.
_LINE = re.compile(r"1 (\d{1,15}) (\d{1,9}) (\d{1,6}) (\d{1,15}) (\d{1,10})", re.ASCII)
_LONG_LINE = re.compile(r"2 (\d{1,15}) (\d{1,16}) (\d{1,6}) (\d{1,15}) (\d{1,10}) (\d{1,6}) (\d{1,15})", re.ASCII)
_GROUP = re.compile(r"(\d{1,16}) (.+)", re.ASCII | re.DOTALL)


class Life(NamedTuple):
    """Fields that only some timers have; the same through all hops of one attempt."""

    attempt: int = 0  # number of times that a handler of a subscription has postponed the timer; 0 at first
    first_due_ms: int = 0  # due time before the first of those attempts, UTC milliseconds; 0: this is the first attempt
    group: str = ""  # group of the timer; empty: none
    # stamp of the time at which the timer joined the group (`timewheel.core.cancellations.Stamps`)
    group_stamp: int = 0
    only_for: str = ""  # the only subscription that gets the timer; empty: all subscriptions of the plan


FIRST_LIFE = Life()


def unit_mistake(due_ms: int) -> str | None:
    """Detect a due time in a wrong unit, and return the end of an error's sentence; None: the time is milliseconds."""
    if due_ms < MIN_DUE_MS:
        return "before 1978: milliseconds since 1970 are needed, not seconds"
    if due_ms > MAX_TIME_MS:
        return "beyond the year 9999: milliseconds since 1970 are needed, not micro- or nanoseconds"
    return None


class Envelope(NamedTuple):
    """Envelope of one timer.

    Args:
        timer_id: Timer id, the same through all hops.
        due_ms: Due time, UTC milliseconds.
        entered_ms: Time at which the timer entered its present topic: the send time, or the nominal release time of
            its last hop; UTC milliseconds.
        generation: 0, or the stamp of the send that replaced the former timer of this id. A consumer handles each
            (timer id, generation) once.
        hops: Number of re-publications so far.
        revision: Revision of the plan at the send.
        life: Fields that only some timers have.
    """

    timer_id: str
    due_ms: int
    entered_ms: int
    generation: int = 0
    hops: int = 0
    revision: int = 1
    life: Life = FIRST_LIFE

    def properties(self) -> dict[str, str]:
        """Return the envelope as Pulsar properties."""
        found = {ID_PROPERTY: self.timer_id, TIMER_PROPERTY: self.line()}
        life = self.life
        if life.group:
            found[GROUP_PROPERTY] = f"{life.group_stamp} {life.group}"
        if life.only_for:
            found[FOR_PROPERTY] = life.only_for
        return found

    def line(self) -> str:
        """Return the value of `TIMER_PROPERTY`, the only property that changes with a hop."""
        numbers = f"{self.due_ms} {self.generation} {self.hops} {self.entered_ms} {self.revision}"
        if self.life == FIRST_LIFE and self.generation <= _SHORT_GENERATION:
            return f"1 {numbers}"
        return f"2 {numbers} {self.life.attempt} {self.life.first_due_ms}"

    def hopped(self, entered_ms: int) -> Envelope:
        """Return the envelope of the next copy.

        Args:
            entered_ms: Time at which the copy enters its topic, UTC milliseconds.
        """
        # Built without _replace and constructor, which cost more, for every message.
        hops = self.hops + 1 if self.hops < MAX_HOPS_WRITTEN else MAX_HOPS_WRITTEN
        if not 0 <= entered_ms <= MAX_TIME_MS:
            entered_ms = min(max(entered_ms, 0), MAX_TIME_MS)  # due in 1970 or 9999: the envelope must stay readable
        fields = (self.timer_id, self.due_ms, entered_ms, self.generation, hops, self.revision, self.life)
        return tuple.__new__(Envelope, fields)

    @staticmethod
    def first_properties(timer_id: str, due_ms: int, entered_ms: int, revision: int) -> dict[str, str]:
        """Return the properties of a timer that is sent for the first time: generation 0, no group, no hop yet.

        Equal to `properties` of such an envelope, at a third of the cost: this runs once per send.
        """
        return {ID_PROPERTY: timer_id, TIMER_PROPERTY: f"1 {due_ms} 0 0 {entered_ms} {revision}"}

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Envelope | None:
        """Read a message's envelope.

        Returns:
            None for a message without any of our properties (from a foreign producer).

        Raises:
            EnvelopeTooNew: A later version of timewheel wrote them.
            EnvelopeError: The properties are garbled or incomplete.
        """
        line = properties.get(TIMER_PROPERTY)
        timer_id = properties.get(ID_PROPERTY)
        if line is None or not timer_id:
            if line is None and timer_id is None:
                return None
            raise EnvelopeError(f"one of {ID_PROPERTY}, {TIMER_PROPERTY} is missing or empty", line or timer_id)
        if len(timer_id) > MAX_TIMER_ID_CHARS:
            raise EnvelopeError(f"{ID_PROPERTY} is longer than {MAX_TIMER_ID_CHARS} characters", timer_id)
        match = _LINE.fullmatch(line)
        if match is None:
            return _read_long(timer_id, line, properties)
        due, generation, hops, entered, revision = match.groups()
        due_ms, entered_ms = int(due), int(entered)
        if due_ms > MAX_TIME_MS or entered_ms > MAX_TIME_MS:
            raise _too_late(line)
        fields = (timer_id, due_ms, entered_ms, int(generation), int(hops), int(revision), FIRST_LIFE)
        return tuple.__new__(cls, fields)


def first_wanted_ms(envelope: Envelope) -> int:
    """Return the time from which a handler should have had a timer, over all its attempts, UTC milliseconds.

    This is the due time, or the send time if that is later: the timer's cancellation is remembered from then on.
    """
    life = envelope.life
    # Without a hop the time of entry is the send time.
    return life.first_due_ms or (envelope.due_ms if envelope.hops else max(envelope.due_ms, envelope.entered_ms))


def read_due(text: str) -> int:
    """Read `DUE_PROPERTY`: the due time of a timer in the intake, UTC milliseconds."""
    due_ms = whole_number(text, _TIME_DIGITS)
    if due_ms is None:
        raise EnvelopeError(f"{DUE_PROPERTY} is garbled: UTC milliseconds in decimal digits are needed", text)
    if (mistake := unit_mistake(due_ms)) is not None:
        raise EnvelopeError(f"{DUE_PROPERTY} is {mistake}", text)
    return due_ms


def due_in(properties: Mapping[str, str]) -> int | None:
    """Return the due time that a message to the intake states, UTC milliseconds; None: it has none that can be read."""
    try:
        return read_due(properties.get(DUE_PROPERTY, ""))
    except EnvelopeError:
        return None


def _read_long(timer_id: str, line: str, properties: Mapping[str, str]) -> Envelope:
    match = _LONG_LINE.fullmatch(line)
    if match is None:
        raise _what_is_wrong(line)
    due_ms, generation, hops, entered_ms, revision, attempt, first_due_ms = map(int, match.groups())
    if max(due_ms, entered_ms, first_due_ms) > MAX_TIME_MS:
        raise _too_late(line)
    group, group_stamp = _read_group(properties.get(GROUP_PROPERTY))
    only_for = properties.get(FOR_PROPERTY, "")
    if len(only_for) > MAX_SUBSCRIPTION_CHARS:
        raise EnvelopeError(f"{FOR_PROPERTY} is longer than {MAX_SUBSCRIPTION_CHARS} characters", only_for)
    life = Life(attempt, first_due_ms, group, group_stamp, only_for)
    return Envelope(
        timer_id, due_ms, entered_ms, generation, hops, revision, FIRST_LIFE if life == FIRST_LIFE else life
    )


def _read_group(text: str | None) -> tuple[str, int]:
    if text is None:
        return "", 0
    match = _GROUP.fullmatch(text)
    if match is None:
        raise EnvelopeError(f"{GROUP_PROPERTY} is garbled", text)
    if len(match[2]) > MAX_GROUP_CHARS:
        raise EnvelopeError(f"{GROUP_PROPERTY} is longer than {MAX_GROUP_CHARS} characters", text)
    return match[2], int(match[1])


def _too_late(line: str) -> EnvelopeError:
    return EnvelopeError("a time is beyond the year 9999", line)


def _what_is_wrong(line: str) -> EnvelopeError:
    version = whole_number(line.partition(" ")[0], _VERSION_DIGITS)
    if version is not None and version > ENVELOPE_VERSION:
        return EnvelopeTooNew(version, ENVELOPE_VERSION, line)
    return EnvelopeError(f"{TIMER_PROPERTY} is garbled", line)
