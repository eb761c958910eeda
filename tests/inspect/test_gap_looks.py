"""Targets, looks, levels, growth, the log, and what a reload repeats, by a broker whose answers are made up."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.support.broker_stats import cursor_stats, internal_json
from tests.support.forgetting import redelivered_exactly
from tests.support.screen import lines_of
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.parts import whole_topic
from timewheel.broker.admin.stats import SHADOW_ACKER, CursorStats, Ledger
from timewheel.cli.gaps import _screen, _show, aid_of, exit_status, show_snapshot, verdict
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import HOUR_MS, MINUTE_MS
from timewheel.core.plan import Plan, Tiered
from timewheel.core.topology import topology
from timewheel.errors import AdminDenied, GapLogUnreadable, NoSuchTarget
from timewheel.inspect.entries import Run, runs_of
from timewheel.inspect.gaps import GapSnapshot, GapStatus, Level, SubscriptionGaps, Unseen, inspect_gaps, topics_of
from timewheel.inspect.gaps.explain import Cause, Explained, Share, advice_on
from timewheel.inspect.gaps.gap_status import FIRST_AID, FOR_GOOD, by_subscription, reload_of
from timewheel.inspect.gaps.snapshot import (
    EVERYTHING,
    MAX_SNAPSHOTS,
    GapHistory,
    append_snapshot,
    growth_of,
    read_snapshots,
    snapshot_facts,
    with_shadows,
)
from timewheel.inspect.profile import Limit, limit_of

OF_RELOADS = replace(BrokerProfile.named("4.0"), gap_limit_ranges=3, metadata_store_limit_ranges=1)
LEDGER_ENTRIES = 7
FIRST_LEDGER = 100


def ledgers(entries: int, each: int = LEDGER_ENTRIES) -> list[Ledger]:
    """So many entries in ledgers that are full, but for the last."""
    sizes = [min(each, entries - first) for first in range(0, entries, each)]
    return [
        Ledger(ledger_id=FIRST_LEDGER + 3 * number, entries=size, size_bytes=10 * size, offloaded=False)
        for number, size in enumerate(sizes)
    ]


def cursor(acknowledged: list[bool], *, state: str = "Open", cursor_ledger: int = 7) -> CursorStats:
    """As a broker tells of it: ranges end with their ledger, and the mark-delete position is before the first hole."""
    at = [
        (FIRST_LEDGER + 3 * (number // LEDGER_ENTRIES), number % LEDGER_ENTRIES) for number in range(len(acknowledged))
    ]
    hole = acknowledged.index(False) if False in acknowledged else len(acknowledged)
    texts = []
    first: int | None = None
    for number in range(hole, len(acknowledged) + 1):
        inside = number < len(acknowledged) and acknowledged[number]
        ends = first is not None and (not inside or at[number][1] == 0)
        if ends and first is not None:
            (ledger, low), (_, high) = at[first], at[number - 1]
            texts.append(f"({ledger}:{low - 1}..{ledger}:{high}]")
            first = None
        if inside and first is None:
            first = number
    mark = EntryPosition(*at[hole - 1]) if hole else EntryPosition(FIRST_LEDGER, -1)
    acked_text = f"[{','.join(texts)}]"
    return cursor_stats(mark, gap_count=len(texts), cursor_ledger=cursor_ledger, state=state, acked_text=acked_text)


@pytest.mark.parametrize("version", ["4.0", "4.2", "5.0"])
@given(acknowledged=st.lists(st.booleans(), max_size=60), limit=st.integers(0, 12), few=st.integers(0, 6))
def test_what_comes_again_is_what_the_brokers_rule_leaves_out(
    version: str, acknowledged: list[bool], limit: int, few: int
) -> None:
    named = BrokerProfile.named(version)
    profile = replace(named, gap_limit_ranges=limit, metadata_store_limit_ranges=few)

    found = reload_of(cursor(acknowledged), ledgers(len(acknowledged)), profile)

    expected = redelivered_exactly(np.array(acknowledged, np.bool_), LEDGER_ENTRIES, profile, profile.ack_format)
    assert found.again_entries == expected
    assert found.kept_entries + found.again_entries == found.acked_entries
    hole = acknowledged.index(False) if False in acknowledged else len(acknowledged)
    beyond = [number for number, is_acked in enumerate(acknowledged) if is_acked and number > hole]
    assert found.acked_entries == len(beyond)
    assert found.span_entries == (beyond[-1] - hole + 1 if beyond else 0)
    if found.counted_to_limit <= limit and version != "5.0":
        assert found.again_entries == 0
    if found.again_entries and version != "5.0":
        assert found.counted_to_limit > limit


BITMAP = replace(OF_RELOADS, ack_format="bitmap")
ALTERNATING = [False, True] * 14  # four ledgers with 3, 4, 3 and 4 ranges of one entry


@pytest.mark.parametrize(
    ("state", "cursor_ledger", "form", "again"),
    [
        # The first ledger is kept, and the second since those before it have 3, which is within the limit.
        ("Open", 7, "bitmap", 7),
        # Into the metadata store, which takes ranges only: the first four.
        ("NoLedger", 7, "ranges", 10),
        ("Open", -1, "ranges", 10),
    ],
)
def test_a_cursor_without_a_ledger_of_its_own_is_written_as_ranges(
    state: str, cursor_ledger: int, form: str, again: int
) -> None:
    found = reload_of(cursor(ALTERNATING, state=state, cursor_ledger=cursor_ledger), ledgers(28), BITMAP)
    assert (found.form, found.again_entries) == (form, again)


def test_a_range_over_several_ledgers_is_cut_at_their_ends() -> None:
    """As brokers write them that keep no bitmaps in memory."""
    text = "[(100:4..106:1],(106:3..106:4]]"
    ranges = replace(cursor([False]), acked_text=text).acked_ranges()
    assert list(runs_of(ranges, ledgers(21))) == [Run(100, 5, 6), Run(103, 0, 6), Run(106, 0, 1), Run(106, 4, 4)]


PROFILE = replace(BrokerProfile.named("4.0"), gap_limit_ranges=10, metadata_store_limit_ranges=3)


class Cluster:
    """A broker's answers by path; a number is a status."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.later: dict[str, Any] = {}  # by path, what is answered from the second time on
        self.asked: list[str] = []
        self.max_at_once = 0
        self._under_way = 0
        self._lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            self._under_way += 1
            self.max_at_once = max(self.max_at_once, self._under_way)
            path = request.url.path.removeprefix("/admin/v2")
            answer = (self.later if path in self.later and path in self.asked else self.answers).get(path, 404)
            self.asked.append(path)
        with self._lock:
            self._under_way -= 1
        if isinstance(answer, int):
            return httpx.Response(answer, json={"reason": f"status {answer}"})
        return httpx.Response(200, text=answer) if isinstance(answer, str) else httpx.Response(200, json=answer)

    def client(self) -> AdminClient:
        return AdminClient(
            "http://broker:8080", transport=httpx.MockTransport(self), retry_for_s=0, hooks=(lambda _: None,)
        )


