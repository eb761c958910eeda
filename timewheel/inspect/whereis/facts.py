"""Convert the whereabouts of a timer to plain values, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from timewheel.inspect.whereis.verdict import Sighting, Whereabouts


def whereabouts_facts(found: Whereabouts) -> dict[str, Any]:
    """Return everything known about a timer."""
    sent, cancellation = found.wanted.sent, found.cancellation
    return {
        "timer_id": found.wanted.timer_id,
        "at_ms": found.at_ms,
        "state": found.state.value,
        "sent_from_ms": sent.first_ms if found.wanted.knows_sent else None,
        "sent_to_ms": sent.last_ms if found.wanted.knows_sent else None,
        "due_ms": found.due_ms,
        "here": None if found.here is None else _sighting(found.here),
        "seen": [_sighting(one) for one in found.sightings],
        "way": [
            {
                "topic": stop.topic,
                "enters_ms": stop.entered.first_ms,
                "leaves_ms": stop.leaves_ms,
                "is_due_topic": stop.is_due,
            }
            for stop in found.way
        ],
        "reason": found.reason,
        "cancellation": None
        if cancellation is None
        else {cancellation.kind: cancellation.name, "cut": cancellation.cut, "forget_ms": cancellation.forget_ms},
        "searched": [asdict(one) for one in found.searched],
        "unseen": [asdict(one) for one in found.unseen],
        **asdict(found.cost),
    }


def _sighting(one: Sighting) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "position": one.position.text,
        "published_ms": one.published_ms,
        "entered_ms": one.envelope.entered_ms,
        "hops": one.envelope.hops,
        "generation": one.envelope.generation,
        "revision": one.envelope.revision,
        "waits_for": list(one.waits_for),
        "done_by": list(one.done_by),
    }
