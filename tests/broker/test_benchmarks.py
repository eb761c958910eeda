"""Every benchmark that needs a broker, at its tiniest size: that it runs and measures what it says, never how fast."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import herd, producer, unload
from benchmarks.result import table
from timewheel.broker.admin.client import AdminClient

if TYPE_CHECKING:
    from timewheel.testing import Broker

DAY_MS = 86_400_000


@pytest.mark.short
def test_unload_finds_each_schemes_share_in_its_due_topic_and_leaves_no_topic(
    pulsar_broker: Broker, pulsar_client: Any
) -> None:
    # 600 timers over 30 days: about 20 in the day that the due topics of all but native hold, and never half of them.
    results = unload.compare(pulsar_client, pulsar_broker, timers=600, rounds=1)

    shares = {result.subject: int(result.figures["pending"]) for result in results}
    assert shares.pop("native, raw client") == 600
    assert len(shares) == 4
    assert all(0 < share < 300 for share in shares.values()), shares
    assert all(float(result.figures["silent, s"]) > 0 for result in results)
    assert json.loads(json.dumps([asdict(result) for result in results]))[0]["figures"]["pending in all"] == 600
    with AdminClient(pulsar_broker.admin_url) as admin:
        assert not [topic for topic in admin.topics.list_partitioned("public/default") if "bench-unload" in topic]


@pytest.mark.parametrize("at_ms", [1_763_696_100_000, 1_763_769_599_999, 1_763_769_600_000, 4_102_444_800_000])
def test_unloads_day_has_just_begun_at_any_hour(at_ms: int) -> None:
    day_ms = unload.day_that_has_just_begun_ms(at_ms)

    assert DAY_MS - 5_000 < day_ms <= DAY_MS
    # Each day since 1970 gives away less than 1 ms, and until 2100 there are fewer than 48,000 of them.
    assert unload.BEGUN_MS <= at_ms % day_ms < unload.BEGUN_MS + 48_000


@pytest.mark.parametrize("where", ["tier", "due"])
def test_producer_compares_both_ways(where: str, pulsar_broker: Broker) -> None:
    result = producer.compare(pulsar_broker, where, messages=50, pairs=2)

    assert float(result.figures["ratio"]) > 0
    assert result.met is not None
    assert result.subject in table([result])


def test_herd_counts_what_is_lost_twice_early_late_and_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    later, size = herd.LATER, herd.Size(timers=4, unit_ms=1_000, goal=0.8)
    assert len(size.dues_ms(0)) == size.timers + later
    clocked = herd.Clocked(size.timers + later)
    handled = [(0, 10_000, 10_010), (1, 10_500, 10_499), (0, 10_000, 11_000), (2, 10_200, 12_000), (4, 20_000, 20_000)]
    for number, due_ms, at_ms in handled:
        monkeypatch.setattr(herd, "now_ms", lambda at_ms=at_ms: at_ms)
        assert clocked.note(number, due_ms), "some are missing"

    seen = herd.Seen.by([clocked.ended()])

    assert (seen.timers, seen.twice, seen.early, seen.passed_s) == (4, 1, 1, 0.3)
    assert seen.per_s == 3 / 2.0, "three of the herd, from the first due time to when the last was handled"
    assert seen.late_s == (-0.001, 0.01, 1.8, 1.8)
    assert seen.mb > 1
    found = herd.result("ours", seen, size, raw=seen)
    assert found.met is False, "one is missing and one came early"
    assert found.figures["lost"] == later


def test_herd_counts_what_two_consumers_handle() -> None:
    both = [herd.Clocked(2 + herd.LATER) for _ in range(2)]
    for one, number in ((0, 0), (1, 0), (1, 1), (1, 2)):
        both[one].note(number, 10_000)
    seen = herd.Seen.by([one.ended() for one in both])
    assert (seen.timers, seen.twice, seen.least_share) == (3, 1, 0.25)