ONLY = "persistent://a/b/t"


def looked_at(answers: dict[str, Any], *topics: str, profile: BrokerProfile = PROFILE, **options: Any) -> GapSnapshot:
    """The gaps of these topics, by default of the only one, of a broker with these answers."""
    with Cluster(answers).client() as admin:
        return inspect_gaps(admin, topics or [ONLY], profile, **options)


def stats(gaps: int = 0, **more: Any) -> dict[str, Any]:
    return {"subscriptions": {"s": {"type": "Shared", "nonContiguousDeletedMessagesRanges": gaps, **more}}}


def internal() -> dict[str, Any]:
    """A topic whose subscription has acknowledged every other of 28 entries."""
    own = cursor(ALTERNATING)
    stored = {
        "markDeletePosition": own.mark_delete.text, "readPosition": "109:6", "cursorLedger": 7, "state": "Open",
        "totalNonContiguousDeletedMessagesRange": own.gap_count, "numberOfEntriesSinceFirstNotAckedMessage": 28,
        "messagesConsumedCounter": 14, "individuallyDeletedMessages": own.acked_text,
    }  # fmt: skip
    every = [(ledger.ledger_id, ledger.entries, ledger.size_bytes) for ledger in ledgers(28)]
    return internal_json(every, numberOfEntries=28, lastConfirmedEntry="109:6", cursors={"s": stored})


def gap_status(gaps: int, **facts: Any) -> GapStatus:
    whole: dict[str, Any] = {
        "topic": "persistent://a/b/t", "subscription": "s", "type": "Shared", "gap_count": gaps, "gap_limit": 10,
        "backlog": 0, "delayed": 0, "unacked": 0, "index_bytes": 0, "written_bytes": 0, **facts,
    }  # fmt: skip
    return GapStatus(**whole)


def snapshot_of(*parts: GapStatus, **facts: Any) -> GapSnapshot:
    facts = {"at_ms": 0, "topics": 1, "bare": (), "gone": (), "unseen": (), **facts}
    return GapSnapshot(**{"subscriptions": by_subscription(parts), **facts})


