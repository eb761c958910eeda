"""Reports unreadable data, so that a missing finding is not mistaken for health."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.core.escapes import timewheel_command
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen

NOT_SEEN = Kind(
    slug="not-seen",
    severity=Severity.INFO,
    why="Checks that need unreadable data were left out, and may have found a problem.",
    do="Use a role that may see it; brokers and bookies take a superuser.",
)


def _sight(seen: Seen) -> Iterator[Finding]:
    for one in seen.unread:
        yield Finding(
            kind=NOT_SEEN,
            subject=one.subject,
            read=f"{one.source.value}: {one.reason}",
            cure=timewheel_command("doctor", seen.target, "--token-file", "TOKEN-OF-A-ROLE-THAT-MAY"),
        )


SIGHT = (Check(kinds=(NOT_SEEN,), inspect=_sight, needs=frozenset(), of_any_topic=True),)
