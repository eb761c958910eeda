"""Shadows that work wrongly, for controls: what they lose the judge of all plays must find.

As a program it is the command line with one thing put wrong: ``python -m tests.support.wrong_shadow RULES shadow run
PLAN``. The product has no switch for any of this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal, cast

from timewheel.cli.app import main
from timewheel.core.envelope import Envelope
from timewheel.core.next_hop import Hop, NextHop
from timewheel.core.routing import Due
from timewheel.shadow.driver.copies import Copies
from timewheel.shadow.driver.lift_session import LiftSession

__all__ = ["ShadowRules", "wrong_shadow"]

ShadowRules = Literal["strikes-first", "named-late-lane"]
"""``strikes-first``: originals are acknowledged as soon as their copies are handed over, before these are stored.
``named-late-lane``: what would overshoot goes where the clock says, and by the producer with a name and numbers, as if
the clock could not say something else at a replay."""


def wrong_shadow(rules: ShadowRules) -> tuple[str, str]:
    """What `tests.support.shadow_play.ShadowPlay` runs as a module."""
    return __name__, rules


def strike_first() -> None:
    right_lift_all, right_lift, right_add = LiftSession._lift_all, LiftSession._lift, Copies.add

    def lift_all(session: Any, reader: Any, striker: Any, acked: Any) -> None:
        session.striker, session._copies.added = striker, []
        right_lift_all(session, reader, striker, acked)

    def lift(session: Any, entries: Any, acked: Any, now_ms: int) -> None:
        right_lift(session, entries, acked, now_ms)
        added, session._copies.added = session._copies.added, []
        session.striker.strike(added)

    def add(copies: Any, original: Any, version: int, place: Any, properties: Any) -> None:
        right_add(copies, original, version, place, properties)
        copies.added.append(place)

    _replace(LiftSession, _lift_all=lift_all, _lift=lift)
    _replace(Copies, add=add)


def name_the_late_lane() -> None:
    def late(hops: Any, envelope: Envelope, now_ms: int) -> Hop:
        route = hops._router.route(envelope.due_ms, now_ms, envelope.life.only_for)
        is_due = isinstance(route, Due)
        latest_ms = None if is_due else hops._router.latest_entry_ms(route, envelope.due_ms)
        return Hop(route.topic, route.deliver_at_ms, envelope.hopped(now_ms), is_due, False, latest_ms)

    _replace(NextHop, _late=late)


def _replace(kind: type, **methods: Callable[..., Any]) -> None:
    for name, method in methods.items():
        setattr(kind, name, method)


WRONG: dict[ShadowRules, Callable[[], None]] = {
    "strikes-first": strike_first,
    "named-late-lane": name_the_late_lane,
}

if __name__ == "__main__":
    WRONG[cast("ShadowRules", sys.argv.pop(1))]()
    main()
