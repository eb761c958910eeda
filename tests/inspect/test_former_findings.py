"""What is said of timers that wait in topics of earlier plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from timewheel.broker.admin.parts import relays_of
from timewheel.broker.admin.stats import read_topic_stats
from timewheel.core.durations import HOUR_MS
from timewheel.core.names import DRAINS_PROPERTY, RELAY_SUBSCRIPTION
from timewheel.core.plan import Native, Plan, Tiered
from timewheel.core.topology import FormerTopic, holding_topic
from timewheel.provision.former_topics import findings_of, left_behind, remedy_for

DUE_TOPIC = "persistent://acme/crm/reminders"
TIER_9D = f"{DUE_TOPIC}.tw.tier-9d"


def plan(**changed: Any) -> Plan:
    tiers = Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS,))
    return Plan(due_topic=DUE_TOPIC, subscriptions=("billing",), scheme=tiers, **changed)


def test_what_waits_in_a_namespace_that_the_plan_does_not_name_is_left_behind_whoever_relays() -> None:
    name = "persistent://acme/held/acme~crm~reminders.tw.tier-9d"
    known = plan(former_namespaces=("acme/held",))
    held = FormerTopic(name=name, backlog=3, holding=holding_topic(known, name))
    for relay in ("embedded", "service"):
        after = plan(relay=relay, former_namespaces=("acme/then",))
        assert left_behind(after, [held]) == (held,)
        assert 'write former_namespaces = ["acme/then", "acme/held"] in the plan' in remedy_for(after, [held])
        (told,) = findings_of(after, [held])
        assert "does not name the namespace acme/held" in told.read
    assert left_behind(replace(known, relay="service"), [held]) == ()
    assert "former_namespaces" not in remedy_for(known, [held])


def test_what_is_left_behind_and_what_to_do() -> None:
    tier = FormerTopic(name=TIER_9D, backlog=3, holding=holding_topic(plan(), TIER_9D))
    day = FormerTopic(name=f"{DUE_TOPIC}.tw.1d-20260101", backlog=2, is_due=True)
    strange = FormerTopic(name=f"{DUE_TOPIC}.tw.later", backlog=1)
    empty = replace(strange, backlog=0)
    topics = [tier, day, strange, empty]
    assert left_behind(plan(), topics) == (tier, day, strange), "nobody in a consumer can list topics"
    assert left_behind(plan(relay="service"), topics) == (day, strange)
    assert left_behind(plan(), [replace(day, is_followed=True)]) == ()
    remedy = remedy_for(plan(), topics)
    assert "timewheel relay run PLAN" in remedy
    assert 'former_intervals = ["1d"]' in remedy
    assert "the version of timewheel" in remedy
    assert "former_intervals" not in remedy_for(plan(), [tier])
    told = findings_of(plan(), topics)
    assert [finding.subject for finding in told] == [tier.name, day.name, strange.name]
    assert "3 entries wait here" in told[0].read
    assert "1 entry waits here" in told[2].read


@pytest.mark.parametrize("relay", ["embedded", "service"])
@pytest.mark.parametrize("relays", [(), ("old",)])
def test_what_is_said_of_a_topic_agrees_with_whether_it_is_left_behind(relay: Any, relays: tuple[str, ...]) -> None:
    after = plan(relay=relay)
    tier = FormerTopic(name=TIER_9D, backlog=3, holding=holding_topic(after, TIER_9D), relays=relays)
    (told,) = findings_of(after, [tier])
    if left_behind(after, [tier]):
        assert "do not find it by themselves" in told.read
        assert "goes on by this plan" not in told.read
        assert "keep a relay that can list topics running" in told.cure
        assert ("connected now: relay old" in told.read) == bool(relays)
    else:
        assert "goes on by this plan" in told.read
        assert told.cure.startswith("timewheel relay run PLAN drains it")
    assert "--despite" not in told.cure, "an option of topics ensure alone"


def test_back_to_native_the_way_out_is_named() -> None:
    native = replace(plan(relay="service"), scheme=Native())
    tier = FormerTopic(name=TIER_9D, backlog=3, holding=holding_topic(native, TIER_9D))
    (told,) = findings_of(native, [tier])
    assert "each goes to the due topic at once" in told.read
    assert "timewheel relay abort PLAN" in told.cure
    assert "timewheel relay abort PLAN" in remedy_for(native, [tier])


def test_what_an_earlier_plan_held_is_moved_on_by_the_shadow_of_a_plan_with_an_intake() -> None:
    """`timewheel relay run` refuses such a plan."""
    shadowed = plan(relay="service", readers="any", intake=True)
    tier = FormerTopic(name=TIER_9D, backlog=3, holding=holding_topic(shadowed, TIER_9D))
    (told,) = findings_of(shadowed, [tier], "my plan.toml")
    assert told.cure.startswith("timewheel shadow run 'my plan.toml' drains it")
    assert "relay run" not in remedy_for(shadowed, [tier])


@pytest.mark.parametrize("relay", ["embedded", "service"])
def test_what_is_parked_is_named_and_waits_for_an_operator_whoever_relays(relay: Any) -> None:
    after = plan(relay=relay)
    parked = FormerTopic(name=f"{DUE_TOPIC}.tw.parked.a%20b", backlog=2, parked_by="a b")
    assert left_behind(after, [parked]) == (), "no relay and no consumer is to move it on"
    (told,) = findings_of(after, [parked], "my plan.toml")
    assert "2 entries wait here" in told.read
    assert "a b has parked" in told.read
    assert "timewheel parked list 'my plan.toml' --subscription 'a b'" in told.cure
    assert "--remove-drained" in told.cure
    assert findings_of(after, [replace(parked, backlog=0)]) == ()


def test_what_a_connected_relay_drains_as_an_earlier_plans_is_not_left_behind() -> None:
    """A service that was handed `former_topics`: its relay, inside a consumer, says so on the topic itself."""
    after = plan()
    drained = FormerTopic(name=TIER_9D, backlog=3, holding=holding_topic(after, TIER_9D), relays=("new", "old"))
    assert left_behind(after, [drained]) == (drained,), "a relay of the plan that named it goes with its service"
    drained = replace(drained, drained_by=("new",))
    for whose in (after, plan(relay="service"), replace(after, scheme=Native())):
        assert left_behind(whose, [drained]) == ()
        (told,) = findings_of(whose, [drained])
        assert "relay new drains it" in told.read
        assert "do not find it" not in told.read
        assert told.cure.startswith("keep relay new running until it is empty; afterwards: timewheel topics ensure")


def test_only_a_relay_whose_plan_no_longer_names_the_topic_says_that_it_drains_it() -> None:
    def consumer(name: str, **properties: str) -> dict[str, Any]:
        return {"consumerName": name, "metadata": properties}

    consumers = [
        consumer("0123abcd-old"),
        consumer("4567abcd-new", **{DRAINS_PROPERTY: "true"}),
        consumer("stranger", **{DRAINS_PROPERTY: "true"}),
    ]
    stats = read_topic_stats({"subscriptions": {RELAY_SUBSCRIPTION: {"consumers": consumers}}}, clients=True)
    assert relays_of(stats) == {"old", "new"}
    assert relays_of(stats, drains=True) == {"new"}
