"""Judges a chaos test: reads ledgers and stored copies, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.support.chaos_audit import Copies
from tests.support.chaos_ledger import Acknowledged, Beat, Event, Handled
from tests.support.chaos_load import Sent
from timewheel.testing.evidence.ledger import Totals, check

MAX_FORGOTTEN_PER_RELOAD = 20
"""Sends that a relay repeats at the moment when their destination is loaded again. Mostly 0; 8 were seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill -9.

    Args:
        post: The post of the killed process.
        pid: The killed process.
        point: The named point, or "outside".
        at_ms: The latest possible time of the death.
        in_flight: Timers that were confirmed and not handled then.
    """

    post: str
    pid: int
    point: str
    at_ms: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome for all timers.

    Args:
        totals: Jepsen's count.
        copies: Copies stored in the due topic.
        early: Timers handled before their due time.
        twice_in_one_process: Timers that the same process handled more than once.
        late_p50_ms: Median lateness at the handler; chaos makes it long, so most tests only show it.
        late_p99_ms: Lateness that 99 of 100 timers do not exceed.
        late_max_ms: The longest lateness.
    """

    totals: Totals
    copies: Copies
    early: int
    twice_in_one_process: int
    late_p50_ms: int
    late_p99_ms: int
    late_max_ms: int

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


def judge(sent: Mapping[str, Sent], events: Iterable[Event], copies: Copies) -> Verdict:
    handled = [event for event in events if isinstance(event, Handled)]
    by_process = Counter((event.pid, event.timer_id, event.generation) for event in handled)
    lateness = sorted(event.at_ms - event.due_ms for event in handled) or [0]
    return Verdict(
        totals=check(
            attempted=sent.keys(),
            acknowledged=[timer_id for timer_id, one in sent.items() if one.confirmed],
            handled=Counter(event.timer_id for event in handled),
        ),
        copies=copies,
        early=sum(event.at_ms < event.due_ms for event in handled),
        twice_in_one_process=sum(times > 1 for times in by_process.values()),
        late_p50_ms=lateness[len(lateness) // 2],
        late_p99_ms=lateness[len(lateness) * 99 // 100],
        late_max_ms=lateness[-1],
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
    """Timers that were handled again after a consumer was killed.

    Args:
        in_flight: First handled by a process that was killed before the acknowledgement can have reached the broker;
            README's limits allow these: a crash between a handler's return and its acknowledgement.
        settled: First handled by a process whose acknowledgement had returned long enough before; must be 0.
        copied: Another stored copy of the timer was handled: a hop of the late lane, which a killed relay left twice.
        max_after_one_kill: The largest part of ``in_flight`` that a single kill caused.
    """

    in_flight: int
    settled: int
    copied: int
    max_after_one_kill: int


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