@pytest.mark.parametrize(
    ("gaps", "facts", "level"),
    [
        (0, {}, Level.OK),
        (7, {}, Level.OK),
        (8, {}, Level.WATCH),
        (9, {}, Level.WATCH),
        (10, {}, Level.ALARM),
        (2, {"again": (Run(1, 0, 0),)}, Level.ALARM),
        (2, {"limit_share": 0.85, "form": "bitmap"}, Level.WATCH),
    ],
)
def test_levels(gaps: int, facts: dict[str, Any], level: Level) -> None:
    assert gap_status(gaps, **facts).level is level


def test_partitions_are_put_together_and_the_worst_comes_first() -> None:
    quiet = gap_status(0, topic="persistent://a/b/quiet")
    parts = [
        gap_status(count, topic=f"persistent://a/b/t-partition-{number}") for number, count in enumerate([1, 9, 2])
    ]
    parts.insert(0, gap_status(3, topic="persistent://a/b/t-partition-11", backlog=5))

    found = by_subscription([quiet, *parts])

    assert [one.topic for one in found] == ["persistent://a/b/t", "persistent://a/b/quiet"]
    worst = found[0]
    assert [part.topic[-2:] for part in worst.parts] == ["-0", "-1", "-2", "11"]
    assert (worst.worst.gap_count, worst.gap_count, worst.backlog, worst.level) == (9, 15, 5, Level.WATCH)


@pytest.mark.parametrize(
    ("kind", "consumers", "known"),
    [
        ("Shared", ["mine"], True),
        ("Shared", [SHADOW_ACKER, "mine"], True),
        ("Shared", [], False),
        ("Key_Shared", [SHADOW_ACKER], False),
        ("None", [], False),
        ("Failover", [], True),
    ],
)
def test_without_a_consumer_nothing_is_called_ready(kind: str, consumers: list[str], *, known: bool) -> None:
    """Brokers learn what is delayed when they read for a consumer; in order nothing is."""
    own = stats(type=kind, msgBacklog=9, msgDelayed=2, consumers=[{"consumerName": name} for name in consumers])
    snapshot = looked_at({"/persistent/a/b/t/stats": own})
    line = shown(snapshot, "backlog")

    (found,) = snapshot.subscriptions
    assert (found.delayed, found.ready, found.unknown) == ((2, 7, 0) if known else (2, 0, 7))
    assert line.partition(": ")[2] == (
        "2 delayed, 0 in consumers' hands, 7 ready"
        if known
        else "2 delayed, 7 delayed or ready: which is not known, as no consumer is connected"
    )


@pytest.mark.parametrize(
    ("form", "written_bytes", "line"),
    [
        ("ranges", 0, "as ranges"),
        ("ranges", 88_800, "as ranges, 88.8 kB when last written"),
        ("bitmap", 1_250, "as a bitmap by ledger, 1.25 kB when last written"),
    ],
)
def test_the_form_and_the_size_of_a_written_cursor_are_shown(form: str, written_bytes: int, line: str) -> None:
    snapshot = snapshot_of(gap_status(8, form=form, limit_share=0.8, written_bytes=written_bytes))
    assert shown(snapshot, "written").split(maxsplit=1)[1] == line


def shown(snapshot: GapSnapshot, name: str) -> str:
    """The line of this name about the first subscription."""
    text = StringIO()
    limit = Limit(profile=PROFILE, source="given")
    show_snapshot(Console(file=text, width=200), snapshot, limit, GapHistory(), {}, top=1, reached_by=())
    (line,) = (line for line in text.getvalue().splitlines() if line.startswith(name))
    return line


def test_consumers_are_asked_for_only_where_entries_may_be_delayed_or_ready() -> None:
    full = stats(msgBacklog=9, msgDelayed=6, unackedMessages=3)
    cluster = Cluster({"/persistent/a/b/full/stats": full, "/persistent/a/b/empty/stats": stats()})
    with cluster.client() as admin:
        inspect_gaps(admin, ["persistent://a/b/full", "persistent://a/b/empty"], PROFILE)
    assert len([path for path in cluster.asked if path.endswith("/stats")]) == 2


