"""Shadows that work wrongly, for controls: what they lose the judge of all plays must find.

As a program it is the command line with one thing put wrong: ``python -m tests.support.wrong_shadow RULES shadow run
PLAN``. The product has no switch for any of this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal, get_args

from timewheel.cli.app import main
from timewheel.core.envelope import Envelope
from timewheel.core.next_hop import Hop, NextHop
from timewheel.core.routing import Due
from timewheel.shadow.driver.lift_session import LiftSession

__all__ = ["ShadowRules", "wrong_shadow"]

ShadowRules = Literal["strikes-first", "named-late-lane"]
"""``strikes-first``: originals are acknowledged as soon as their copies are on their way, before one of these is stored.
``named-late-lane``: what would overshoot goes where the clock says, and by the producer with a name and numbers, as if
the clock could not say something else at a replay."""


def wrong_shadow(rules: ShadowRules) -> tuple[str, str]:
    """What `tests.support.shadow_play.ShadowPlay` runs as a module."""
    return __name__, rules


def strike_first() -> None:
    right_lift_all, right_take, right_lift = LiftSession._lift_all, LiftSession._take, LiftSession._lift

    def lift_all(session: Any, reader: Any, striker: Any, acked: Any) -> None:
        session.striker, session.taken = striker, []
        right_lift_all(session, reader, striker, acked)

    def take(session: Any, entry: Any, now_ms: int) -> None:
        before = session._ordinal
        right_take(session, entry, now_ms)
        if session._ordinal > before:
            session.taken.append(entry.position)

    def lift(session: Any, entries: Any, acked: Any, now_ms: int) -> None:
        right_lift(session, entries, acked, now_ms)
        if session.taken:
            session.striker.strike(session.taken)
            session.taken = []

    LiftSession._lift_all, LiftSession._take, LiftSession._lift = lift_all, take, lift  # type: ignore[method-assign]


def name_the_late_lane() -> None:
    def late(hops: Any, envelope: Envelope, now_ms: int) -> Hop:
        route = hops._router.route(envelope.due_ms, now_ms, envelope.life.only_for)
        is_due = isinstance(route, Due)
        latest_ms = None if is_due else hops._router.latest_entry_ms(route, envelope.due_ms)
        return Hop(route.topic, route.deliver_at_ms, envelope.hopped(now_ms), is_due, False, latest_ms)

    NextHop._late = late  # type: ignore[method-assign]


WRONG: dict[ShadowRules, Callable[[], None]] = {
    "strikes-first": strike_first,
    "named-late-lane": name_the_late_lane,
}

if __name__ == "__main__":
    chosen = sys.argv.pop(1)
    assert chosen in get_args(ShadowRules), chosen
    WRONG[chosen]()
    main()
