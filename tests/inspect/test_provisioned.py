"""What provisioning notes beside a due topic, and what a later plan makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.plans import plan_of
from timewheel.cli.relay import RelayFactory
from timewheel.core.durations import DAY_MS
from timewheel.core.errors import AdminDenied, TopologyError
from timewheel.core.names import PROVISIONED_PROPERTY
from timewheel.core.plan import MAX_FORMER, Tiered
from timewheel.events import RelayPlanOutdated
from timewheel.hooks import Event
from timewheel.provision.provisioned import (
    Provisioned,
    provided,
    refuse_older,
    routing_of,
    same_revision,
    with_noted_namespaces,
)

PLAN = plan_of(
    Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)), subscriptions=("a:b/c d%é", "billing"), holding_namespace="acme/held"
)
OF_HELD = "persistent://acme/held/acme~crm~reminders.tw.tier-1d-partition-0"


def test_a_note_is_read_as_it_was_written() -> None:
    noted = provided(PLAN, None, [])
    assert noted == Provisioned(
        subscriptions=frozenset(PLAN.subscriptions),
        namespaces=frozenset({"acme/held"}),
        revision=PLAN.revision,
        routing=routing_of(PLAN),
    )
    assert Provisioned.read(noted.properties()) == noted


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "7", '{"subscriptions": 7, "namespaces": []}'])
def test_what_is_no_note_counts_as_none(text: str | None) -> None:
    assert Provisioned.read({} if text is None else {PROVISIONED_PROPERTY: text}) is None


def test_a_namespace_is_noted_as_long_as_a_topic_of_the_plan_is_in_it() -> None:
    noted, after = provided(PLAN, None, []), replace(PLAN, holding_namespace=None)
    assert with_noted_namespaces(after, noted).former_namespaces == ("acme/held",)
    assert with_noted_namespaces(PLAN, noted) == PLAN
    whole = with_noted_namespaces(after, noted)
    assert provided(whole, noted, [OF_HELD]).namespaces == {"acme/held"}
    assert provided(whole, noted, ["persistent://acme/held/another"]).namespaces == frozenset()


@pytest.mark.parametrize("names", [{"no namespace"}, {f"acme/n{number}" for number in range(MAX_FORMER + 1)}])
def test_a_note_that_somebody_else_wrote_breaks_nothing(names: set[str]) -> None:
    assert len(with_noted_namespaces(PLAN, Provisioned(namespaces=frozenset(names))).former_namespaces) in {
        0,
        MAX_FORMER,
    }


def test_only_an_older_plan_is_refused() -> None:
    noted = provided(replace(PLAN, revision=2), None, [])
    for plan in (replace(PLAN, revision=2), replace(PLAN, revision=3)):
        refuse_older(plan, plan.due_topic, noted)
    refuse_older(PLAN, PLAN.due_topic, None)
    refuse_older(PLAN, PLAN.due_topic, Provisioned())
    with pytest.raises(TopologyError, match="revision 2 of its plan, and this file has revision 1") as refused:
        refuse_older(PLAN, PLAN.due_topic, noted, "old plan.toml")
    assert "write revision = 3 in it and run timewheel topics ensure 'old plan.toml'" in refused.value.remedy


def test_of_two_plans_of_one_revision_that_route_differently_both_are_named() -> None:
    """A change without a raised revision once passed in silence, and so did the file from before it."""
    noted = provided(PLAN, None, [])
    changed = replace(PLAN, scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 2 * DAY_MS)))
    (found,) = same_revision(changed, PLAN.due_topic, noted, "my plan.toml")
    assert routing_of(PLAN) in found.problem
    assert routing_of(changed) in found.problem
    assert "write revision = 2 in it and run timewheel topics ensure 'my plan.toml'" in found.remedy
    of_earlier_code = replace(noted, routing=f"0.{noted.routing}")
    same_route = replace(PLAN, max_delay_ms=PLAN.max_delay_ms - DAY_MS)
    for plan, record in (
        (PLAN, noted),
        (same_route, noted),
        (replace(changed, revision=2), noted),
        (changed, None),
        (changed, replace(noted, routing="")),
        (changed, of_earlier_code),
    ):
        assert same_revision(plan, PLAN.due_topic, record) == ()


def test_a_note_of_an_earlier_version_names_no_routing() -> None:
    properties = provided(PLAN, None, []).properties()
    stored = json.loads(properties[PROVISIONED_PROPERTY])
    del stored["routing"]
    noted = Provisioned.read({PROVISIONED_PROPERTY: json.dumps(stored)})
    assert noted is not None
    assert noted.routing == ""


def test_a_relay_of_an_older_file_says_so_once_and_goes_on() -> None:
    """It read its file at its start, and nothing said that another file had provisioned the topic since."""
    events: list[Event] = []
    properties: dict[str, str] = {}
    admin: Any = SimpleNamespace()
    admin.topics = SimpleNamespace(properties=lambda _: dict(properties), list=lambda _: ())
    factory = RelayFactory(None, admin, (PLAN,), None, None, 1 << 20, (events.append,))
    former_topics = factory._options(PLAN)["former_topics"]
    for noted in (None, replace(PLAN, revision=1), replace(PLAN, revision=3), replace(PLAN, revision=3)):
        if noted is not None:
            properties |= provided(noted, None, []).properties()
        assert former_topics() == ()
    (event,) = events
    assert isinstance(event, RelayPlanOutdated)
    assert "revision 3 of its plan, and this file has revision 1" in event.reason
    admin.topics.properties = lambda _: (_ for _ in ()).throw(AdminDenied(403, "GET", "no"))
    assert former_topics() == ()