def test_a_look_asks_for_ranges_only_where_there_are_gaps_and_says_what_it_did_not_see() -> None:
    base = "/persistent/a/b"
    cluster = Cluster(
        {
            f"{base}/sick/stats": stats(
                14, msgBacklog=14, msgDelayed=6, unackedMessages=3, consumers=[{"consumerName": "c"}]
            ),
            f"{base}/sick/internalStats": internal(),
            f"{base}/well/stats": stats(),
            f"{base}/bare/stats": {"subscriptions": {"r": {"durable": False}}},
            f"{base}/denied/stats": 403,
        }
    )
    names = [f"persistent://a/b/{name}" for name in ("sick", "well", "bare", "denied", "gone")]
    told: list[tuple[int, int]] = []
    with cluster.client() as admin:
        snapshot = inspect_gaps(
            admin, names, PROFILE, at_once=2, on_progress=lambda done, total: told.append((done, total))
        )

    (sick, well) = snapshot.subscriptions
    assert (sick.topic, sick.level, sick.gap_count) == (names[0], Level.ALARM, 14)
    # Eleven of fourteen ranges are kept.
    assert sick.again_entries == 3
    assert (sick.ready, sick.delayed) == (5, 6)
    assert sick.worst.pinned_ledgers == 4
    assert sick.pinned_bytes == 280
    assert (well.topic, well.level) == (names[1], Level.OK)
    assert snapshot.bare == (names[2],)
    assert [one.what for one in snapshot.unseen] == [names[3]]
    assert snapshot.gone == (names[4],)
    assert snapshot.topics == 3
    assert snapshot.level is Level.ALARM
    assert sum(path.endswith("internalStats") for path in cluster.asked) == 1
    assert told == [(done, 5) for done in range(6)]
    assert cluster.max_at_once <= 2


@pytest.mark.parametrize("was_removed", [False, True])
def test_gaps_without_a_cursor_are_unknown_and_not_none(was_removed: bool) -> None:
    path, asked = "/persistent/a/b/t/stats", stats(14)
    cluster = Cluster({path: asked, "/persistent/a/b/t/internalStats": internal() | {"cursors": {}}})
    if was_removed:
        cluster.later[path] = {"subscriptions": {}}
    with cluster.client() as admin:
        snapshot = inspect_gaps(admin, ["persistent://a/b/t"], PROFILE)

    assert snapshot.subscriptions == ()
    assert snapshot.is_whole is was_removed
    assert [one.what for one in snapshot.unseen] == ([] if was_removed else ["persistent://a/b/t, subscription s"])


def test_a_topic_of_ten_thousand_subscriptions_is_seen_whole_and_one_with_gaps_comes_first() -> None:
    many = {f"s{number}": {"type": "Shared", "nonContiguousDeletedMessagesRanges": 0} for number in range(10_000)}
    every = {"subscriptions": many | stats(14)["subscriptions"]}
    cluster = Cluster({"/persistent/a/b/t/stats": every, "/persistent/a/b/t/internalStats": internal()})
    with cluster.client() as admin:
        snapshot = inspect_gaps(admin, [ONLY], PROFILE)
    assert len(snapshot.subscriptions) == 10_001
    assert (snapshot.subscriptions[0].subscription, snapshot.subscriptions[0].again_entries) == ("s", 3)
    assert len(cluster.asked) == 2


def test_a_cursor_of_two_hundred_thousand_ranges_is_read_to_the_last_one() -> None:
    count = 200_000
    ranges = ",".join(f"(7:{2 * number}..7:{2 * number + 1}]" for number in range(count))
    huge = internal()
    huge["ledgers"] = [{"ledgerId": 7, "entries": 2 * count + 1, "size": 10 * count}]
    huge["lastConfirmedEntry"] = f"7:{2 * count}"
    huge["cursors"]["s"] |= {
        "markDeletePosition": "7:-1",
        "totalNonContiguousDeletedMessagesRange": count,
        "individuallyDeletedMessages": f"[{ranges}]",
    }
    answers = {"/persistent/a/b/t/stats": stats(count, msgBacklog=count), "/persistent/a/b/t/internalStats": huge}
    (one,) = looked_at(answers, profile=BrokerProfile.named("4.0")).subscriptions
    assert one.gap_count == count
    assert one.again_entries == count - 10_001


def test_an_old_broker_that_leaves_fields_out_is_seen_as_far_as_it_tells() -> None:
    (one,) = looked_at({"/persistent/a/b/t/stats": {"subscriptions": {"s": {"msgBacklog": 3}}}}).subscriptions
    assert (one.backlog, one.gap_count, one.delayed) == (3, 0, 0)


