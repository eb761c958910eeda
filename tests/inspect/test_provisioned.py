"""What provisioning notes beside a due topic, and what a later plan makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from timewheel.core.durations import DAY_MS
from timewheel.core.errors import TopologyError
from timewheel.core.names import PROVISIONED_PROPERTY
from timewheel.core.plan import MAX_FORMER, Plan, Tiered
from timewheel.provision.provisioned import Provisioned, provided, refuse_older, with_noted_namespaces

PLAN = Plan(
    due_topic="persistent://acme/crm/reminders",
    subscriptions=("a:b/c d%é", "billing"),
    scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)),
    holding_namespace="acme/held",
)
OF_HELD = "persistent://acme/held/acme~crm~reminders.tw.tier-1d-partition-0"


def test_a_note_is_read_as_it_was_written() -> None:
    noted = provided(PLAN, None, [])
    assert noted == Provisioned(
        subscriptions=frozenset(PLAN.subscriptions), namespaces=frozenset({"acme/held"}), revision=PLAN.revision
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
