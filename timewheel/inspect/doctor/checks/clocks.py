"""Checks of clock differences: the local clock, a broker's clock, and those of recent producers."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.admin.brokers import BrokerTime
from timewheel.core.durations import MINUTE_MS, SECOND_MS, format_duration, span
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Newest, Part, Seen, SeenTopic, Source

CLOCK_OFF = Kind(
    slug="clock-differs",
    severity=Severity.ERROR,
    why="Timers come late or early by as much as clocks differ, and a plan has room for a fifth of its guard.",
    do="Set the clock of this machine, or the broker's, by NTP.",
)
PRODUCER_AHEAD = Kind(
    slug="producer-ahead",
    severity=Severity.ERROR,
    why="The clock of a producer is ahead: its timers leave late, and may keep the timers behind them waiting.",
    do="Set the clock of the producer's machine by NTP.",
)
PRODUCER_BEHIND = Kind(
    slug="producer-behind",
    severity=Severity.ERROR,
    why="The clock of a producer is behind: its timers with deliver_after are due too early, by as much.",
    do="Set the clock of the producer's machine by NTP.",
)
SEND_WAIT_MS = 30 * SECOND_MS
"""Longest time that a message waits in its client before it is stored: by default, clients then give up."""
MAX_NAMED = 3
USUAL_SKEW_MS = MINUTE_MS
"""Smaller differences do not matter to a plan with the usual guard."""


def _offsets_ms(time: BrokerTime) -> tuple[int, int]:
    """Return the least and the greatest offset of the broker's clock from the local clock (negative: behind)."""
    # The answer is in whole seconds: the clock showed it, or up to a second later, at a moment between request and
    # answer.
    return time.reported_ms - time.answered_ms, time.reported_ms + SECOND_MS - time.asked_ms


def offset_ms(time: BrokerTime) -> int:
    """Return the certain offset of the broker's clock from the local clock (negative: behind); 0 if it may be none."""
    least, most = _offsets_ms(time)
    return least if least > 0 else min(0, most)


def producer_off_ms(newest: Newest, time: BrokerTime | None) -> int:
    """Return the certain offset of a producer's clock from the broker's clock (negative: behind), from a message.

    The message was sent before it was stored, and stored before it was seen. It was stored after it was seen to be
    absent, and after its ledger was opened; and it was sent at most `SEND_WAIT_MS` before that.

    Args:
        newest: The message.
        time: The broker's clock; None to assume that it equals the local clock.

    Returns:
        The offset in milliseconds; 0 if it may be none.
    """
    least, most = (0, 0) if time is None else _offsets_ms(time)
    ahead_ms = newest.published_ms - (newest.seen_ms + most)
    if ahead_ms > 0:
        return ahead_ms
    stored_after_ms = [newest.ledger_since_ms, None if newest.absent_ms is None else newest.absent_ms + least]
    sent_after_ms = max((one for one in stored_after_ms if one is not None), default=0) - SEND_WAIT_MS
    return min(newest.published_ms - sent_after_ms, 0)


def _broker(seen: Seen) -> Iterator[Finding]:
    skew_ms = _allowed_ms(seen)
    off_ms = 0 if seen.time is None else offset_ms(seen.time)
    if abs(off_ms) > skew_ms:
        side = "ahead of" if off_ms > 0 else "behind"
        yield Finding(
            kind=CLOCK_OFF,
            subject="the broker",
            read=f"its clock is {span(abs(off_ms))} {side} this machine's; {format_duration(skew_ms)} is allowed",
            cure="timedatectl set-ntp true",
        )


def _producers(seen: Seen) -> Iterator[Finding]:
    skew_ms = _allowed_ms(seen)
    for topic in seen.topics:
        off: dict[tuple[Kind, str], tuple[int, Part]] = {}
        for part in topic.parts:
            for newest in (part.newest, part.later):
                off_ms = 0 if newest is None else producer_off_ms(newest, seen.time)
                if newest is not None and abs(off_ms) > skew_ms:
                    who = PRODUCER_AHEAD if off_ms > 0 else PRODUCER_BEHIND, newest.producer
                    off[who] = max(off.get(who, (0, part)), (abs(off_ms), part), key=lambda one: one[0])
        for kind in (PRODUCER_AHEAD, PRODUCER_BEHIND):
            found = [(by_ms, producer, part) for (of, producer), (by_ms, part) in off.items() if of is kind]
            if found:
                yield _off(kind, topic, sorted(found, key=lambda one: -one[0]))


def _off(kind: Kind, topic: SeenTopic, found: list[tuple[int, str, Part]]) -> Finding:
    side = "ahead of" if kind is PRODUCER_AHEAD else "behind"
    named = "; ".join(
        f"the clock of producer {producer}{_address(part, producer)} is at least {span(by_ms)} {side} the "
        f"broker's, by a message in {part.name}"
        for by_ms, producer, part in found[:MAX_NAMED]
    )
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return Finding(kind=kind, subject=topic.name, read=named + more, cure="timedatectl set-ntp true")


def _address(part: Part, producer: str) -> str:
    """Return the producer's address if it is still connected."""
    return next((f" ({one.address})" for one in part.stats.producers if one.name == producer and one.address), "")


def _allowed_ms(seen: Seen) -> int:
    return USUAL_SKEW_MS if seen.plan is None else seen.plan.skew_ms


CLOCKS = (
    Check(kinds=(CLOCK_OFF,), inspect=_broker, needs=frozenset({Source.TIME}), of_any_topic=True),
    Check(
        kinds=(PRODUCER_AHEAD, PRODUCER_BEHIND),
        inspect=_producers,
        needs=frozenset({Source.TOPICS, Source.ENTRIES}),
        of_any_topic=True,
    ),
)