def test_targets_become_topics() -> None:
    cluster = Cluster(
        {
            "/tenants": ["a", "c", "hidden"],
            "/namespaces/a": ["a/b", "a/shut"],
            "/namespaces/c": [],
            "/namespaces/hidden": 403,
            "/persistent/a/b": [
                f"persistent://a/b/{name}" for name in ("t-partition-1", "t-partition-0", "__own", "u")
            ],
            "/persistent/a/shut": 403,
            "/persistent/a/b/t/partitions": {"partitions": 2},
            "/persistent/a/b/u/partitions": {"partitions": 0},
        }
    )
    all_of_it = tuple(f"persistent://a/b/{name}" for name in ("t-partition-0", "t-partition-1", "u"))
    with cluster.client() as admin:
        assert topics_of(admin, ["a/b"]).topics == all_of_it
        assert topics_of(admin, ["a/b/t"]).topics == all_of_it[:2]
        assert topics_of(admin, ["persistent://a/b/u", "a/b/t", "a/b/u"]).topics == (all_of_it[2], *all_of_it[:2])
        tenant = topics_of(admin, ["a"])
        assert (tenant.topics, [one.what for one in tenant.unseen]) == (all_of_it, ["a/shut"])
        everything = topics_of(admin, [EVERYTHING])
        assert (everything.topics, [one.what for one in everything.unseen]) == (all_of_it, ["hidden", "a/shut"])
        for name, problem in {
            "a/b/none": "there is no such topic",
            "a/none": "there is no such namespace",
            "none": "there is no such tenant",
            "non-persistent://a/b/t": "not persistent",
        }.items():
            with pytest.raises(NoSuchTarget, match=problem):
                topics_of(admin, [name])
        with pytest.raises(AdminDenied):
            topics_of(admin, ["a/shut"])
        several = topics_of(admin, ["a/b/none", "a/b/u", "none", "a/shut", "non-persistent://a/b/t", "a/b/t"])
        assert several.topics == (all_of_it[2], *all_of_it[:2])
        assert [(one.what, one.is_target) for one in several.unseen] == [
            ("a/b/none", True), ("none", True), ("a/shut", True), ("non-persistent://a/b/t", True)
        ]  # fmt: skip
        cluster.answers["/tenants"] = 401
        with pytest.raises(NoSuchTarget, match="only a superuser may list them"):
            topics_of(admin, [EVERYTHING])


def test_topics_of_a_plan_that_are_not_there_are_named_and_hide_no_other() -> None:
    plan = Plan(
        due_topic="persistent://a/b/t", subscriptions=("s",), scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,))
    )
    with Cluster({}).client() as admin:
        nobody_made_them = topics_of(admin, [], [plan])
        expected = {spec.name for spec in topology(plan, 0).topics}
        assert (nobody_made_them.topics, {*nobody_made_them.missing}) == ((), expected)
    held = next(topic.name for topic in topology(plan, 0).holding)
    answers = {
        "/persistent/a/b/t/partitions": {"partitions": 1},
        f"/persistent/a/b/{held.rpartition('/')[2]}/partitions": 403,
    }
    with Cluster(answers).client() as admin:
        some = topics_of(admin, [], [plan])
        snapshot = inspect_gaps(admin, some.topics, PROFILE, unseen=some.unseen, missing=some.missing)
    assert some.topics == ("persistent://a/b/t-partition-0",)
    assert [(one.what, one.is_target) for one in some.unseen] == [(held, True)]
    assert {*snapshot.missing} == expected - {held, "persistent://a/b/t"}
    assert not snapshot.is_whole


@pytest.mark.parametrize(
    ("facts", "never", "asked"),
    [
        ({}, 0, 0),
        ({"unseen": (Unseen(what="a/b", reason="403"),)}, 0, 1),
        ({"unseen": (Unseen(what="a/b", reason="403", is_target=True),)}, 1, 1),
        ({"missing": ("persistent://a/b/t",)}, 1, 1),
        ({"missing": ("persistent://a/b/t",), "gaps": 8}, 1, 3),
        ({"missing": ("persistent://a/b/t",), "gaps": 10}, 1, 4),
    ],
)
def test_the_exit_status_says_what_was_not_there(facts: dict[str, Any], never: int, asked: int) -> None:
    snapshot = snapshot_of(gap_status(facts.pop("gaps", 0)), **facts)
    assert (exit_status(snapshot, "never"), exit_status(snapshot, "watch")) == (never, asked)
    assert ("missing" in verdict(snapshot), "not seen" in verdict(snapshot)) == (
        bool(snapshot.missing), any(one.is_target for one in snapshot.unseen)
    )  # fmt: skip


SETTINGS = {"managedLedgerMaxUnackedRangesToPersist": "123"}
CONFIGURATION, VERSION = "/brokers/configuration/runtime", "/brokers/version"


