"""What a status counts and estimates; and what is removed while it is looked at."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inspect.test_doctor_checks import ANSWERS, PART, READ_PLAN, TOPIC
from tests.inspect.test_gap_looks import PROFILE, Cluster, cursor, internal, ledgers, stats
from tests.support.plans import plan_of
from timewheel.cli.gaps import exit_status
from timewheel.cli.gaps import verdict as describe
from timewheel.cli.options import ALARM, ATTENTION
from timewheel.cli.status import _due_rows, _exit_status, _verdict
from timewheel.client.positions import EntryPosition
from timewheel.core import Native
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Plan, Tiered
from timewheel.errors import NoSuchTarget
from timewheel.inspect.doctor import Severity, Verdict, inspect_plan, inspect_topic, verdict_on
from timewheel.inspect.entries import open_entries
from timewheel.inspect.gaps import inspect_gaps, topics_of
from timewheel.inspect.gaps.explain import explain
from timewheel.inspect.gaps.snapshot import with_lost
from timewheel.inspect.status import Amount, Head, Horizon, PlaceStatus, RelayHold, Status, status_of
from timewheel.inspect.status.places import by_stretch, connected, of_pieces, status_facts, total

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("left_ms", "name"),
    [
        (-DAY_MS, "overdue"),
        (-1, "overdue"),
        (0, "next minute"),
        (MINUTE_MS - 1, "next minute"),
        (MINUTE_MS, "next hour"),
        (HOUR_MS, "next day"),
        (DAY_MS, "day 2"),
        (30 * DAY_MS - 1, "day 30"),
        (40 * DAY_MS, "day 30"),
    ],
)
def test_a_due_time_is_in_one_stretch(left_ms: int, name: str) -> None:
    horizon = Horizon(NOW_MS, 30 * DAY_MS)
    assert horizon.buckets[horizon.number_of(NOW_MS + left_ms)].name == name
    assert len(horizon.buckets) == 4 + 29
    assert all(one.until_ms == other.from_ms for one, other in zip(horizon.buckets, horizon.buckets[1:], strict=False))


def test_all_that_was_looked_at_is_exact() -> None:
    horizon = Horizon(NOW_MS, 3 * DAY_MS)
    entries = [[NOW_MS - 1], [NOW_MS, NOW_MS + 1], [], [NOW_MS + 2 * HOUR_MS]]
    assert total(entries, 4) == Amount(4.0)
    assert by_stretch(entries, 4, horizon)[:4] == (Amount(1.0), Amount(2.0), Amount(0.0), Amount(1.0))


def test_a_slot_of_one_stretch_is_there_whatever_was_drawn() -> None:
    horizon = Horizon(NOW_MS, 3 * DAY_MS)
    due = NOW_MS + DAY_MS + HOUR_MS
    entries = [[due], [due, due + 1], [due]]
    known = horizon.numbers_of(due, due + HOUR_MS)

    stretches = by_stretch(entries, 3_000, horizon, known)

    assert list(known) == [4]
    assert stretches[4] == total(entries, 3_000)
    assert [one for number, one in enumerate(stretches) if number != 4] == [Amount()] * 5
    assert by_stretch([[NOW_MS - 1]], 3_000, horizon, known)[0].count == 3_000, "a late one is seen all the same"


def test_errors_hold_19_times_of_20() -> None:
    source = random.Random(1)
    horizon = Horizon(NOW_MS, 3 * DAY_MS)
    topic = [[NOW_MS + source.randrange(3 * DAY_MS) for _ in range(source.choice((1, 1, 1, 40)))] for _ in range(5_000)]
    truth = by_stretch(topic, 5_000, horizon)
    inside = tries = 0
    for _ in range(200):
        drawn = by_stretch(source.sample(topic, 400), 5_000, horizon)
        for seen, real in zip(drawn, truth, strict=True):
            if real.count > 100:
                tries += 1
                inside += abs(seen.count - real.count) <= seen.error

    assert inside / tries > 0.9


def test_pieces_of_neighbours_hold_18_times_of_20() -> None:
    """Ten pieces, as of a topic of which a shadow reads a part; its entries change from one end to the other."""
    source = random.Random(2)
    inside = tries = 0
    for _ in range(400):
        size, piece = 20_000, 200
        begin, end, block = source.random(), source.random(), source.choice((1, 50, 500))
        share = [begin + (end - begin) * number * block / size for number in range(-(-size // block))]
        counts = [source.random() < share[number // block] for number in range(size)]
        if block > 1:
            counts = [counts[number // block * block] for number in range(size)]
        starts = [number * (size - piece) // 9 for number in range(10)]
        seen = of_pieces([sum(counts[start : start + piece]) for start in starts], 10 * piece, size)
        tries += 1
        inside += abs(seen.count - sum(counts)) <= seen.error
    assert inside / tries >= 0.9, inside / tries
    assert of_pieces([7], 20, 20) == Amount(7.0)
    assert of_pieces([200] * 10, 2_000, 20_000) == Amount(20_000.0, 27.0)
    assert of_pieces([0], 0, 5).error >= 5


def test_what_was_not_drawn_may_be_there() -> None:
    never = by_stretch([[NOW_MS + 1]] * 300, 30_000, Horizon(NOW_MS, DAY_MS))
    assert never[0] == Amount(0.0, 297.0), "less than 1 % of 29,700 others"
    assert never[1] == Amount(30_000.0, 297.0)


@given(acknowledged=st.lists(st.booleans(), min_size=1, max_size=60))
def test_open_entries_are_all_but_the_acknowledged_ones(acknowledged: list[bool]) -> None:
    stored = ledgers(len(acknowledged))
    every = [EntryPosition(ledger.ledger_id, entry) for ledger in stored for entry in range(ledger.entries)]
    found = open_entries("t", cursor(acknowledged), stored)
    open_ones = [position for position, done in zip(every, acknowledged, strict=True) if not done]
    assert list(found.places()) == [("t", position) for position in open_ones]
    assert [found.number_of(position) for position in open_ones] == [*range(len(open_ones))]


def test_stretches_that_may_as_well_be_empty_are_one_row() -> None:
    horizon = Horizon(NOW_MS, 60 * DAY_MS)
    amounts = [Amount() for _ in horizon.buckets]
    amounts[1], amounts[2] = Amount(12.0), Amount(40.0, 9.0)
    amounts[5:50] = [Amount(0.0, 7.0)] * 45
    found: Any = SimpleNamespace(horizon=horizon, by_stretch=lambda: tuple(amounts))

    assert list(_due_rows(found)) == [("next minute", "12"), ("next hour", "40 +- 9")]
    amounts[7] = Amount(5.0, 7.0)
    assert list(_due_rows(found)) == [("next minute", "12"), ("next hour", "40 +- 9"), ("in 45 others", "5 +- 47")], (
        "what was seen is in the table: 5 of them, and 7 * 45 ** 0.5"
    )


PLAN = plan_of(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,)), due_topic="persistent://acme/crm/t")


NONE = (Amount(),) * len(Horizon(NOW_MS, DAY_MS).buckets)


def place(kind: Any, late_ms: int, *, consumers: int) -> PlaceStatus:
    """A partition with an entry whose head is late by so much; below 0: it has no head."""
    relay = RelayHold(name="relay:0", address="/10.0.0.1:2", is_active=True, unacked=1)
    head = Head(position=EntryPosition(1, 0), due_ms=NOW_MS, leaves_ms=NOW_MS, late_ms=late_ms)
    return PlaceStatus(
        topic=f"persistent://acme/crm/t.{kind}-partition-0", kind=kind, subscription="billing", entries=1,
        timers=Amount(1.0), by_stretch=NONE, cancelled=Amount(), head=None if late_ms < 0 else head,
        consumers=(relay,) * consumers,
    )  # fmt: skip


def found(*places: PlaceStatus, plan: Plan = PLAN) -> Status:
    return Status(
        plan=plan, at_ms=NOW_MS, horizon=Horizon(NOW_MS, DAY_MS), places=places, missing=(), dead_letters=None,
        parked=None, former=(), read=1, knows_cancelled=False, unseen=(),
    )  # fmt: skip


KINDS = st.tuples(st.sampled_from(["tier", "due", "retry"]), st.sampled_from([-1, 0, 900, 2_650]), st.integers(0, 1))


@given(st.lists(KINDS), st.sampled_from([None, 0, 1_000, 5_000]), st.booleans())
def test_the_headline_follows_the_exit_status(
    kinds: list[tuple[str, int, int]], limit_ms: int | None, is_native: bool
) -> None:
    """There is no "nothing is late" beside a head that is late and exit status 3."""
    plan = replace(PLAN, scheme=Native()) if is_native else PLAN
    kinds = [one for one in kinds if not is_native or one[0] != "tier"]
    seen = found(*(place(kind, late_ms, consumers=consumers) for kind, late_ms, consumers in kinds), plan=plan)
    headline, code = _verdict(seen, "plan.toml", limit_ms or 0), _exit_status(seen, limit_ms)
    is_late = any(late_ms > (limit_ms or 0) for _, late_ms, _ in kinds)
    assert ("nothing is late" in headline) != is_late, headline
    if limit_ms is not None:
        assert (code in (ATTENTION, ALARM)) == is_late, headline
        assert (code == ALARM) == ("No relay is connected" in headline)


@pytest.mark.parametrize(
    ("limit_ms", "places", "words"),
    [
        (2_000, [place("due", 2_650, consumers=1)], "the first timer in t.due-partition-0 is 2.65 s late"),
        (0, [place("tier", 2_650, consumers=1)], "relays are 2.65 s behind"),
        (3_000, [place("tier", 2_650, consumers=1)], "nothing is later than 3 s"),
        (3_000, [], "nothing is later than 3 s, and no relay is connected to a holding topic now"),
        (
            0,
            [place("tier", 2_650, consumers=1), place("due", 900, consumers=1), place("retry", 800, consumers=1)],
            "relays are 2.65 s behind and the first timer in t.due-partition-0 is 900 ms late",
        ),
    ],
)
def test_the_headline_names_all_that_is_late(limit_ms: int, places: list[PlaceStatus], words: str) -> None:
    assert _verdict(found(*places), "plan.toml", limit_ms).endswith(f"; {words}.")


class Removed(Cluster):
    """A cluster from which a topic goes as soon as one path was asked for.

    Args:
        answers: As long as it is there.
        topic: Path of the topic that goes, with all that is below it.
        after: The path.
        times: How often it is asked for before.
    """

    def __init__(self, answers: dict[str, Any], topic: str, after: str, times: int = 1) -> None:
        super().__init__(answers)
        self._topic, self._after, self._times = topic, after, times

    def __call__(self, request: httpx.Request) -> httpx.Response:
        answer = super().__call__(request)
        if self.asked.count(self._after) >= self._times:
            self.answers = {path: had for path, had in self.answers.items() if not path.startswith(self._topic)}
        return answer


GAPS = {
    "/persistent/a/b/sick/partitions": {"partitions": 0},
    "/persistent/a/b/sick/stats": stats(14, msgBacklog=14),
    "/persistent/a/b/sick/internalStats": internal(),
    "/persistent/a/b/well/partitions": {"partitions": 0},
    "/persistent/a/b/well/stats": stats(),
}
SICK = "persistent://a/b/sick"


@pytest.mark.parametrize("after", ["partitions", "stats"])
def test_gaps_of_a_topic_that_was_named_are_not_seen(after: str) -> None:
    with Removed(GAPS, "/persistent/a/b/sick", f"/persistent/a/b/sick/{after}").client() as admin:
        targets = topics_of(admin, ["a/b/well", "a/b/sick"])
        snapshot = inspect_gaps(admin, targets.topics, PROFILE)
    assert snapshot.gone == (SICK,)
    snapshot = with_lost(snapshot, targets.named)
    assert (snapshot.gone, [(one.what, one.is_target) for one in snapshot.unseen]) == ((), [(SICK, True)])
    assert exit_status(snapshot, "never") == 1
    assert describe(snapshot).endswith("; 1 target not seen.")


def test_a_topic_that_goes_from_its_namespace_is_no_harm() -> None:
    listed = {**GAPS, "/persistent/a/b": [SICK, "persistent://a/b/well"]}
    with Removed(listed, "/persistent/a/b/sick", "/persistent/a/b").client() as admin:
        targets = topics_of(admin, ["a/b"])
        snapshot = with_lost(inspect_gaps(admin, targets.topics, PROFILE), targets.named)
    assert (snapshot.gone, snapshot.unseen, exit_status(snapshot, "never")) == ((SICK,), (), 0)


def test_one_partition_that_was_never_used_hides_no_topic() -> None:
    answers = {"/persistent/a/b/t/partitions": {"partitions": 2}, "/persistent/a/b/t-partition-0/stats": stats()}
    with Cluster(answers).client() as admin:
        targets = topics_of(admin, ["a/b/t"])
        snapshot = with_lost(inspect_gaps(admin, targets.topics, PROFILE), targets.named)
    assert (snapshot.gone, snapshot.unseen) == (("persistent://a/b/t-partition-1",), ())


def test_gaps_of_a_partition_that_cannot_be_read_are_no_success() -> None:
    answers = {
        "/persistent/a/b/t/partitions": {"partitions": 2},
        "/persistent/a/b/t-partition-0/stats": stats(),
        "/persistent/a/b/t-partition-1/stats": 500,
    }
    with Cluster(answers).client() as admin:
        targets = topics_of(admin, ["a/b/t"])
        snapshot = with_lost(inspect_gaps(admin, targets.topics, PROFILE), targets.named)
    assert [one.what for one in snapshot.unseen] == ["persistent://a/b/t-partition-1"]
    assert exit_status(snapshot, "never") == 1


@pytest.mark.parametrize("after", ["partitions", "stats"])
def test_gaps_are_not_explained(after: str) -> None:
    cluster = Removed(GAPS, "/persistent/a/b/sick", f"/persistent/a/b/sick/{after}")
    with cluster.client() as admin, pytest.raises(NoSuchTarget, match=r"removed while|no such topic"):
        explain(admin, SICK, None, PROFILE)


STORED = {"subscriptions": {"s": {"type": "Shared", "consumers": []}}, "publishers": [], "storageSize": 7}
DOCTOR = {**ANSWERS, f"{PART}/stats": STORED, f"{PART}/internalStats": internal()}
"""With a message, so that internals are asked for."""


def doctor_of_plan(after: str, times: int = 1) -> Verdict:
    with Removed(DOCTOR, TOPIC, after, times).client() as admin:
        return verdict_on(inspect_plan(admin, READ_PLAN, target="p.toml"))


@pytest.mark.parametrize(
    ("after", "times"), [(f"{TOPIC}/partitions", 2), (f"{PART}/stats", 1), (f"{PART}/internalStats", 1)]
)
def test_the_doctor_does_not_call_it_healthy(after: str, times: int) -> None:
    verdict = doctor_of_plan(after, times)
    (told,) = [finding for finding in verdict.findings if finding.slug == "not-seen"]
    assert verdict.is_blind
    assert told.read == "topics and their stats: it was there, and was removed while it was looked at"
    assert told.subject == f"{READ_PLAN.due_topic}-partition-0"


def test_what_was_listed_and_has_no_partitions_is_an_error() -> None:
    assert doctor_of_plan("/persistent/a/b").worst is Severity.ERROR


@pytest.mark.parametrize(
    ("after", "is_reported"), [(f"{TOPIC}/partitions", False), (f"{PART}/stats", True), (f"{TOPIC}/retention", True)]
)
def test_the_doctor_of_anyones_topic_does_not_call_it_healthy(after: str, is_reported: bool) -> None:
    with Removed(DOCTOR, TOPIC, after).client() as admin:
        if not is_reported:
            with pytest.raises(NoSuchTarget, match="there is no such topic"):
                inspect_topic(admin, READ_PLAN.due_topic)
            return
        verdict = verdict_on(inspect_topic(admin, READ_PLAN.due_topic))
    assert verdict.is_blind
    assert "not-seen" in {finding.slug for finding in verdict.findings}


TIERED = replace(READ_PLAN, scheme=PLAN.scheme)
TIER = "/persistent/a/b/t.tw.tier-1h"


def status(after: str | None) -> Status:
    relayed = internal()
    relayed["cursors"] = {RELAY_SUBSCRIPTION: relayed["cursors"]["s"]}
    answers = {
        "/persistent/a/b": [],
        "/persistent/a/b/t/partitions": {"partitions": 1},
        "/persistent/a/b/t.tw.dead-letter/partitions": {"partitions": 1},
        f"{PART}/internalStats": internal(),
        f"{PART}/stats": stats(),
        f"{TIER}/partitions": {"partitions": 1},
        f"{TIER}-partition-0/internalStats": relayed,
        f"{TIER}-partition-0/stats": {"subscriptions": {RELAY_SUBSCRIPTION: {"type": "Failover"}}},
    }
    cluster = Cluster(answers) if after is None else Removed(answers, TIER, after)
    with cluster.client() as admin:
        return status_of(admin, TIERED)


def test_a_status_with_all_of_it() -> None:
    found = status(None)
    assert [place.topic[len("persistent://a/b/") :] for place in found.places] == [
        "t.tw.tier-1h-partition-0", "t-partition-0",
    ]  # fmt: skip
    assert (found.missing, found.unseen) == ((), ())


@pytest.mark.parametrize(
    ("after", "missing", "unseen"),
    [(f"{TIER}/partitions", 1, 0), (f"{TIER}-partition-0/internalStats", 0, 1), (f"{TIER}-partition-0/stats", 0, 0)],
)
def test_a_status_says_what_it_did_not_see(after: str, missing: int, unseen: int) -> None:
    found = status(after)

    tier = "persistent://a/b/t.tw.tier-1h-partition-0"
    assert found.missing == (tier,) * missing
    assert [(one.what, one.reason) for one in found.unseen] == [
        (tier, "it was removed while it was looked at")
    ] * unseen
    if not missing and not unseen:  # its entries could not be read: how many timers are in them is not known
        (place,) = [one for one in found.places if one.topic == tier]
        assert place.timers.error == place.entries > 0
        assert place.head is None
    assert status_facts(found)["missing"] == list(found.missing)


def replica(name: str, address: str) -> RelayHold:
    return RelayHold(name=name, address=address, is_active=True, unacked=0)


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ([], 0),
        # Three replicas without names on three brokers: each has a connection to each broker.
        ([[replica("", f"/10.0.0.{host}:{broker}") for host in range(3)] for broker in range(3)], 3),
        # Two relays on each of two partitions.
        ([[replica("relay:0", "/10.0.0.1:1"), replica("relay:1", "/10.0.0.2:1")]] * 2, 2),
        ([[replica("relay:0", "/10.0.0.1:1")], [replica("relay:1", "/10.0.0.2:1"), replica("", "/10.0.0.3:1")]], 3),
    ],
)
def test_replicas_are_counted_once_whatever_brokers_serve_their_partitions(
    parts: list[list[RelayHold]], count: int
) -> None:
    assert connected(parts) == count
