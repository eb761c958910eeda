"""Convert a status to plain values, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from timewheel.inspect.status.horizon import Amount, Horizon
from timewheel.inspect.status.places import PlaceStatus, Status
from timewheel.provision.former_findings import left_behind


def status_facts(found: Status) -> dict[str, Any]:
    """Return everything known about a plan."""
    horizon = found.horizon
    return {
        "due_topic": found.plan.due_topic,
        "at_ms": found.at_ms,
        "timers": _amount(found.timers),
        "cancelled": None if found.cancelled is None else _amount(found.cancelled),
        "horizon": _stretches(found.by_stretch(), horizon, empty=True),
        "topics": [
            {
                "topic": one.topic,
                "kind": one.kind,
                "entries": one.entries,
                "timers": _amount(one.timers),
                "horizon": _stretches(one.by_stretch, horizon),
                "late_ms": one.late_ms,
                "consumers": one.consumers,
            }
            for one in found.topics()
        ],
        "partitions": [_place(place, horizon) for place in found.places],
        "relay_late_ms": found.relay_late_ms,
        "relays": {name: [place.topic for place in places] for name, places in found.relays().items()},
        "unattended": [place.topic for place in found.unattended()],
        "dead_letters": found.dead_letters,
        "parked": found.parked,
        "former": [
            {"topic": one.name, "entries": one.backlog, "left_behind": one in left_behind(found.plan, found.former)}
            for one in found.former
        ],
        "missing": list(found.missing),
        "read": found.read,
        "unseen": [asdict(one) for one in found.unseen],
    }


def _place(place: PlaceStatus, horizon: Horizon) -> dict[str, Any]:
    head = place.head
    return {
        "topic": place.topic,
        "kind": place.kind,
        "subscription": place.subscription,
        "entries": place.entries,
        "timers": _amount(place.timers),
        "horizon": _stretches(place.by_stretch, horizon),
        "head": None
        if head is None
        else {
            "position": head.position.text,
            "due_ms": head.due_ms,
            "leaves_ms": head.leaves_ms,
            "late_ms": head.late_ms,
        },
        "consumers": [asdict(one) for one in place.consumers],
    }


def _stretches(amounts: tuple[Amount, ...], horizon: Horizon, *, empty: bool = False) -> list[dict[str, Any]]:
    return [
        {"name": bucket.name, "from_ms": bucket.from_ms, "until_ms": bucket.until_ms, **_amount(amount)}
        for bucket, amount in zip(horizon.buckets, amounts, strict=True)
        if empty or amount.count or amount.error
    ]


def _amount(amount: Amount) -> dict[str, int]:
    return {"count": round(amount.count), "error": round(amount.error)}