@pytest.mark.parametrize(
    ("answers", "given", "limit", "source"),
    [
        ({CONFIGURATION: SETTINGS, VERSION: "4.2.4"}, None, 123, "read from the broker"),
        ({CONFIGURATION: 403, VERSION: "4.2.4"}, None, 10_000, "the default of Pulsar 4.2.4, since this role may not"),
        ({CONFIGURATION: 403, VERSION: "2.10.6"}, None, 10_000, "the default of Pulsar 2.10.6"),
        ({CONFIGURATION: 403, VERSION: "5.0.1"}, None, 200_000, "the default of Pulsar 5.0.1"),
        ({CONFIGURATION: 401, VERSION: 401}, None, 10_000, "may read neither settings nor version"),
        ({CONFIGURATION: 403, VERSION: "4.0.7"}, 77, 77, "as given"),
    ],
)
def test_the_limit_says_where_it_is_from(answers: dict[str, Any], given: int | None, limit: int, source: str) -> None:
    with Cluster(answers).client() as admin:
        found = limit_of(admin, gap_limit_ranges=given)
    assert found.profile.gap_limit_ranges == limit
    assert source in found.source


def test_growth_tells_when_the_limit_comes_and_not_what_chance_makes() -> None:
    steady = [(minute * MINUTE_MS, 100 + 2 * minute) for minute in range(10)]
    found = growth_of(steady, 1_000)
    assert found is not None
    assert found.per_hour == pytest.approx(120)
    assert found.hours_to_limit == pytest.approx((1_000 - 118) / 120)

    up_and_down = [(minute * MINUTE_MS, 100 + 50 * (minute % 2)) for minute in range(11)]
    flat = growth_of(up_and_down, 1_000)
    assert flat is not None
    assert (flat.per_hour, flat.hours_to_limit) == (0.0, None)

    full = growth_of([(at_ms, gaps + 900) for at_ms, gaps in steady], 1_000)
    assert full is not None
    assert full.hours_to_limit == 0

    assert growth_of(steady[:2], 1_000) is None
    assert growth_of([(second * 1_000, second) for second in range(30)], 1_000) is None, "half a minute tells nothing"


@given(st.lists(st.integers(0, 20_000), min_size=3, max_size=50))
def test_growth_never_goes_down_nor_past_the_limit(gaps: list[int]) -> None:
    found = growth_of([(number * HOUR_MS, count) for number, count in enumerate(gaps)], 10_000)
    assert found is not None
    assert found.per_hour >= 0
    assert found.hours_to_limit is None or found.hours_to_limit >= 0


def inspect(at_ms: int, *gaps: int) -> GapSnapshot:
    subscriptions = [
        SubscriptionGaps(topic=f"persistent://a/b/{number}", subscription="s", parts=(gap_status(count),))
        for number, count in enumerate(gaps)
    ]
    return snapshot_of(at_ms=at_ms, subscriptions=tuple(subscriptions))


@pytest.mark.parametrize("listed", [True, False], ids=["may list", "may not list"])
def test_a_partition_without_its_topic_is_named_as_it_is_and_offered_no_shadow(listed: bool) -> None:
    base = "/persistent/a/b"
    parts = ("x-partition-1", "y-partition-0", "y-partition-1")
    cluster = Cluster(
        {
            **{f"{base}/{name}/stats": stats(14, msgBacklog=6, msgDelayed=6) for name in parts},
            **{f"{base}/{name}/internalStats": internal() for name in parts},
            f"{base}/partitioned": ["persistent://a/b/y"] if listed else 403,
            f"{base}/y/partitions": {"partitions": 2},
        }
    )
    with cluster.client() as admin:
        snapshot = inspect_gaps(admin, [f"persistent://a/b/{name}" for name in parts], PROFILE)
        assert whole_topic(admin, "persistent://a/b/y-partition-1") == "persistent://a/b/y"
        assert whole_topic(admin, "persistent://a/b/x-partition-1") == "persistent://a/b/x-partition-1"
        assert whole_topic(admin, "persistent://a/b/z") == "persistent://a/b/z"

    said = {one.topic: " ".join(aid_of(replace(snapshot, subscriptions=(one,)))) for one in snapshot.subscriptions}
    assert said.keys() == {"persistent://a/b/x-partition-1", "persistent://a/b/y"}
    assert "timewheel shadow start persistent://a/b/y -o shadow.toml --dry-run" in said["persistent://a/b/y"]
    assert "timewheel gaps explain persistent://a/b/x-partition-1" in said["persistent://a/b/x-partition-1"]
    assert "no shadow helps" in said["persistent://a/b/x-partition-1"]
    assert "shadow start" not in said["persistent://a/b/x-partition-1"]


