"""What stands against a shadow, by what was read: each kind once, and of a sound topic nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.plan_space import NOW_MS, journey, plans
from tests.inspect.test_doctor_checks import namespace, of_others, stats_of, subscription
from tests.support.plans import shadow_of
from timewheel.broker.admin.policies import (
    DEDUPLICATION,
    DELAYED_DELIVERY,
    MESSAGE_TTL_S,
    SIZE_QUOTA,
    BacklogQuota,
    DelayedDelivery,
    Policy,
)
from timewheel.broker.admin.stats import CursorStats, InternalStats, ProducerStats
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Plan, Tiered
from timewheel.core.topology import topology
from timewheel.inspect.doctor import Severity, Unseen
from timewheel.inspect.doctor.seen import Part, SeenTopic
from timewheel.inspect.doctor.settings import profile_by
from timewheel.inspect.reader import Source
from timewheel.provision.provision_steps import wanted_policies
from timewheel.shadow.curing import Excess, with_window
from timewheel.shadow.machine.cursors import cursors_in
from timewheel.shadow.refusing import COMPACTION_CURSOR, KINDS, Facts, findings_on, is_refused
from timewheel.shadow.survey import writes_of

TOPIC = "persistent://acme/crm/others"
SPACE = "acme/crm"
PLAN = shadow_of(
    Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS,)), due_topic=TOPIC, subscriptions=("s",), partitions=0
)
PLACE = EntryPosition(3, -1)
CURSOR = CursorStats(
    mark_delete=PLACE, read=PLACE, gap_count=0, entries_since_mark_delete=0, consumed=0, cursor_ledger=1, state="Open",
    acked_text="[]",
)  # fmt: skip

Change = Callable[[Facts], Facts]


def internals(state: str = "LedgerOpened", *cursors: str) -> InternalStats:
    return InternalStats(
        entries=0, entries_added=0, size_bytes=0, last_confirmed=PLACE, state=state, ledgers=(),
        cursors=dict.fromkeys(("s", *cursors), CURSOR),
    )  # fmt: skip


def sound() -> Facts:
    """A topic without partitions that one Shared subscription reads, and that was shadowed before."""
    seen = replace(of_others(), target="plan.toml")
    due = next(spec for spec in topology(PLAN, 0).topics if spec.role == "due")
    return own(*wanted_policies(due))(Facts(plan=PLAN, seen=seen, parts={TOPIC: internals()}))


def of_topic(change: Callable[[SeenTopic], SeenTopic]) -> Change:
    return lambda facts: replace(facts, seen=replace(facts.seen, topics=(change(facts.topic),)))


def of_plan(**changes: Any) -> Change:
    return lambda facts: replace(facts, plan=replace(facts.plan, **changes))


def subscriptions(publishers: int = 0, /, **kinds: str) -> Change:
    stats = stats_of(publishers=publishers, subscriptions={name: subscription(kind) for name, kind in kinds.items()})
    return of_topic(lambda topic: replace(topic, parts=(Part(name=TOPIC, stats=stats),)))


def own(*values: tuple[Policy[Any], Any]) -> Change:
    """Policies of the topic itself, beside those that it has; None: it is not set."""

    def changed(topic: SeenTopic) -> SeenTopic:
        policies = {**topic.state.policies, **dict(values)}
        kept = {policy: value for policy, value in policies.items() if value is not None}
        return replace(topic, state=replace(topic.state, policies=kept))

    return of_topic(changed)


def producers(*clients: str) -> Change:
    every = tuple(ProducerStats(name=f"p{number}", address="", client=one) for number, one in enumerate(clients))
    stats = stats_of(producers=every, subscriptions={"s": subscription("Shared")})
    return of_topic(lambda topic: replace(topic, parts=(Part(name=TOPIC, stats=stats),)))


def undeduplicated(*clients: str) -> Change:
    return lambda facts: own((DEDUPLICATION, None))(producers(*clients)(facts))


def place(**document: Any) -> Change:
    return lambda facts: replace(facts, seen=replace(facts.seen, namespaces={SPACE: namespace(**document)}))


def settings(**values: str) -> Change:
    return lambda facts: replace(facts, seen=replace(facts.seen, settings=values, profile=profile_by(values, "4.0.7")))


def unread(source: Source) -> Change:
    return lambda facts: replace(facts, unread=(Unseen(source=source, what="it", reason="denied"),))


def parts(*args: str) -> Change:
    return lambda facts: replace(facts, parts={TOPIC: internals(*args)})


EVICTING = BacklogQuota(limit_bytes=10**9, action="consumer_backlog_eviction")
CASES: list[tuple[str, Change]] = [
    ("plan-without-intake", of_plan(intake=False)),
    ("topic-of-timewheel", lambda facts: replace(facts, plan=_named(facts.plan, TOPIC + ".tw.tier-12h"))),
    ("partitions-differ", of_plan(partitions=3)), ("subscription-in-order", subscriptions(s="Exclusive")),
    ("subscription-in-order", subscriptions(s="Failover")), ("subscription-unused", subscriptions(s="None")),
    ("subscription-by-key", subscriptions(s="Key_Shared")),
    ("subscriptions-differ", subscriptions(s="Shared", other="Shared")),
    ("subscriptions-differ", of_plan(subscriptions=("s", "t"))), ("topic-ended", parts("Terminated")),
    ("topic-replicated", lambda facts: replace(facts, replicated_to=("one", "two"))),
    ("topic-replicated", place(clusters=("one", "two"))),
    ("topic-compacted", lambda facts: replace(facts, compaction_bytes=1_000)),
    ("topic-compacted", parts("LedgerOpened", COMPACTION_CURSOR)),
    ("ttl-below-delays", own((MESSAGE_TTL_S, 20 * 86_400))), ("ttl-below-stay", own((MESSAGE_TTL_S, 60))),
    ("delay-bound", own((DELAYED_DELIVERY, DelayedDelivery(active=True, max_delay_ms=HOUR_MS)))),
    ("producers-bounded", lambda facts: settings(maxProducersPerTopic="4")(subscriptions(3, s="Shared")(facts))),
    ("producers-bounded", place(max_producers_per_topic=1)),
    ("consumers-bounded", settings(maxConsumersPerSubscription="1")),
    ("consumers-bounded", place(max_consumers_per_topic=2)), ("still-over-limit", lambda facts: facts),
    ("some-stay", lambda facts: facts), ("policies-set", own((SIZE_QUOTA, None))),
    ("deduplication-begins", undeduplicated("Pulsar-CPP-v3.7.0", "Pulsar-Java-v4.0.7")),
    ("deduplication-begins", lambda facts: own((DEDUPLICATION, False))(producers("Pulsar-CPP-v4.2.0")(facts))),
    ("not-seen", unread(Source.TOPICS)), ("not-seen", unread(Source.POLICIES)),
    ("not-seen-of-broker", unread(Source.SETTINGS)),
    ("delays-off", own((DELAYED_DELIVERY, DelayedDelivery(active=False)))),
    ("quota-drops", own((SIZE_QUOTA, EVICTING))),
    ("subscription-expiry", place(subscription_expiration_time_minutes=5)),
]  # fmt: skip
EXCESS = Excess(
    topic=TOPIC, subscription="s", gaps=1_702, gaps_after=1_297, limit=1_000, cure=None, shortest_ms=15 * MINUTE_MS,
    stays=3_000, pending=4_000,
)  # fmt: skip
OF_DOCTOR = {"delays-off", "quota-drops", "subscription-expiry"}


def _named(plan: Plan, name: str) -> Plan:
    """A plan as none can be made: of a topic of timewheel's own."""
    named = replace(plan)
    object.__setattr__(named, "due_topic", name)
    return named


