"""What a timer carries through all its hops, as two Pulsar properties.

``tw-id`` is the timer id as the caller gave it. ``tw-timer`` is one line of numbers,
``<version> <due> <generation> <hops> <entered> <revision>``, readable with ``curl`` in the broker's per-entry headers.
Everything else under the prefix ``tw-`` is kept for later versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from timewheel.core.errors import EnvelopeError, EnvelopeTooNew

__all__ = [
    "ENVELOPE_VERSION",
    "ID_PROPERTY",
    "MAX_HOPS_WRITTEN",
    "MAX_TIMER_ID_CHARS",
    "MAX_TIME_MS",
    "PREFIX",
    "TIMER_PROPERTY",
    "Envelope",
]

PREFIX = "tw-"
ID_PROPERTY = "tw-id"
TIMER_PROPERTY = "tw-timer"
ENVELOPE_VERSION = 1

MAX_TIME_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: what a datetime can still name."""
MAX_HOPS_WRITTEN = 999_999
"""What the line has room for; a bound on hops is the plan's."""
MAX_TIMER_ID_CHARS = 256
"""A timer id is a key in memory once per handled timer; longer ones would make that window's size unbounded."""

# One regular expression checks form, version and sizes at once: fewer steps per message than any loop.
_LINE = re.compile(r"1 (\d{1,15}) (\d{1,9}) (\d{1,6}) (\d{1,15}) (\d{1,10})", re.ASCII)


class Envelope(NamedTuple):
    """One timer's envelope.

    Args:
        timer_id: The same through all hops.
        due_ms: When it is due, UTC milliseconds.
        entered_ms: When it entered the topic that it is in: the send time, or the nominal release time of its last
            hop; UTC milliseconds.
        generation: 0 at first, higher after a reschedule: (timer id, generation) is what is handled once.
        hops: Re-publications so far.
        revision: The plan's, at send.
    """

    timer_id: str
    due_ms: int
    entered_ms: int
    generation: int = 0
    hops: int = 0
    revision: int = 1

    def properties(self) -> dict[str, str]:
        """As Pulsar properties."""
        return {ID_PROPERTY: self.timer_id, TIMER_PROPERTY: self.line()}

    def line(self) -> str:
        """As the value of `TIMER_PROPERTY`, the only one that changes with a hop."""
        return f"{ENVELOPE_VERSION} {self.due_ms} {self.generation} {self.hops} {self.entered_ms} {self.revision}"

    def hopped(self, entered_ms: int) -> Envelope:
        """The envelope of its next copy.

        Args:
            entered_ms: When that one enters its topic, UTC milliseconds.
        """
        # Built anew: _replace would cost twice as much, once per message.
        hops = self.hops + 1 if self.hops < MAX_HOPS_WRITTEN else MAX_HOPS_WRITTEN
        return Envelope(self.timer_id, self.due_ms, entered_ms, self.generation, hops, self.revision)

    @staticmethod
    def first_properties(timer_id: str, due_ms: int, entered_ms: int, revision: int) -> dict[str, str]:
        """The properties of a timer that is sent for the first time: generation 0, no hop yet.

        The same as building an envelope and asking it, at a third of the cost: this runs once per send.
        """
        return {
            ID_PROPERTY: timer_id,
            TIMER_PROPERTY: f"{ENVELOPE_VERSION} {due_ms} 0 0 {entered_ms} {revision}",
        }

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Envelope | None:
        """Read a message's envelope.

        Returns:
            None for a message that carries none of our properties (a foreign producer's).

        Raises:
            EnvelopeTooNew: A later version of timewheel wrote them.
            EnvelopeError: The properties are there but garbled or incomplete.
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
            raise _what_is_wrong(line)
        due, generation, hops, entered, revision = match.groups()
        due_ms, entered_ms = int(due), int(entered)
        if due_ms > MAX_TIME_MS or entered_ms > MAX_TIME_MS:
            raise EnvelopeError("a time is beyond the year 9999", line)
        return cls(timer_id, due_ms, entered_ms, int(generation), int(hops), int(revision))


def _what_is_wrong(line: str) -> EnvelopeError:
    version = line.partition(" ")[0]
    # Nine digits at most: Python refuses to read thousands of them, with an error that is not ours.
    if re.fullmatch(r"[0-9]{1,9}", version) and int(version) > ENVELOPE_VERSION:
        return EnvelopeTooNew(int(version), ENVELOPE_VERSION, line)
    return EnvelopeError(f"{TIMER_PROPERTY} is garbled", line)