@pytest.mark.parametrize(
    ("facts", "is_named"),
    [
        ({"delayed": 5}, True),
        ({"delayed": 5, "type": "Key_Shared"}, True),
        ({"delayed": 5, "type": "None"}, True),  # nobody has been connected since it was loaded
        ({"delayed": 5, "gap_count": 7}, False),
        ({"delayed": 0, "backlog": 5}, False),
        ({"delayed": 0, "backlog": 5, "knows_delays": False}, True),
        ({"delayed": 5, "type": "Failover"}, False),
        ({"delayed": 5, "topic": "persistent://a/b/t.tw.delay-1h"}, False),
    ],
)
def test_where_delays_may_be_the_cause_a_shadow_is_named(facts: dict[str, Any], is_named: bool) -> None:
    said = " ".join(aid_of(snapshot_of(gap_status(9, **facts))))
    assert ("timewheel shadow start persistent://a/b/t -o shadow.toml --dry-run" in said) is is_named
    assert ("no producer and no consumer has to change" in said) is is_named


@pytest.mark.parametrize("gap_count", [7, 8, 9, 10, 70])
@pytest.mark.parametrize(
    "facts", [{"delayed": 0, "backlog": 5}, {"delayed": 5, "type": "Failover"}, {"delayed": 5}], ids=["0", "1", "2"]
)
def test_whoever_is_near_the_limit_is_given_the_command_that_says_why(gap_count: int, facts: dict[str, Any]) -> None:
    """`--fail-at watch` ends with 3 then."""
    seen = snapshot_of(gap_status(gap_count, **facts))
    commands = [shlex.split(line.rpartition(": ")[2]) for line in aid_of(seen, ["--connection", "my file"])]
    assert any(words[:4] == ["timewheel", "gaps", "explain", "persistent://a/b/t"] for words in commands) is (
        seen.level is not Level.OK
    )
    assert all(words[-2:] == ["--connection", "my file"] for words in commands if words[:1] == ["timewheel"])


@pytest.mark.parametrize("state", ["shadowing", "paused", "draining"])
def test_where_a_shadow_is_no_second_one_is_named(state: str) -> None:
    seen = snapshot_of(gap_status(9, delayed=5), shadowed={"persistent://a/b/t": state})
    said = " ".join(aid_of(seen))
    assert "shadow start" not in said
    assert f"a shadow ({state})" in said
    assert "timewheel shadow status PLAN" in said
    assert "shadow.toml" not in said, "nobody knows the name of its plan's file"


def test_what_is_printed_is_one_word_for_a_shell_and_repeats_how_the_cluster_is_reached() -> None:
    topic, file = "persistent://a/b/t';$(x)", "my file"
    seen = snapshot_of(gap_status(9, delayed=5, topic=topic))
    begin, why = (shlex.split(line.partition(": ")[2]) for line in list(aid_of(seen, ["--connection", file]))[1:])
    assert begin == ["timewheel", "shadow", "start", topic, "-o", "shadow.toml", "--dry-run", "--connection", file]
    assert why == ["timewheel", "gaps", "explain", topic, "--connection", file]


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ({"timewheel-shadow": "shadowing 17"}, "shadowing"),
        ({"timewheel-shadow": "draining 17"}, "draining"),
        ({"timewheel-shadow": "native 17"}, None),
        ({"timewheel-shadow": "of a later version"}, None),
        ({}, None),
        (403, None),
        (404, None),
    ],
)
def test_a_shadow_is_known_by_the_properties_of_its_intake(answer: Any, state: str | None) -> None:
    journal = "/persistent/a/b/t.tw.journal"
    cluster = Cluster({f"{journal}/partitions": {"partitions": 1}, f"{journal}/properties": answer})
    seen = snapshot_of(gap_status(9))
    with cluster.client() as admin:
        assert with_shadows(admin, seen).shadowed == ({} if state is None else {"persistent://a/b/t": state})
    assert len(cluster.asked) == 2


def test_a_log_is_read_back_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "gaps.jsonl"
    assert read_snapshots(path).growth(inspect(0, 5).subscriptions[0]) is None
    snapshots = GapHistory()
    every = [inspect(minute * MINUTE_MS, minute + 1, 0) for minute in range(MAX_SNAPSHOTS + 20)]
    for seen in every:
        append_snapshot(path, seen)
        snapshots.add(seen)

    found = read_snapshots(path).growth(every[-1].subscriptions[0])

    assert found == snapshots.growth(every[-1].subscriptions[0])
    assert found is not None
    assert found.snapshots == MAX_SNAPSHOTS
    assert found.per_hour == pytest.approx(60)
    assert len(path.read_text().splitlines()) == MAX_SNAPSHOTS + 20, "subscriptions without gaps are left out"