@pytest.mark.parametrize(("slug", "change"), CASES, ids=[f"{slug}-{n}" for n, (slug, _) in enumerate(CASES)])
def test_each_kind_is_found(slug: str, change: Change) -> None:
    longest_ms = 30 * DAY_MS if slug == "ttl-below-delays" else None
    stays = {"encrypted": 7} if slug == "some-stay" else {}
    found = findings_on(change(sound()), longest_ms, stays, EXCESS if slug == "still-over-limit" else None)
    assert slug in {one.slug for one in found}
    assert all(one.read and one.cure for one in found)
    assert [one.severity for one in found] == sorted((one.severity for one in found), reverse=True)
    assert is_refused(found) is any(one.severity is Severity.ERROR for one in found)


def test_gaps_beyond_the_limit_name_the_window_that_would_do_or_why_none_would() -> None:
    (found,) = findings_on(sound(), None, {}, EXCESS)
    assert found.read == (
        "subscription s has 1,702 gaps, and 1,297 once the shadow has caught up; the broker keeps 1,000. "
        "No window would do: of 4,000 pending entries 3,000 are due within 15m, or cannot be moved"
    )
    assert "more partitions; or " in found.cure
    assert "managedLedgerMaxUnackedRangesToPersist" in found.cure
    (found,) = findings_on(sound(), None, {}, replace(EXCESS, cure=with_window(PLAN, 10 * MINUTE_MS)))
    assert found.cure.startswith("timewheel shadow start plan.toml --window 10m ")
    assert '[tiered] window = "10m", tiers = ["10m", "30m", ' in found.cure


