"""What of a shadow's standing needs attention, and what does not."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.core.plan_space import DUE_TOPIC
from tests.packaging.test_printed_commands import COMMANDS, command_of
from tests.support.plans import plan_of
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Tiered
from timewheel.shadow.curing import Excess, with_window
from timewheel.shadow.desired_state import DesiredState, State
from timewheel.shadow.overview import (
    STALE_ENTRIES,
    Lag,
    PartitionOverview,
    Phase,
    Queue,
    ShadowOverview,
    SubscriptionOverview,
    overview_facts,
)

NOW_MS = 1_767_225_600_000
PLAN = plan_of(Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,)), relay="service", intake=True)
SOUND = PartitionOverview(
    topic=f"{DUE_TOPIC}-partition-0", phase=Phase.SHADOWING, mover="/10.0.0.1:4711", relay="0a1b2c3d-relay-1",
    caught_up_ms=NOW_MS - HOUR_MS, lag=Lag(copies=1_000, p50_ms=20, p99_ms=300),
    intake=Queue(entries=0, oldest_ms=None), copies=Queue(entries=3, oldest_ms=100),
    journal=Queue(entries=700, oldest_ms=HOUR_MS), pinned_by="billing",
    subscriptions=(SubscriptionOverview(name="billing", type="Shared", pending=9, gaps=8, delayed=9, stale_entries=0),),
    sampled=9, left=0,
)  # fmt: skip


def overview(state: State = State.SHADOWING, refusal: str = "", holding: int = 70, **changes: Any) -> ShadowOverview:
    return ShadowOverview(
        plan=PLAN, at_ms=NOW_MS, desired=DesiredState(state, NOW_MS - DAY_MS), refusal=refusal,
        far_ms=HOUR_MS + 5 * MINUTE_MS, gap_limit=10_000, parts=(replace(SOUND, **changes),),
        holding={"tier": holding} if holding else {}, dead_letters=0, writes=5.5, unread=(),
    )  # fmt: skip


def one_subscription(**changes: Any) -> dict[str, Any]:
    return {"subscriptions": (replace(SOUND.subscriptions[0], **changes),)}


EXCESS = Excess(
    topic=SOUND.topic, subscription="billing", gaps=20_000, gaps_after=12_000, limit=10_000,
    cure=with_window(PLAN, 30 * MINUTE_MS), shortest_ms=MINUTE_MS, stays=1, pending=9,
)  # fmt: skip
SAID: list[tuple[ShadowOverview, str]] = [
    (overview(refusal="subscription audit is Exclusive"), "subscription audit is Exclusive"),
    (overview(phase=Phase.NOBODY, mover=None), "no mover"),
    (overview(relay=None), "no relay is connected"),
    (overview(intake=Queue(entries=3, oldest_ms=2 * MINUTE_MS)), "the intake makes no progress"),
    (overview(copies=Queue(entries=3, oldest_ms=2 * MINUTE_MS)), "its first entry has waited for 2 min"),
    (overview(begun=11), "it began 11 times in 5 min"),
    (overview(journal=Queue(entries=3, oldest_ms=3 * HOUR_MS)), "subscription billing has an old message"),
    (overview(left=12), "about 12 entries are far from due"),
    (overview(**one_subscription(gaps=8_000)), "8,000 gaps"),
    (replace(overview(**one_subscription(gaps=20_000)), excess=EXCESS), "shadow start PLAN --window 30m"),
    (overview(**one_subscription(stale_entries=STALE_ENTRIES)), "an unload removes them"),
    (overview(State.DRAINING, relay=None, copies=Queue(entries=0, oldest_ms=None)), "are to go back"),
    (
        overview(State.NATIVE, holding=0, mover=None, copies=Queue(entries=0, oldest_ms=None), phase=Phase.IDLE),
        "The journal still has 700 entries",
    ),
    (
        replace(
            overview(State.NATIVE, holding=0, relay=None, copies=Queue(entries=0, oldest_ms=None)), former={"tier": 7}
        ),
        "are to go back",
    ),
]
NEEDY = [found for found, _ in SAID]


@pytest.mark.parametrize(("found", "said"), SAID, ids=range(len(SAID)))
def test_what_needs_attention_is_said(found: ShadowOverview, said: str) -> None:
    (warning,) = found.warnings
    assert said in warning
    assert overview_facts(found)["warnings"] == [warning]


@pytest.mark.parametrize("found", NEEDY, ids=range(len(NEEDY)))
def test_what_needs_attention_ends_with_a_command_that_works_as_printed(found: ShadowOverview) -> None:
    """A status that ends with 3 once said no more than that gaps are many."""
    reached_by = ("--service-url", "pulsar://b:6650", "--admin-url", "http://b:8080", "--tls-ca", "my ca.pem")
    (warning,) = replace(found, target="my plan.toml", reached_by=reached_by).warnings
    assert "PLAN" not in warning
    words = shlex.split(warning.partition("   # ")[0].rpartition(": ")[2])
    if words[0] == "pulsar-admin":
        assert words == ["pulsar-admin", "topics", "unload", SOUND.topic]
        return
    name = command_of(words)
    options = COMMANDS[name].make_context(name, words[len(name.split()) :]).params
    assert options["admin_url"] == "http://b:8080"
    assert options["tls_ca"] == Path("my ca.pem")
    assert options.get("service_url", "pulsar://b:6650") == "pulsar://b:6650"
    assert {"my plan.toml", DUE_TOPIC} & set(words)


@pytest.mark.parametrize(
    "found",
    [
        overview(),
        overview(phase=Phase.CATCHING_UP, caught_up_ms=None, left=50_000, begun=10),
        overview(State.PAUSED, refusal="it is compacted", phase=Phase.IDLE),
        overview(journal=Queue(entries=0, oldest_ms=None), copies=Queue(entries=0, oldest_ms=None), lag=None),
        overview(**one_subscription(gaps=7_999, stale_entries=STALE_ENTRIES - 1)),
        overview(State.NATIVE, holding=0, relay=None, copies=Queue(entries=0, oldest_ms=None), phase=Phase.IDLE),
    ],
    ids=range(6),
)
def test_what_is_as_it_should_be_needs_none(found: ShadowOverview) -> None:
    assert found.warnings == ()
    assert json.loads(json.dumps(overview_facts(found)))["partitions"][0]["topic"] == SOUND.topic
