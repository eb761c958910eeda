"""Shadows that work wrongly, for controls: the judge of all plays must find the losses.

As a program it is the command line with an error, or without: ``python -m tests.support.wrong_shadow RULES shadow run
PLAN``. While a file `STALLED` is beside the plan, hops from a tier into a holding topic are not sent, as while that
topic is unloaded. The product has no switch for any of this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

from timewheel.cli.app import main
from timewheel.core.envelope import FROM_PROPERTY, Envelope
from timewheel.core.next_hop import Hop, NextHop
from timewheel.core.routing import Due
from timewheel.relay.driver.hop_producers import HopBatch, HopBatches
from timewheel.shadow.driver.copies import Copies
from timewheel.shadow.driver.mover import MoveSession
from timewheel.shadow.machine.move_decider import moved_from

STALLED = "stalled"

ShadowRules = Literal["right", "acks-first", "named-late-lane"]
"""``acks-first``: originals are acknowledged as soon as their copies are passed to the client, before the copies are
stored. ``named-late-lane``: late hops go where the clock says, by the producer with a name and numbers, although the
clock could choose another destination at a replay.
"""


def shadow_by(rules: ShadowRules) -> tuple[str, str]:
    """Return the module that `tests.support.shadow_play.ShadowPlay` runs for these rules."""
    return __name__, rules


def ack_first() -> None:
    right_move, right_add = MoveSession._move, Copies.add

    def move(session: Any, entries: Any, now_ms: int) -> None:
        added: list[Any] = []
        session._copies.added = added
        right_move(session, entries, now_ms)
        session._acker.ack(added)

    def add(copies: Any, original: Any, version: int, properties: Any) -> None:
        right_add(copies, original, version, properties)
        found = moved_from(properties[FROM_PROPERTY])
        assert found is not None
        copies.added.append(found[0])

    _replace(MoveSession, _move=move)
    _replace(Copies, add=add)


def name_the_late_lane() -> None:
    def late(hops: Any, envelope: Envelope, now_ms: int) -> Hop:
        route = hops._router.route(envelope.due_ms, now_ms, envelope.life.only_for)
        is_due = isinstance(route, Due)
        latest_ms = None if is_due else hops._router.latest_entry_ms(route, envelope.due_ms)
        return Hop(route.topic, route.deliver_at_ms, envelope.hopped(now_ms), is_due, False, latest_ms)

    _replace(NextHop, _late=late)


def stall(while_there: Path) -> None:
    right_send = HopBatches._send

    def send(groups: Any, group: HopBatch) -> None:
        if ".tw.tier-" not in groups._hops.source or not while_there.exists():
            right_send(groups, group)

    _replace(HopBatches, _send=send)


def _replace(kind: type, **methods: Callable[..., Any]) -> None:
    for name, method in methods.items():
        assert hasattr(kind, name), f"{kind.__name__} has no {name} any more"
        setattr(kind, name, method)


PUT: dict[ShadowRules, Callable[[], None]] = {
    "right": lambda: None,
    "acks-first": ack_first,
    "named-late-lane": name_the_late_lane,
}

if __name__ == "__main__":
    PUT[cast("ShadowRules", sys.argv.pop(1))]()
    stall(Path(sys.argv[3]).parent / STALLED)
    main()
