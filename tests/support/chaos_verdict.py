"""Judges a chaos test: reads ledgers and stored copies, and counts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from tests.support.chaos_audit import NOT_COUNTED, Copies
from tests.support.chaos_ledger import Acknowledged, Beat, Event, Failed, Handled, now_ms
from tests.support.chaos_load import Sent
from timewheel.testing.evidence.ledger import Totals, check

SAME_MOMENT_MS = 100
"""Two handlings less than this apart overlap, or nearly so: to look first whether the work is done does not help."""
LATE_MS = 1_000
MAX_FORGOTTEN_PER_RELOAD = 20
"""Sends that a relay repeats at the moment when their destination is loaded again. Mostly 0; 8 were seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill -9."""

    post: str  # the post of the killed process
    pid: int  # the killed process
    point: str  # the named point, or "outside"
    at_ms: int  # the latest possible time of the death
    in_flight: int  # timers that were confirmed and not handled then


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A disturbance that was made, from its begin to its end."""

    name: str
    begin_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome for all timers.

    Args:
        totals: Jepsen's count.
        copies: Copies stored in the due topic.
        early: Calls of a handler before the due time.
        twice_in_one_process: Timers that the same process handled more than once.
        late_p50_ms: Median lateness at the handler; chaos makes it long, so most tests only show it.
        late_p99_ms: Lateness that 99 of 100 timers do not exceed.
        late_max_ms: The longest lateness.
        at_the_same_moment: Timers that two processes handled within `SAME_MOMENT_MS`.
        unknown: Calls of the producer with an unknown outcome.
        longest_send_ms: The longest time that a call of the producer had no outcome.
        longest_silence_ms: The longest time in which a partition delivered nothing although timers were due.
        stuck: Timers that were stored and due, and came only when their consumer ended.
    """

    totals: Totals
    copies: Copies
    early: int
    twice_in_one_process: int
    late_p50_ms: int
    late_p99_ms: int
    late_max_ms: int
    at_the_same_moment: int
    unknown: int
    longest_send_ms: int
    longest_silence_ms: int
    stuck: int

    @property
    def cluster_figures(self) -> dict[str, int]:
        """Figures for a row of evidence of a play on a cluster."""
        return {
            "attempted": self.totals.attempted,
            "timers": self.totals.acknowledged,
            "sends unknown": self.unknown,
            "lost": self.totals.lost,
            "early": self.early,
            "twice by one host": self.twice_in_one_process,
            "twice in all": self.totals.duplicated,
            "at the same moment": self.at_the_same_moment,
            "stuck": self.stuck,
            "longest silence ms": self.longest_silence_ms,
            "longest send ms": self.longest_send_ms,
        }

    @property
    def figures(self) -> dict[str, int]:
        """Figures for a row of evidence."""
        totals, copies = self.totals, self.copies
        return {
            "timers": totals.acknowledged,
            "lost": totals.lost,
            "handled twice": totals.duplicated,
            "early": self.early,
            "extra copies on time": copies.extra_on_time,
            "extra copies late": copies.extra_late,
        }

    def __str__(self) -> str:
        totals, copies = self.totals, self.copies
        return (
            f"timers {totals.acknowledged} confirmed of {totals.attempted}, lost {totals.lost}, "
            f"handled twice {totals.duplicated}, early {self.early}, unexpected {totals.unexpected}; "
            f"on-time copies: {copies.on_time} timers, extra {copies.extra_on_time} "
            f"({copies.extra_by_relays} by relays); "
            f"late lane: {copies.late} timers, extra {copies.extra_late}; resent {copies.resent}; "
            f"dead letters {copies.dead_letters}; "
            f"lateness p50 {self.late_p50_ms} ms, p99 {self.late_p99_ms} ms, max {self.late_max_ms} ms; "
            f"last hops at most {copies.lag_max_ms} ms after their time"
            + "".join(f"\n  {story}" for story in copies.examples)
        )


def judge(
    sent: Mapping[str, Sent], events: Iterable[Event], copies: Copies = NOT_COUNTED, *, stuck: Collection[str] = ()
) -> Verdict:
    """Count.

    Args:
        sent: By timer id.
        events: Of all processes.
        copies: Copies stored in the due topic.
        stuck: Timers that came only when their consumer ended; they are silence of no partition.
    """
    calls = [event for event in events if isinstance(event, Handled | Failed)]
    handled = [event for event in calls if isinstance(event, Handled)]
    first = first_calls(sent, (event for event in calls if event.timer_id not in stuck))
    by_process = Counter((event.pid, event.timer_id, event.generation) for event in handled)
    lateness = sorted(event.at_ms - event.due_ms for event in handled) or [0]
    return Verdict(
        totals=check(
            attempted=sent.keys(),
            acknowledged=[timer_id for timer_id, one in sent.items() if one.confirmed],
            handled=Counter(event.timer_id for event in handled),
        ),
        copies=copies,
        early=sum(event.at_ms < event.due_ms for event in calls),
        twice_in_one_process=sum(times > 1 for times in by_process.values()),
        late_p50_ms=lateness[len(lateness) // 2],
        late_p99_ms=lateness[len(lateness) * 99 // 100],
        late_max_ms=lateness[-1],
        at_the_same_moment=sum(_is_at_the_same_moment(times) for times in _by_timer(handled).values()),
        unknown=sum(one.unknown for one in sent.values()),
        longest_send_ms=max((one.waited_ms(now_ms()) for one in sent.values()), default=0),
        longest_silence_ms=max((silence.length_ms for silence in silences(first)), default=0),
        stuck=len(stuck),
    )


def _by_timer(handled: Iterable[Handled]) -> Mapping[str, list[Handled]]:
    found: defaultdict[str, list[Handled]] = defaultdict(list)
    for event in sorted(handled, key=lambda event: event.at_ms):
        found[event.timer_id].append(event)
    return found


Cause = Literal["entry", "sender", "hop"]


class Repeat(NamedTuple):
    """A timer that was handled again.

    Attributes:
        at_ms: Time of the second handling.
        cause: ``"entry"``: the same entry came again, so its acknowledgement was not stored. Or another copy did, which
            the ``"sender"`` made, as it does after an unknown outcome, or a ``"hop"``.
        at_the_same_moment: Two processes handled it within `SAME_MOMENT_MS`.
    """

    timer_id: str
    at_ms: int
    cause: Cause
    at_the_same_moment: bool


def repeats(sent: Mapping[str, Sent], events: Iterable[Event]) -> Iterator[Repeat]:
    """Yield the timers that were handled again, by any process."""
    for timer_id, times in _by_timer(event for event in events if isinstance(event, Handled)).items():
        if len(times) > 1:
            is_sent_again = timer_id in sent and sent[timer_id].sends > 1
            copied: Cause = "sender" if is_sent_again else "hop"
            cause: Cause = "entry" if times[0].position == times[1].position else copied
            yield Repeat(timer_id, times[1].at_ms, cause, _is_at_the_same_moment(times))


def _is_at_the_same_moment(times: Iterable[Handled]) -> bool:
    return any(one.pid != other.pid and other.at_ms - one.at_ms < SAME_MOMENT_MS for one, other in pairwise(times))


class FirstCall(NamedTuple):
    """The first call of a handler with a timer."""

    place: str  # the plan and the partition; all topics of a calendar are the same place
    could_ms: int  # from when on it could be delivered: it was due, and stored
    at_ms: int

    @property
    def late_ms(self) -> int:
        """Its lateness, without the time before it was stored."""
        return self.at_ms - self.could_ms


def first_calls(sent: Mapping[str, Sent], events: Iterable[Event]) -> list[FirstCall]:
    """Return the first call of each timer, in the order of time."""
    first: dict[str, FirstCall] = {}
    for event in sorted((event for event in events if isinstance(event, Handled | Failed)), key=lambda one: one.at_ms):
        if event.timer_id not in first:
            plan, partition = event.timer_id.rpartition("-")[0], event.topic.rpartition("-partition-")[2]
            stored_ms = sent[event.timer_id].confirmed_ms if event.timer_id in sent else 0
            could_ms = min(max(event.due_ms, stored_ms), event.at_ms)
            first[event.timer_id] = FirstCall(f"{plan}-{partition}", could_ms, event.at_ms)
    return list(first.values())


class Silence(NamedTuple):
    """A time in which a place delivered nothing although a timer was due."""

    place: str
    begin_ms: int
    end_ms: int

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.begin_ms


def silences(first: Iterable[FirstCall]) -> Iterator[Silence]:
    """Yield the time before each call in which nothing was delivered at its place although some timer could be."""
    places: defaultdict[str, list[FirstCall]] = defaultdict(list)
    for call in first:
        places[call.place].append(call)
    for place, calls in places.items():
        # backwards: a timer that comes later may have been due already
        could_ms = calls[-1].could_ms
        for before, call in zip([None, *calls][-2::-1], calls[::-1], strict=True):
            could_ms = min(could_ms, call.could_ms)
            begin_ms = could_ms if before is None else max(could_ms, before.at_ms)
            if begin_ms < call.at_ms:
                yield Silence(place, begin_ms, call.at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a fault cost, from its begin to that of the next one.

    Args:
        silence_ms: The longest silence of a place.
        late_until_ms: How long after the begin a timer came for the first time later than `LATE_MS`; 0: none did.
        late_max_ms: The longest lateness.
        twice: Timers that were handled again, by any process.
        entries: Those among them that came again as the same entry.
        at_the_same_moment: Those among them that two processes handled within `SAME_MOMENT_MS`.
    """

    fault: Fault
    silence_ms: int
    late_until_ms: int
    late_max_ms: int
    twice: int
    entries: int
    at_the_same_moment: int

    def __str__(self) -> str:
        fault = self.fault
        return (
            f"{fault.name} ({(fault.end_ms - fault.begin_ms) / 1000:.1f} s): silent {self.silence_ms / 1000:.1f} s, "
            f"late until {self.late_until_ms / 1000:.1f} s, by {self.late_max_ms / 1000:.1f} s at most; twice in all "
            f"{self.twice} ({self.entries} of the same entry), at the same moment {self.at_the_same_moment}"
        )


