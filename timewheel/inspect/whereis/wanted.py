"""The wanted timer: its id, and all that the caller knows about it."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.core.envelope import Envelope
from timewheel.core.ids import GeneratedId
from timewheel.core.keys import partition_for_key
from timewheel.core.plan import Plan
from timewheel.inspect.errors import SendTimeUnknown

DEFAULT_WITHIN_MS = 1_000
"""Default uncertainty of a send time that was recorded beside the send."""
LAST_OF_LATIN_1 = 255


@dataclass(frozen=True, slots=True)
class Span:
    """A span of milliseconds, both ends included."""

    first_ms: int
    last_ms: int

    def shifted(self, by_ms: int) -> Span:
        return Span(self.first_ms + by_ms, self.last_ms + by_ms)

    def side_of(self, at_ms: int) -> int:
        """Return -1 for a time before the span, 1 after it, 0 within it."""
        return -1 if at_ms < self.first_ms else 1 if at_ms > self.last_ms else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wanted timer.

    Args:
        timer_id: Id of the timer, given or generated.
        sent: Time of its send; a span from 0 on means any time before it is due.
        due_ms: Due time, UTC milliseconds; None if unknown: then the ways of all due times are possible.
        due_within_ms: The due time is at most so much later; 0: it is exact.
        key: Partition key; None without a key, or if unknown.
        generated: Parts of a generated id; None for an id chosen by the caller.
    """

    timer_id: str
    sent: Span
    due_ms: int | None = None
    due_within_ms: int = 0
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
        due_within_ms: int = 0,
        key: str | None = None,
    ) -> Wanted:
        """Create the description of a timer from the caller's knowledge.

        Args:
            timer_id: Id of the timer.
            sent_ms: Send time; this or ``due_ms`` is required for an id that does not contain it. A generated id
                contains the send time to the millisecond, which takes precedence.
            within_ms: Uncertainty of ``sent_ms``.
            due_ms: Due time, as in `Timer.due_at` of the send.
            due_within_ms: By how much it may be later, as of a time without its milliseconds.
            key: Partition key.

        Raises:
            SendTimeUnknown: Neither the id nor ``sent_ms`` gives the send time, and the due time is unknown.
        """
        generated = GeneratedId.parse(timer_id)
        if generated is not None:
            sent = Span(generated.sent_ms, generated.sent_ms)
        elif sent_ms is not None:
            sent = Span(max(sent_ms - within_ms, 1), sent_ms + within_ms)
        elif due_ms is not None:
            sent = Span(0, due_ms + due_within_ms)
        else:
            raise SendTimeUnknown(timer_id)
        return cls(
            timer_id=timer_id,
            sent=sent,
            due_ms=due_ms,
            due_within_ms=due_within_ms,
            key=key or None,
            generated=generated,
        )

    @property
    def knows_sent(self) -> bool:
        """True if the send time is known, so that the way can be computed."""
        return self.sent.first_ms > 0

    @property
    def exact_due_ms(self) -> int | None:
        """The due time, if it is known to the millisecond."""
        return None if self.due_within_ms else self.due_ms

    def due_span(self, plan: Plan) -> Span:
        """Return the possible due times: no timer is sent for later than the plan's longest delay."""
        if self.due_ms is not None:
            return Span(self.due_ms, self.due_ms + self.due_within_ms)
        return Span(self.sent.first_ms, self.sent.last_ms + plan.max_delay_ms)

    def partitions(self, plan: Plan) -> tuple[int, ...]:
        """Return the possible partitions, the most likely first: a single partition if the key is known, else all.

        A producer counts its sends and its generated ids alike, and distributes timers without a key in turn.
        """
        if self.key is not None:
            return (partition_for_key(self.key, plan.own_partitions),)
        first = 0 if self.generated is None else self.generated.number % plan.own_partitions
        return (first, *(partition for partition in range(plan.own_partitions) if partition != first))

    def is_id(self, stored_id: str) -> bool:
        """Return whether a stored id is the wanted id.

        The admin API shows only Latin-1, and a space for any other character. Brokers up to 3.x also strip leading and
        trailing spaces.
        """
        shown = _shown(self.timer_id)
        return stored_id in (self.timer_id, shown, shown.strip())

    def side_of(self, envelope: Envelope, entered: Span) -> int:
        """Return -1 if another timer entered its topic before the wanted timer, 1 if after, 0 if unknown.

        Args:
            envelope: Envelope of the other timer.
            entered: Time at which the wanted timer entered the topic.
        """
        side = entered.side_of(envelope.entered_ms)
        if side:
            return side
        # Timers that entered at the same moment, as all timers of a slot do, keep the order in which they were sent.
        other = GeneratedId.parse(envelope.timer_id)
        if other is None:
            return 0
        side = self.sent.side_of(other.sent_ms)
        if side or self.generated is None or other.producer != self.generated.producer:
            return side
        return -1 if other.number < self.generated.number else 1 if other.number > self.generated.number else 0

    def steps_after(self, envelope: Envelope, partitions: int) -> int:
        """Return the distance in timers from another timer of the same producer, within the partition; 0 if unknown."""
        other = GeneratedId.parse(envelope.timer_id)
        if other is None or self.generated is None or other.producer != self.generated.producer:
            return 0
        return (self.generated.number - other.number) // partitions


def _shown(timer_id: str) -> str:
    return "".join(character if ord(character) <= LAST_OF_LATIN_1 else " " for character in timer_id)
