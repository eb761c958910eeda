"""The test vectors beside docs/specification.md: results of the core for chosen cases, for other implementations.

As a program it writes them; `make docs-tables` runs it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.checkout import ROOT
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.envelope import MAX_TIME_MS, MAX_TIMER_ID_CHARS, MIN_DUE_MS, Envelope, Life
from timewheel.core.errors import EnvelopeError, EnvelopeTooNew
from timewheel.core.names import Names, java_string_hash, partition_for_key
from timewheel.core.plan import Calendar, Cancel, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.planfile import dump_plan
from timewheel.core.routing import Hold, Router
from timewheel.core.steps import hop_bound, steps
from timewheel.relay.machine.readings import ENTERED_SLACK_MS, Reading, parsed, taken_in

PAGE = ROOT / "docs" / "specification-vectors.json"

ENTERED = 1_767_139_200_000  # 2025-12-31T00:00:00Z
DUE = ENTERED + DAY_MS
PLACE = "persistent://acme/crm/reminders.tw.intake-partition-3:17:42"

LINES = (
    f"1 {DUE} 0 0 {ENTERED} 1",
    f"1 {DUE} 7 2 {ENTERED} 3",
    f"1 0{DUE} 00 02 {ENTERED} 3",
    f"1 {MAX_TIME_MS} 999999999 999999 {MAX_TIME_MS} 9999999999",
    "1 0 0 0 0 0",
    f"2 {DUE} 1767139200000123 0 {ENTERED} 3 0 0",
    f"2 {DUE} 0 1 {ENTERED} 3 4 {DUE - HOUR_MS}",
    "",
    f"1 {DUE} 0 0 {ENTERED}",
    f"1 {DUE} 0 0 {ENTERED} 1 ",
    f" 1 {DUE} 0 0 {ENTERED} 1",
    f"1  {DUE} 0 0 {ENTERED} 1",
    f"1 {DUE} 0 0 {ENTERED} 1 0 0",
    f"1 -{DUE} 0 0 {ENTERED} 1",
    f"1 {DUE}.5 0 0 {ENTERED} 1",
    f"1 {MAX_TIME_MS + 1} 0 0 {ENTERED} 1",
    f"1 1{DUE}000 0 0 {ENTERED} 1",
    f"1 {DUE} 1000000000 0 {ENTERED} 1",
    f"1 {DUE} 0 1000000 {ENTERED} 1",
    f"1 {DUE} 0 0 {ENTERED} 10000000000",
    f"1 \u0661\u0667 0 0 {ENTERED} 1",
    f"2 {DUE} 0 0 {ENTERED} 3",
    f"2 {DUE} 10000000000000000 0 {ENTERED} 3 0 0",
    f"0 {DUE} 0 0 {ENTERED} 1",
    f"3 {DUE} 0 0 {ENTERED} 1",
    "4 anything at all",
)
LONG = f"2 {DUE} 1767139200000123 0 {ENTERED} 3 0 0"
PROPERTIES: tuple[dict[str, str], ...] = (
    *({"tw-id": "order-7", "tw-timer": line} for line in LINES),
    {"tw-id": "日本 😀", "tw-timer": LINES[0], "colour": "red"},
    {"tw-id": "x" * MAX_TIMER_ID_CHARS, "tw-timer": LINES[0]},
    {"tw-id": "x" * (MAX_TIMER_ID_CHARS + 1), "tw-timer": LINES[0]},
    {"tw-id": "order-7", "tw-timer": LINES[0], "tw-group": "12 user-42", "tw-for": "billing"},
    {"tw-id": "order-7", "tw-timer": LONG, "tw-group": "12 user 42"},
    {"tw-id": "order-7", "tw-timer": LONG, "tw-for": "billing"},
    {"tw-id": "order-7", "tw-timer": LONG, "tw-group": "user-42"},
    {"tw-id": "order-7", "tw-timer": LONG, "tw-group": "12 "},
    {"tw-id": "order-7"},
    {"tw-id": "", "tw-timer": LINES[0]},
    {"tw-timer": LINES[0]},
    {"colour": "red"},
)
WRITTEN = (
    Envelope("order-7", DUE, ENTERED),
    Envelope("order-7", DUE, ENTERED, generation=999_999_999, hops=2, revision=3),
    Envelope("order-7", DUE, ENTERED, generation=1_000_000_000),
    Envelope("order-7", DUE, ENTERED, life=Life(attempt=2, first_due_ms=DUE - HOUR_MS)),
    Envelope("order-7", DUE, ENTERED, life=Life(group="user 42", group_stamp=1_767_139_200_000_123)),
    Envelope("order-7", DUE, ENTERED, life=Life(only_for="billing")),
)

INTAKE_MAX_DELAY_MS = 30 * DAY_MS
INTAKE_PLAN = Plan(
    due_topic="persistent://acme/crm/orders", subscriptions=("billing",), max_delay_ms=INTAKE_MAX_DELAY_MS
)
INTAKE: tuple[dict[str, str], ...] = (
    {"tw-due": str(DUE)},
    {"tw-due": str(DUE), "tw-id": "order-7", "colour": "red"},
    {"tw-due": str(DUE), "tw-id": ""},
    {"tw-due": f"00{DUE}"},
    {"tw-due": "0"},
    {"tw-due": str(DUE // 1_000)},
    {"tw-due": str(MIN_DUE_MS - 1)},
    {"tw-due": str(MIN_DUE_MS)},
    {"tw-due": str(ENTERED + INTAKE_MAX_DELAY_MS)},
    {"tw-due": str(ENTERED + INTAKE_MAX_DELAY_MS + 1)},
    {"tw-due": str(MAX_TIME_MS + 1)},
    {"tw-due": ""},
    {"tw-due": "tomorrow"},
    {"tw-due": "-1"},
    {"tw-due": f"{DUE}.0"},
    {"tw-due": "\u0661\u0667\u0666\u0667"},
    {"tw-due": str(DUE), "tw-id": "x" * (MAX_TIMER_ID_CHARS + 1)},
    {"tw-due": str(DUE), "tw-group": "12 user-42"},
    {"tw-due": str(DUE), "tw-for": "billing"},
    {"tw-id": "order-7", "tw-timer": f"1 {DUE} 0 0 {ENTERED} 3", "tw-due": "tomorrow"},
    {"tw-timer": f"1 {DUE} 0 0 {ENTERED} 3"},
    {"tw-id": "order-7", "tw-timer": f"1 {ENTERED + INTAKE_MAX_DELAY_MS} 0 0 {ENTERED} 3"},
    {"tw-id": "order-7", "tw-timer": f"1 {ENTERED + INTAKE_MAX_DELAY_MS + 1} 0 0 {ENTERED} 3"},
    {"tw-id": "order-7", "tw-timer": f"1 {DUE} 0 0 {ENTERED - ENTERED_SLACK_MS} 3"},
    {"tw-id": "order-7", "tw-timer": f"1 {DUE} 0 7 {ENTERED - ENTERED_SLACK_MS - 1} 3"},
    {"tw-id": "order-7", "tw-timer": f"1 {DUE} 0 0 {ENTERED + ENTERED_SLACK_MS + 1} 3"},
    {"tw-id": "order-7", "tw-timer": f"2 {DUE} 0 0 0 3 4 {DUE}", "tw-for": "billing"},
    {"tw-id": "order-7", "tw-timer": "3 anything at all"},
    {"tw-id": "order-7"},
    {},
)

KEYS = ("", "a", "hello", "Hello World", "polygenelubricants", "customer-7", "é", "Zürich", "日本", "😀", "a😀b")
PARTITIONS = (1, 3, 16)

TOPIC = "persistent://acme/crm/reminders"
SUBSCRIPTIONS = ("crm:billing", "public/default/notifier", "a:b/c d%é", "a?b#c", "x-partition-0")
_TIERS = (12 * HOUR_MS, DAY_MS, 5 * DAY_MS)


def _plan(scheme: Scheme, **more: Any) -> Plan:
    return Plan(due_topic=TOPIC, subscriptions=("billing",), scheme=scheme, **more)


PLANS = {
    "native": _plan(Native()),
    "calendar of days": _plan(Calendar(interval_ms=DAY_MS)),
    "calendar of hours": _plan(Calendar(interval_ms=HOUR_MS), max_delay_ms=2 * DAY_MS),
    "tiers that a relay holds, foreign readers": _plan(
        Tiered(window_ms=12 * HOUR_MS, tiers_ms=_TIERS), partitions=4, relay="service", readers="any", intake=True
    ),
    "tiers that a relay holds, in a namespace of their own": _plan(
        Tiered(window_ms=12 * HOUR_MS, tiers_ms=_TIERS), holding_namespace="acme/timers", cancel=Cancel()
    ),
    "tiers that the broker holds": _plan(Tiered(window_ms=12 * HOUR_MS, tiers_ms=_TIERS, hold="broker")),
    "wheel": _plan(Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=32)))),
}
DELAYS_MS = (
    -HOUR_MS,
    0,
    1_500,
    1_501,
    HOUR_MS,
    12 * HOUR_MS,
    12 * HOUR_MS + 1,
    12 * HOUR_MS + 5 * MINUTE_MS - 1,
    12 * HOUR_MS + 5 * MINUTE_MS,
    DAY_MS,
    29 * HOUR_MS + 90_000,
    17 * DAY_MS,
)


def _said(envelope: Envelope) -> dict[str, Any]:
    """Return the fields of an envelope; optional fields only if it has them."""
    life = envelope.life
    return {
        "id": envelope.timer_id,
        "due_ms": envelope.due_ms,
        "generation": envelope.generation,
        "hops": envelope.hops,
        "entered_ms": envelope.entered_ms,
        "revision": envelope.revision,
        **({"attempt": life.attempt, "first_due_ms": life.first_due_ms} if life.first_due_ms else {}),
        **({"group": life.group, "group_stamp": life.group_stamp} if life.group else {}),
        **({"for": life.only_for} if life.only_for else {}),
    }


def _verdict(reading: Reading) -> dict[str, Any]:
    if isinstance(reading, Envelope):
        return {"timer": _said(reading)}
    if isinstance(reading, EnvelopeTooNew):
        return {"later_version": True}
    return {"refused": reading.reason} if isinstance(reading, EnvelopeError) else {"no_timer": True}


def _taken_in(properties: Mapping[str, str]) -> dict[str, Any]:
    goes_on = dict(properties)
    verdict = _verdict(taken_in(goes_on, ENTERED, PLACE, INTAKE_PLAN))
    return {"properties": dict(properties), **({"goes_on": goes_on} if "timer" in verdict else verdict)}


def _way(router: Router, due_ms: int, at_ms: int) -> Iterator[dict[str, Any]]:
    """Yield the hops from the send to the due topic; each hop is routed at the time at which the previous hop ends."""
    while isinstance(route := router.route(due_ms, at_ms), Hold):
        yield {"topic": route.topic, "deliver_at_ms": route.deliver_at_ms, "release_at_ms": route.release_at_ms}
        at_ms = route.release_at_ms
    yield {"topic": route.topic, "deliver_at_ms": route.deliver_at_ms}


def _of_plan(plan: Plan) -> dict[str, Any]:
    names, router = Names(plan), Router(plan)
    own = {"dead_letter": names.dead_letter} if plan.needs_relay else {}
    if plan.intake:
        own["intake"] = names.intake
        own["journal"] = names.journal
    if plan.cancel is not None:
        own["cancellations"] = names.cancellations
    if plan.keeps_back:
        own["retry"] = names.retry("billing")
    delays = [delay_ms for delay_ms in DELAYS_MS if delay_ms <= plan.max_delay_ms]
    return {
        "plan": tomllib.loads(dump_plan(plan)),
        "lead_ms": plan.lead_ms,
        "hops": hop_bound(plan),
        "names": own,
        "holding": [topic for step in steps(plan) for topic in names.of_step(step)[:2]],
        "ways": [
            {"due_ms": ENTERED + delay_ms, "sent_ms": ENTERED, "way": list(_way(router, ENTERED + delay_ms, ENTERED))}
            for delay_ms in delays
        ],
    }


def vectors() -> dict[str, Any]:
    """Return all vectors."""
    return {
        "format": 1,
        "envelopes_read": [{"properties": given, **_verdict(parsed(dict(given)))} for given in PROPERTIES],
        "envelopes_written": [{"timer": _said(one), "properties": one.properties()} for one in WRITTEN],
        "intake": {
            "publish_ms": ENTERED,
            "place": PLACE,
            "revision": 1,
            "max_delay_ms": INTAKE_MAX_DELAY_MS,
            "messages": [_taken_in(given) for given in INTAKE],
        },
        "keys": [
            {
                "key": key,
                "hash": java_string_hash(key),
                "partition_of": {str(count): partition_for_key(key, count) for count in PARTITIONS},
            }
            for key in KEYS
        ],
        "plans": {name: _of_plan(plan) for name, plan in PLANS.items()},
        "retries": {name: Names(PLANS["native"]).retry(name) for name in SUBSCRIPTIONS},
    }


def _compact(value: Any, depth: int = 0) -> str:
    """Format a value on a line, or each of its parts on a line if it is too long."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(flat) + 2 * depth <= 200:
        return flat
    inner = "  " * (depth + 1)
    if isinstance(value, dict):
        parts = [
            f"{inner}{json.dumps(name, ensure_ascii=False)}: {_compact(one, depth + 1)}" for name, one in value.items()
        ]
        return "{\n" + ",\n".join(parts) + "\n" + "  " * depth + "}"
    return "[\n" + ",\n".join(inner + _compact(one, depth + 1) for one in value) + "\n" + "  " * depth + "]"


def text() -> str:
    """Return the text of the file."""
    return _compact(vectors()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