@pytest.mark.parametrize("text", ["{}", "nonsense", '{"format": 2}', "[1]"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gaps.jsonl"
    path.write_text(f"\n{text}\n")
    problem = "it is of format 2, not 1" if "2" in text else "not a snapshot that timewheel wrote"
    with pytest.raises(GapLogUnreadable, match=f"line 2: {problem}"):
        read_snapshots(path)


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(GapLogUnreadable):
        append_snapshot(tmp_path, inspect(0, 1))
    with pytest.raises(GapLogUnreadable):
        read_snapshots(tmp_path)


def print_lines(snapshot: int, count: int) -> Callable[[Console], None]:
    def show(console: Console) -> None:
        for number in range(count):
            console.print(f"look {snapshot}, line {number}")

    return show


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("counts", [(3, 5, 2), (1,), (4, 4)])
def test_looks_stand_one_over_the_other_on_a_terminal_and_else_below(
    counts: tuple[int, ...], is_terminal: bool
) -> None:
    out = StringIO()
    with _screen(Console(file=out, force_terminal=is_terminal, width=60, height=20), live=True) as show:
        for snapshot, count in enumerate(counts):
            show(print_lines(snapshot, count))
    every = [[f"look {snapshot}, line {number}" for number in range(count)] for snapshot, count in enumerate(counts)]
    assert lines_of(out.getvalue()) == (every[-1] if is_terminal else [*chain(*every)])


def test_what_a_shadow_has_lifted_is_not_called_delayed() -> None:
    """The broker counts 4,202 as delayed, and all but 196 entries are acknowledged."""
    consumers = [{"consumerName": "mine"}]
    own = stats(3, msgBacklog=196, msgDelayed=4_202, consumers=consumers)
    snapshot = looked_at({"/persistent/a/b/t/stats": own, "/persistent/a/b/t/internalStats": internal()})
    text = StringIO()
    limit = Limit(profile=PROFILE, source="given")
    show_snapshot(Console(file=text, width=300), snapshot, limit, GapHistory(), {}, top=1, reached_by=())
    (line,) = (line for line in text.getvalue().splitlines() if line.startswith("backlog"))
    assert "196 entries: at most 196 delayed, 0 in consumers' hands, 0 ready; beside them it counts 4,006" in line
    assert "4,202" not in text.getvalue()
    (found,) = snapshot.subscriptions
    assert (found.delayed, found.stale_entries, found.ready) == (196, 4_006, 0)
    (facts,) = snapshot_facts(snapshot, limit, GapHistory(), {})["subscriptions"]
    assert (facts["delayed"], facts["stale_at_least"]) == (196, 4_006)


@pytest.mark.parametrize("shadow", ["shadowing", "paused", None])
def test_the_cure_of_delays_beside_a_shadow_names_no_file_that_nobody_has(shadow: str | None) -> None:
    gaps = by_subscription([gap_status(12, delayed=6, stale_entries=70, backlog=6)])[0]
    found = Explained(
        at_ms=0, whole="persistent://a/b/t", shadow=shadow, gaps=gaps, holes=3, inspected=3, unreadable=0,
        shares=(Share(cause=Cause.DELAYS, share=1.0, error=0.0),), hottest_key="", hottest_share=0.0, oldest_ms=None,
        delayed=3, first_due_ms=9_000, holders=(), figures=None,
    )  # fmt: skip
    (advice,) = advice_on(found, PROFILE)
    assert any("at most 6 delayed messages" in one and "70 as delayed that are" in one for one in advice.evidence)
    said = " ".join((*advice.helps, *advice.commands))
    assert (".toml" in said) is (shadow is None)
    assert [one.when for one in advice.tries] == ([FIRST_AID, FOR_GOOD] if shadow is None else [])
    text = StringIO()
    _show(Console(file=text, width=300), found, [advice], "10")
    lines = [line.strip() for line in text.getvalue().splitlines()]
    for one in advice.tries:
        at = lines.index(f"{one.when}:")
        assert lines[at + 1 : at + 1 + len(one.commands)] == [f"try   {command}" for command in one.commands]
    assert ("timewheel shadow status PLAN" in said) is (shadow is not None)
