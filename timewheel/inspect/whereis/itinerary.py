"""A wanted timer, and its past, present and future places: pure, from the plan, the send time and the due time.

The due time may be unknown. Then the ways of all possible due times are followed: the routing steps cut the span of due
times into pieces, and each piece goes a single way. With a known due time the span is a millisecond, and the way is
that of the router.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from timewheel.core.envelope import Envelope
from timewheel.core.ids import GeneratedId
from timewheel.core.names import Names, partition_for_key
from timewheel.core.plan import MAX_HOPS, Plan, Tiered, Wheel
from timewheel.core.routing import release_at
from timewheel.core.steps import Step, hop_bound, steps
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A topic on the way of a timer.

    Args:
        topic: Full name, without a partition's suffix.
        step: Step of the topic; a due topic has a step of kind ``due``.
        entered: Time of entry: the send, or the nominal release from the topic before.
        due: Due times of the timers that come here.
        leaves_ms: Latest nominal release, UTC milliseconds; the due time for a due topic.
        hops: Largest number of moves by relays.
    """

    topic: str
    step: Step
    entered: Span
    due: Span
    leaves_ms: int
    hops: int

    @property
    def is_due(self) -> bool:
        """True for a due topic."""
        return self.step.kind == "due"


class Routes:
    """All ways through the topics of a plan.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names = Names(plan)
        self._by_slots = isinstance(plan.scheme, Wheel)
        self._rows = tuple((step, self._names.of_step(step)) for step in steps(plan))

    def after(self, entered_ms: int, due: Span, hops: int = 0) -> Iterator[Stop]:
        """Yield the stops of timers routed at a given time: each topic, with the due times that lead to it.

        Without a hop they are routed by a producer (`Router.route_of_send`).
        """
        entered, margin_ms = Span(entered_ms, entered_ms), 0 if hops else self._plan.send_margin_ms
        last_ms = due.last_ms
        for step, topics in self._rows:
            if last_ms < due.first_ms:
                return
            first_ms = max(_first_due_ms(step, entered_ms, margin_ms), due.first_ms)
            if first_ms > last_ms:
                continue
            taken = Span(first_ms, last_ms)
            last_ms = first_ms - 1
            for part in _parts(step, taken, entered_ms):
                yield Stop(
                    topic=self._topic(step, topics, part, entered_ms),
                    step=step,
                    entered=entered,
                    due=part,
                    leaves_ms=part.last_ms if step.kind == "due" else release_at(step, part.last_ms, entered_ms),
                    hops=hops,
                )

    def places(self, due: Span) -> dict[str, Step]:
        """Return all topics that can contain a timer with such a due time, whenever it was sent, each with its step."""
        return {
            self._topic(step, topics, part, due.first_ms): step
            for step, topics in self._rows
            for part in _parts(step, due, due.first_ms)
        }

    def way(self, sent_ms: int, due_ms: int) -> tuple[Stop, ...]:
        """Return the whole way of a timer, from its first topic to its due topic, or as far as the plan's hops lead."""
        found: list[Stop] = []
        at_ms = sent_ms
        for hops in range(self._max_hops(0) + 1):
            (stop,) = self.after(at_ms, Span(due_ms, due_ms), hops)
            found.append(stop)
            if stop.is_due:
                break
            at_ms = stop.leaves_ms
        return tuple(found)

    def now(self, wanted: Wanted, now_ms: int) -> tuple[tuple[Stop, ...], tuple[Stop, ...]]:
        """Return the places where a timer can be now if all is on time, and its earlier places, if a relay is late.

        Returns:
            Both with each topic and time of entry once, the most likely first: holding topics, due topics, and last the
                stops whose timers must have been handled by now.
        """
        here: dict[tuple[str, int], Stop] = {}
        before: dict[tuple[str, int], Stop] = {}
        max_hops = self._max_hops(wanted.sent.last_ms - wanted.sent.first_ms)
        for sent_ms in sorted({wanted.sent.first_ms, wanted.sent.last_ms}):
            for stop, last in self._reached(sent_ms, wanted.due_span(self._plan), now_ms, max_hops):
                known, entered_ms = (here if last else before), stop.entered.first_ms
                # Later stops inherit the uncertainty of the send time; the release of a slot does not.
                key = (stop.topic, entered_ms if self._by_slots and stop.hops else entered_ms - sent_ms)
                known[key] = _joined(known[key], stop) if key in known else stop
        return _ordered(here, now_ms), _ordered(before, now_ms)

    def _max_hops(self, off_ms: int) -> int:
        """Return the most hops of a timer whose send time is uncertain by this much; the plan allows no longer way."""
        # A millisecond more than the longest delay may mean another stay.
        more = off_ms // self._plan.scheme.tiers_ms[0] + 1 if isinstance(self._plan.scheme, Tiered) else 0
        return min(hop_bound(self._plan) + more, MAX_HOPS)

    def _reached(self, sent_ms: int, due: Span, now_ms: int, max_hops: int) -> Iterator[tuple[Stop, bool]]:
        """Yield every stop that was reached by now; True if its timers do not have to leave yet."""
        waiting: dict[int, list[Span]] = {sent_ms: [due]}
        hops = {sent_ms: 0}
        while waiting:
            at_ms = min(waiting)
            seen: dict[str, Stop] = {}
            for span in _merged(waiting.pop(at_ms)):
                for stop in self.after(at_ms, span, hops[at_ms]):
                    seen[stop.topic] = _joined(seen[stop.topic], stop) if stop.topic in seen else stop
                    if stop.is_due or stop.leaves_ms > now_ms or stop.hops >= max_hops:
                        continue
                    waiting.setdefault(stop.leaves_ms, []).append(stop.due)
                    hops[stop.leaves_ms] = max(hops.get(stop.leaves_ms, 0), stop.hops + 1)
            for stop in seen.values():
                yield stop, stop.is_due or stop.leaves_ms > now_ms

    def _topic(self, step: Step, topics: tuple[str, ...], due: Span, at_ms: int) -> str:
        if step.kind == "tier":
            return topics[0]
        if step.kind == "slot":
            return topics[due.first_ms // step.slot_ms % step.slots]
        if step.interval_ms:
            return self._names.calendar_topic(max(due.first_ms, at_ms) // step.interval_ms)
        return self._plan.due_topic


def _first_due_ms(step: Step, at_ms: int, margin_ms: int) -> int:
    """Return the earliest due time that takes this step, whose slot must not be swept within the margin."""
    if step.kind == "tier":
        return at_ms + step.min_remaining_ms
    if step.kind == "slot":
        return ((at_ms + margin_ms + step.headstart_ms) // step.slot_ms + 1) * step.slot_ms
    return 0


def _parts(step: Step, due: Span, at_ms: int) -> Iterator[Span]:
    """Split the due times by the topics that they lead to."""
    length_ms = step.slot_ms or step.interval_ms
    if not length_ms:
        yield due
        return
    first_ms = due.first_ms
    while first_ms <= due.last_ms:
        # Overdue timers go to the interval of their send.
        end_ms = (max(first_ms, at_ms if step.interval_ms else 0) // length_ms + 1) * length_ms
        last_ms = min(end_ms - 1, due.last_ms)
        yield Span(first_ms, last_ms)
        first_ms = last_ms + 1


def _merged(spans: list[Span]) -> Iterator[Span]:
    """Merge the spans into as few as possible."""
    current: Span | None = None
    for span in sorted(spans, key=lambda one: one.first_ms):
        if current is None:
            current = span
        elif span.first_ms <= current.last_ms + 1:
            current = Span(current.first_ms, max(current.last_ms, span.last_ms))
        else:
            yield current
            current = span
    if current is not None:
        yield current


def _joined(one: Stop, other: Stop) -> Stop:
    return replace(
        one,
        entered=_both(one.entered, other.entered),
        due=_both(one.due, other.due),
        leaves_ms=max(one.leaves_ms, other.leaves_ms),
        hops=max(one.hops, other.hops),
    )


def _both(one: Span, other: Span) -> Span:
    return Span(min(one.first_ms, other.first_ms), max(one.last_ms, other.last_ms))


def _ordered(stops: dict[tuple[str, int], Stop], now_ms: int) -> tuple[Stop, ...]:
    return tuple(
        sorted(stops.values(), key=lambda stop: (stop.is_due, stop.due.last_ms < now_ms, -stop.entered.first_ms))
    )
