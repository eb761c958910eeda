"""The timer that is looked for: its id, and all that is known of it besides."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.core.envelope import Envelope
from timewheel.core.ids import GeneratedId
from timewheel.core.keys import partition_for_key
from timewheel.core.plan import Plan
from timewheel.ops.errors import SendTimeUnknown

__all__ = ["DEFAULT_WITHIN_MS", "Span", "Wanted"]

DEFAULT_WITHIN_MS = 1_000
"""How far off a send time may be that somebody noted beside the send."""
LAST_OF_LATIN_1 = 255


@dataclass(frozen=True, slots=True)
class Span:
    """From a millisecond to a millisecond, both in it."""

    first_ms: int
    last_ms: int

    def shifted(self, by_ms: int) -> Span:
        return Span(self.first_ms + by_ms, self.last_ms + by_ms)

    def side_of(self, at_ms: int) -> int:
        """-1: the time is before it, 1: after it, 0: in it."""
        return -1 if at_ms < self.first_ms else 1 if at_ms > self.last_ms else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One timer.

    Args:
        timer_id: As it was given or generated.
        sent: When it was sent; from 0 on: at any time before it is due.
        due_ms: When it is due, UTC milliseconds; None: not known, so all ways are possible that due times can take.
        key: Its partition key; None: it had none, or it is not known.
        generated: What the id says; None: it is a caller's own.
    """

    timer_id: str
    sent: Span
    due_ms: int | None = None
    key: str | None = None
    generated: GeneratedId | None = None

    @classmethod
    def of(
        cls,
        timer_id: str,
        *,
        sent_ms: int | None = None,
        within_ms: int = DEFAULT_WITHIN_MS,
        due_ms: int | None = None,
        key: str | None = None,
    ) -> Wanted:
        """What is wanted, from what somebody knows.

        Args:
            timer_id: The id.
            sent_ms: When it was sent, or ``due_ms``, is needed for an id that does not say it. A generated one does, to
                the millisecond, and is believed.
            within_ms: How far off ``sent_ms`` may be.
            due_ms: When it is due, as `Timer.due_at` of the send had it.
            key: Its partition key.

        Raises:
            SendTimeUnknown: Neither the id nor ``sent_ms`` says when it was sent, and when it is due is not known.
        """
        generated = GeneratedId.parse(timer_id)
        if generated is not None:
            sent = Span(generated.sent_ms, generated.sent_ms)
        elif sent_ms is not None:
            sent = Span(max(sent_ms - within_ms, 1), sent_ms + within_ms)
        elif due_ms is not None:
            sent = Span(0, due_ms)
        else:
            raise SendTimeUnknown(timer_id)
        return cls(timer_id=timer_id, sent=sent, due_ms=due_ms, key=key or None, generated=generated)

    @property
    def knows_sent(self) -> bool:
        """Whether it is known when it was sent, so that its way can be computed."""
        return self.sent.first_ms > 0

    def due_span(self, plan: Plan) -> Span:
        """The due times that it can have: none is sent for later than the plan's longest delay."""
        if self.due_ms is not None:
            return Span(self.due_ms, self.due_ms)
        return Span(self.sent.first_ms, self.sent.last_ms + plan.max_delay_ms)

    def partitions(self, plan: Plan) -> tuple[int, ...]:
        """Where it can be, the likeliest first: one if its key is known, else all.

        A producer counts its sends and its generated ids alike, and deals timers without a key out in turn.
        """
        if self.key is not None:
            return (partition_for_key(self.key, plan.own_partitions),)
        first = 0 if self.generated is None else self.generated.number % plan.own_partitions
        return (first, *(partition for partition in range(plan.own_partitions) if partition != first))

    def is_id(self, stored_id: str) -> bool:
        """Whether a stored id is this one; the admin API shows Latin-1 only, and a space for any other character.

        Brokers up to 3.x show it without spaces at its ends.
        """
        shown = _shown(self.timer_id)
        return stored_id in (self.timer_id, shown, shown.strip())

    def side_of(self, envelope: Envelope, entered: Span) -> int:
        """-1: a timer entered its topic before this one, 1: after it, 0: it cannot be told.

        Args:
            envelope: The other's.
            entered: When this one entered the topic.
        """
        side = entered.side_of(envelope.entered_ms)
        if side:
            return side
        # They entered in the same moment, as all timers of a slot do: they keep the order in which they were sent.
        other = GeneratedId.parse(envelope.timer_id)
        if other is None:
            return 0
        side = self.sent.side_of(other.sent_ms)
        if side or self.generated is None or other.producer != self.generated.producer:
            return side
        return -1 if other.number < self.generated.number else 1 if other.number > self.generated.number else 0

    def steps_after(self, envelope: Envelope, partitions: int) -> int:
        """How many timers further on in its partition this one was sent by the same producer; 0: not known."""
        other = GeneratedId.parse(envelope.timer_id)
        if other is None or self.generated is None or other.producer != self.generated.producer:
            return 0
        return (self.generated.number - other.number) // partitions


def _shown(timer_id: str) -> str:
    return "".join(character if ord(character) <= LAST_OF_LATIN_1 else " " for character in timer_id)
