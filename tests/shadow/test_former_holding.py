"""Which topics of earlier plans a look reads, in which order, and what it says where it may not list them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.core.plan_space import DUE_TOPIC, NOW_MS
from tests.support.plans import plan_of
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.errors import AdminDenied
from timewheel.core.names import RELAY_SUBSCRIPTION, namespace_of, partition_topic
from timewheel.core.plan import Ring, Tiered, Wheel
from timewheel.core.topology import topology
from timewheel.inspect.reader import Reader
from timewheel.shadow.draining import former_backlogs, former_partitions

SCHEME = Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 2 * DAY_MS))
PLAN = plan_of(SCHEME, relay="service", intake=True, partitions=2, former_namespaces=("acme/then",))
FORMER = (
    replace(PLAN, scheme=replace(SCHEME, tiers_ms=(HOUR_MS, 12 * HOUR_MS, DAY_MS))),
    replace(PLAN, scheme=Wheel(rings=(Ring(slot_ms=DAY_MS, slots=4),)), max_delay_ms=2 * DAY_MS),
)
DENIED = "acme/then"


class _Topics:
    """Lists what the plans have made in the due topic's namespace; the former one's it may not list."""

    def list(self, namespace: str) -> tuple[str, ...]:
        if namespace == DENIED:
            raise AdminDenied(401, f"GET /persistent/{namespace}", "it may not")
        assert namespace == namespace_of(DUE_TOPIC)
        specs = {spec.name: spec for plan in (PLAN, *FORMER) for spec in topology(plan, NOW_MS).topics}
        return tuple(sorted(part for spec in specs.values() for part in spec.parts))

    def stats(self, name: str, **_: Any) -> Any:
        backlog = 3 if name == partition_topic(f"{DUE_TOPIC}.tw.tier-1d", 1) else 0
        return SimpleNamespace(
            publishers=0, subscriptions={RELAY_SUBSCRIPTION: SimpleNamespace(backlog=backlog, consumers=())}
        )


ADMIN: Any = SimpleNamespace(topics=_Topics())


def test_what_holds_longest_is_read_first_and_topics_of_the_plan_are_not_among_them() -> None:
    found = former_partitions(Reader(ADMIN), PLAN)
    assert found.keys() == {0, 1}
    ring = [f"ring-1d-4.{slot:03d}-partition-1" for slot in range(4)]
    assert [name.removeprefix(f"{DUE_TOPIC}.tw.") for name in found[1]] == [
        *ring,
        "tier-1d-partition-1",
        "tier-12h-partition-1",
    ]


def test_only_those_in_which_something_waits_are_told() -> None:
    found = former_backlogs(Reader(ADMIN), PLAN)
    assert {topic.name: entries for topic, entries in found.items()} == {f"{DUE_TOPIC}.tw.tier-1d": 3}


def test_where_topics_may_not_be_listed_that_is_said_and_the_rest_is_seen() -> None:
    for inspect in (former_partitions, former_backlogs):
        reads = Reader(ADMIN)
        assert inspect(reads, PLAN)
        (unread,) = reads.unseen
        assert unread.what == f"topics of earlier plans in {DENIED}"
        assert "may not" in unread.reason