def costs(sent: Mapping[str, Sent], events: Sequence[Event], faults: Sequence[Fault]) -> Iterator[Cost]:
    """Yield the cost of each fault; a call counts for the last fault that began before it."""
    first = first_calls(sent, events)
    quiet = list(silences(first))
    again = list(repeats(sent, events))
    ends_ms = [*(fault.begin_ms for fault in faults[1:]), math.inf]
    for fault, end_ms in zip(faults, ends_ms, strict=True):
        begin_ms = fault.begin_ms
        late = [call for call in first if begin_ms <= call.at_ms < end_ms and call.late_ms > LATE_MS]
        twice = [one for one in again if begin_ms <= one.at_ms < end_ms]
        yield Cost(
            fault=fault,
            silence_ms=max((one.length_ms for one in quiet if begin_ms <= one.end_ms < end_ms), default=0),
            late_until_ms=max((call.at_ms - begin_ms for call in late), default=0),
            late_max_ms=max((call.late_ms for call in late), default=0),
            twice=len(twice),
            entries=sum(one.cause == "entry" for one in twice),
            at_the_same_moment=sum(one.at_the_same_moment for one in twice),
        )


def times_handled_and_never_early(events: Iterable[Event]) -> Counter[str]:
    """Count how often each timer was handled, by any process."""
    handled = [event for event in events if isinstance(event, Handled)]
    assert [event for event in handled if event.at_ms < event.due_ms] == []
    return Counter(event.timer_id for event in handled)