def test_every_kind_has_a_case() -> None:
    assert {slug for slug, _ in CASES} - OF_DOCTOR == {kind.slug for kind in KINDS}
    assert len({kind.slug for kind in KINDS}) == len(KINDS)


HARMLESS: list[Change] = [
    lambda facts: facts,
    producers("Pulsar-CPP-v4.2.0"),
    own((DELAYED_DELIVERY, DelayedDelivery(active=True, max_delay_ms=DAY_MS))),
    lambda facts: replace(facts, replicated_to=("one",), compaction_bytes=0),
    settings(maxProducersPerTopic="100", maxConsumersPerSubscription="2", maxConsumersPerTopic="3"),
    # Of the broker itself, and of a reader.
    subscriptions(0, **{"s": "Shared", "pulsar.dedup": "Exclusive"}),
]


def test_a_start_names_each_policy_that_it_sets_and_only_where_numbers_may_be_used_twice_it_warns() -> None:
    (found,) = findings_on(undeduplicated("Pulsar-Java-v4.0.7")(sound()), None, {})
    assert (found.slug, found.read) == ("policies-set", "set deduplicationEnabled = true")
    place_has_it = settings(brokerDeduplicationEnabled="true")
    (found,) = findings_on(place_has_it(undeduplicated("Pulsar-CPP-v4.2.0")(sound())), None, {})
    assert found.slug == "policies-set"


def test_what_deduplication_may_lose_is_said_with_whom_it_concerns_and_when_nothing_must_be_done() -> None:
    clients = ["Pulsar-Java-v4.0.7", *["Pulsar-CPP-v3.7.0"] * 7]
    every = findings_on(undeduplicated(*clients)(sound()), None, {})
    found = next(one for one in every if one.slug == "deduplication-begins")
    assert "it concerns p1 (Pulsar-CPP-v3.7.0), p2 " in found.read
    assert found.read.endswith("p5 (Pulsar-CPP-v3.7.0), and 2 more")
    assert "p0" not in found.read
    assert found.cure.startswith("Nothing if none batches and delays")
    assert "before the first answer" in found.why


@pytest.mark.parametrize("change", HARMLESS, ids=range(len(HARMLESS)))
def test_of_a_sound_topic_nothing_is_said(change: Change) -> None:
    assert findings_on(change(sound()), 20 * DAY_MS, {}) == ()


def test_a_ttl_above_all_delays_is_only_replaced() -> None:
    (found,) = findings_on(own((MESSAGE_TTL_S, 90 * 86_400))(sound()), 20 * DAY_MS, {})
    assert (found.slug, found.read) == ("policies-set", "set messageTTL = 0 (never)")


def test_cursors_of_readers_and_of_the_broker_do_not_count() -> None:
    stats = stats_of(
        subscriptions={
            "s": subscription("Shared"),
            "look": replace(subscription("Exclusive"), is_durable=False),
            **dict.fromkeys(("pulsar.dedup", COMPACTION_CURSOR), subscription("Exclusive")),
        }
    )
    assert set(cursors_in(internals("LedgerOpened", "look", "pulsar.dedup", COMPACTION_CURSOR), stats)) == {"s"}


@given(plans("tiered", "wheel"), st.data())
def test_writes_are_those_of_a_timers_way(plan: Plan, chosen: st.DataObject) -> None:
    remaining_ms = chosen.draw(st.integers(0, plan.max_delay_ms))
    way = journey(plan, NOW_MS + remaining_ms, NOW_MS)
    assert writes_of(plan, NOW_MS, [remaining_ms]) == 2 + len(way.holds)
    assert writes_of(plan, NOW_MS, []) == 0
