"""What a topic's statistics say of its subscriptions: where a shadow may stay, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shadow.test_standing import PLAN
from tests.support.manual_clock import ManualClock
from timewheel.broker.admin.stats import SHADOW_ACKER, PartitionedStats, TopicStats, read_topic_stats
from timewheel.client.hooks import Hooks
from timewheel.core.errors import AdminError, AdminMissing
from timewheel.core.names import parts_of
from timewheel.shadow.driver.inspector import AT_LEAST_MS, SILENT_MS, Subscription, TopicInspector

PARTS = parts_of(PLAN.due_topic, PLAN.partitions)


class MadeUpAdmin:
    """Answers as it is told."""

    def __init__(self, **subscriptions: tuple[str, tuple[str, ...]]) -> None:
        self.topics = self.subscriptions = self
        self.stored = subscriptions
        self.answer: tuple[str, ...] | AdminError = ()
        self.takes_ms = self.asked = 0
        self.clock = ManualClock()

    def properties(self, _topic: str) -> dict[str, str]:
        return {}

    def partitioned_stats(self, _topic: str, *, clients: bool) -> PartitionedStats:
        assert clients, "else it is not known who is connected"
        self.clock.advance(self.takes_ms)
        self.asked += 1
        found = dict.fromkeys(PARTS, self._stats())
        return PartitionedStats(partition_count=len(PARTS), total=self._stats(), partitions=found)

    def _stats(self) -> TopicStats:
        stored = {
            name: {"type": kind, "consumers": [{"consumerName": one} for one in consumers]}
            for name, (kind, consumers) in self.stored.items()
        }
        return read_topic_stats({"subscriptions": stored}, clients=True)

    def list(self, _topic: str) -> tuple[str, ...]:
        if isinstance(self.answer, AdminError):
            raise self.answer
        return self.answer


def inspector_on(admin: MadeUpAdmin) -> TopicInspector:
    made_up: Any = admin
    return TopicInspector(made_up, PLAN, admin.clock, Hooks(()))


SEEN = [
    (("Shared", ("a",)), {"joins": True}),
    (("Shared", ("a", SHADOW_ACKER)), {"joins": True}),
    (("Shared", (SHADOW_ACKER,)), {"joins": False}),
    (("Shared", ()), {"joins": False}),
    (("None", ()), {"joins": False}),
    (("Key_Shared", ("a",)), {"joins": False, "by_key": True}),
    (("Exclusive", ("a",)), {"joins": False, "delays": False}),
    (("Failover", ("a", "b")), {"joins": False, "delays": False}),
]


@pytest.mark.parametrize(("stored", "wanted"), SEEN)
def test_a_shadow_stays_where_others_share(stored: tuple[str, tuple[str, ...]], wanted: dict[str, bool]) -> None:
    inspector = inspector_on(MadeUpAdmin(billing=stored))
    inspector.inspect()
    assert inspector.subscriptions(PARTS[0]) == (Subscription("billing", **wanted),)


@pytest.mark.parametrize(
    ("answer", "there"),
    [
        (("billing", "audit"), frozenset({"billing", "audit"})),
        (AdminMissing(404, "GET", "no such topic"), frozenset()),
        (AdminError(500, "GET", "oops"), None),
    ],
)
def test_what_is_there_now_is_told_by_the_broker(answer: Any, there: frozenset[str] | None) -> None:
    admin = MadeUpAdmin()
    admin.answer = answer
    assert inspector_on(admin).there_now(PARTS[0]) == there


def test_an_admin_api_that_does_not_answer_is_left_alone_for_a_while() -> None:
    admin = MadeUpAdmin()
    admin.answer = AdminError(503, "GET", "oops")
    inspector = inspector_on(admin)
    assert inspector.there_now(PARTS[0]) is None
    admin.answer = ("billing",)
    admin.clock.advance(SILENT_MS - 1)
    assert inspector.there_now(PARTS[0]) is None
    admin.clock.advance(1)
    assert inspector.there_now(PARTS[0]) == frozenset({"billing"})


@pytest.mark.parametrize(
    ("took_ms", "again_after_ms"),
    [(0, 0), (5, 0), (50, 0), (51, 1_020), (200, 4_000), (1_000, 20_000), (1_500, 30_000), (60_000, AT_LEAST_MS)],
)
def test_it_is_asked_again_after_twenty_times_what_the_answer_took(took_ms: int, again_after_ms: int) -> None:
    admin = MadeUpAdmin(billing=("Shared", ("a",)))
    admin.takes_ms = took_ms
    inspector = inspector_on(admin)
    inspector.inspect()
    admin.clock.advance(max(again_after_ms - 1, 0))
    inspector.inspect()
    assert admin.asked == (1 if again_after_ms else 2)
    admin.clock.advance(1)
    inspector.inspect()
    assert admin.asked == (2 if again_after_ms else 3)


def test_a_look_that_is_wanted_soon_asks_whatever_it_costs() -> None:
    admin = MadeUpAdmin(billing=("Shared", ("a",)))
    admin.takes_ms = 2_000
    inspector = inspector_on(admin)
    inspector.inspect()
    inspector.inspect()
    assert admin.asked == 1
    inspector.inspect_soon()
    inspector.inspect()
    assert admin.asked == 2