def keeps_every_promise(verdict: Verdict, *, reloads: int = 0, copies: bool = True) -> None:
    """Assert: lost 0, handled twice 0, early 0, and no extra copies except those of the late lane (broker-facts:
    late-lane).

    Args:
        verdict: The test's verdict.
        reloads: How often a topic was loaded again. Each time the broker may forget, for a moment, which messages it
            has stored, and store a sequence id of a producer twice (apache/pulsar#25954, in 4.0.7 and in 4.2.4): topics
            with their own policies recover deduplication twice at once, and the first recovery that ends opens the
            topic.
        copies: Whether extra copies count; a broker-held hop has no number by which its second can be dropped.

    Raises:
        AssertionError: A promise is broken.
    """
    stored = verdict.copies
    assert verdict.totals.lost == 0, verdict
    assert verdict.totals.duplicated == 0, verdict
    assert verdict.totals.unexpected == 0, verdict
    assert verdict.early == 0, verdict
    assert stored.dead_letters == 0, verdict
    if copies:
        assert stored.extra_by_relays == 0, verdict
        assert stored.extra_on_time <= reloads * MAX_FORGOTTEN_PER_RELOAD, verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Timers that were handled again after a consumer was killed."""

    # first handled by a process that was killed before the acknowledgement can have reached the broker; README's limits
    # allow these: a crash between a handler's return and its acknowledgement
    in_flight: int
    settled: int  # first handled by a process whose acknowledgement had returned long enough before; must be 0
    copied: int  # another stored copy of the timer was handled: a hop of the late lane, which a killed relay left twice
    max_after_one_kill: int  # the largest part of ``in_flight`` that a single kill caused


def repeats_after_kills(events: Iterable[Event], kills: Sequence[Kill], settle_beats: int) -> Repeats:
    """Separate repeats that a crash explains from unexplained repeats.

    Args:
        events: Events of all consumers.
        kills: Kills of consumers.
        settle_beats: Number of the broker's answers between an acknowledgement and a kill after which the broker
            certainly has the acknowledgement.
    """
    died_ms = {kill.pid: kill.at_ms for kill in kills}
    acknowledged = dict[tuple[int, object], int]()
    handled: dict[str, list[Handled]] = {}
    beats: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, Acknowledged):
            acknowledged[event.pid, event.position] = event.at_ms
        elif isinstance(event, Beat):
            beats.setdefault(event.pid, []).append(event.at_ms)
        elif isinstance(event, Handled):
            handled.setdefault(event.timer_id, []).append(event)
    settled = copied = 0
    after: Counter[int] = Counter()
    for times in handled.values():
        times.sort(key=lambda event: event.at_ms)
        for number, first in enumerate(times[:-1], 1):
            if first.position not in {again.position for again in times[number:]}:
                copied += 1
                continue
            ack_ms = acknowledged.get((first.pid, first.position))
            death_ms = died_ms.get(first.pid)
            if death_ms is None or _answers(beats.get(first.pid, ()), ack_ms, death_ms) >= settle_beats:
                settled += 1
            else:
                after[first.pid] += 1
    return Repeats(
        in_flight=sum(after.values()), settled=settled, copied=copied, max_after_one_kill=max(after.values(), default=0)
    )


def _answers(beats_ms: Iterable[int], ack_ms: int | None, death_ms: int) -> int:
    """Count the broker's answers between an acknowledgement, if any, and the death."""
    return 0 if ack_ms is None else sum(ack_ms < at_ms <= death_ms for at_ms in beats_ms)
