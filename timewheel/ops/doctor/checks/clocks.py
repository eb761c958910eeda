"""Clocks that differ: this machine's, a broker's, and those of whoever sent a moment ago."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.admin.brokers import BrokerTime
from timewheel.core.durations import MINUTE_MS, SECOND_MS, format_duration
from timewheel.ops.doctor.check import Check
from timewheel.ops.doctor.finding import Finding, Kind, Severity
from timewheel.ops.doctor.seen import Seen, Source

__all__ = ["CLOCKS", "CLOCK_OFF", "PRODUCER_AHEAD", "offset_ms"]

CLOCK_OFF = Kind(
    slug="clock-differs",
    severity=Severity.ERROR,
    why="Timers come late or early by as much as clocks differ, and a plan has room for a fifth of its guard.",
    do="Set the clock of this machine, or the broker's, by NTP.",
)
PRODUCER_AHEAD = Kind(
    slug="producer-ahead",
    severity=Severity.ERROR,
    why="The clock of a producer is ahead: what it sends leaves late, and may keep the timers behind it waiting.",
    do="Set the clock of the producer's machine by NTP.",
)
USUAL_SKEW_MS = MINUTE_MS
"""What differs by less is no matter to a plan with the usual guard."""


def offset_ms(time: BrokerTime) -> int:
    """By how much the broker's clock is certainly ahead of this machine's (below 0: behind); 0: perhaps not at all."""
    # It said a whole second: it showed that, or up to a second later, at some moment between question and answer.
    least, most = time.told_ms - time.answered_ms, time.told_ms + SECOND_MS - time.asked_ms
    return least if least > 0 else min(0, most)


def _broker(seen: Seen) -> Iterator[Finding]:
    skew_ms = _allowed_ms(seen)
    off_ms = 0 if seen.time is None else offset_ms(seen.time)
    if abs(off_ms) > skew_ms:
        side = "ahead of" if off_ms > 0 else "behind"
        yield Finding(
            kind=CLOCK_OFF,
            subject="the broker",
            read=f"its clock is {format_duration(abs(off_ms))} {side} this machine's; {format_duration(skew_ms)} is "
            "allowed",
            cure="timedatectl set-ntp true",
        )


def _producers(seen: Seen) -> Iterator[Finding]:
    skew_ms = _allowed_ms(seen)
    for topic in seen.topics:
        ahead = [
            (part.newest.published_ms - part.newest.seen_ms, part.newest.producer, part.name)
            for part in topic.parts
            if part.newest is not None and part.newest.published_ms - part.newest.seen_ms > skew_ms
        ]
        if ahead:
            ahead_ms, producer, part = max(ahead)
            yield Finding(
                kind=PRODUCER_AHEAD,
                subject=topic.name,
                read=f"the last message of {part}, of producer {producer}, was sent {format_duration(ahead_ms)} "
                "from now, by its producer's clock",
                cure="timedatectl set-ntp true",
            )


def _allowed_ms(seen: Seen) -> int:
    return USUAL_SKEW_MS if seen.plan is None else seen.plan.skew_ms


CLOCKS = (
    Check(kinds=(CLOCK_OFF,), look=_broker, needs=frozenset({Source.TIME}), of_any_topic=True),
    Check(
        kinds=(PRODUCER_AHEAD,), look=_producers, needs=frozenset({Source.TOPICS, Source.ENTRIES}), of_any_topic=True
    ),
)
