"""A fleet: every topic's native gaps counted in one pass, and a plan for each that needs one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.support.browser import chromium, shown
from tests.support.brute_force import Rollover, most_gaps
from tests.support.exact_play import native_peak
from timewheel.cli.app import app
from timewheel.cli.plan import file_names
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Native, Plan
from timewheel.spark_planner.choice.constraints import Allowance, Constraints, max_countable
from timewheel.spark_planner.fleet import FLEET_TOPICS, Fleet, NativeFit, plan_all
from timewheel.spark_planner.job import History, survey
from timewheel.spark_planner.pricing.simulation import NATIVE
from timewheel.spark_planner.results.facts import fleet_facts, fleet_verdict
from timewheel.spark_planner.session import Progress

START_MS = 1_767_571_200_000
PROFILE = BrokerProfile.from_mapping({"base": "4.0", "name": "small", "gap_limit_ranges": 300})
LIMITS = Constraints()
ALLOWED = max_countable(LIMITS.allowed_gaps(300), 1.0)
QUIET = 30
Integers = NDArray[np.int64]
Answer = tuple[Path, Any]
"""The folder, and what the command printed as JSON."""


def base_of(topic: str) -> Plan:
    return Plan(due_topic=f"persistent://acme/fleet/{topic}", subscriptions=("billing",))


def _sends() -> dict[str, tuple[Integers, Integers]]:
    """By topic (publish, due), publish times in order."""
    rng = np.random.default_rng(4)

    def sent(timers: int, days: int) -> Integers:
        found: Integers = np.sort(rng.integers(0, days * DAY_MS, timers)) + START_MS
        return found

    topics: dict[str, tuple[Integers, Integers]] = {}
    for number in range(QUIET):
        at_ms = sent(100, 10)
        topics[f"quiet-{number:02}"] = at_ms, at_ms + rng.integers(0, HOUR_MS, 100)
    mixed_ms, fixed_ms, short_ms = sent(8_000, 10), sent(5_000, 10), sent(700, 10)
    topics["mixed"] = mixed_ms, mixed_ms + rng.integers(MINUTE_MS, 3 * DAY_MS, 8_000)
    # Many wait, but in the order of their dues.
    topics["fixed"] = fixed_ms, fixed_ms + 2 * DAY_MS
    # Within ten days of thirty few are due out of order.
    topics["short"] = short_ms, short_ms + rng.integers(DAY_MS, 60 * DAY_MS, 700)
    return topics


@dataclass(frozen=True)
class World:
    sends: dict[str, tuple[Integers, Integers]]
    history: History
    heard: list[Progress]
    fleet: Fleet


@pytest.fixture(scope="module")
def world(spark: SparkSession) -> World:
    sends = _sends()
    rows = pa.table(
        {
            "publish_ms": np.concatenate([publish_ms for publish_ms, _ in sends.values()]),
            "due_ms": np.concatenate([due_ms for _, due_ms in sends.values()]),
            "topic": [topic for topic, (publish_ms, _) in sends.items() for _ in publish_ms],
        }
    )
    mixed = rows.take(np.random.default_rng(1).permutation(len(rows)))
    history = survey(spark.createDataFrame(mixed), topic_limit=FLEET_TOPICS)
    heard: list[Progress] = []
    fleet = plan_all(history, base_of, PROFILE, LIMITS, most=1, on_progress=heard.append)
    return World(sends, history, heard, fleet)


@pytest.mark.short
def test_every_topic_is_counted_by_itself(world: World) -> None:
    assert {one.topic for one in world.fleet.topics} == set(world.sends)
    for one in world.fleet.topics:
        publish_ms, due_ms = world.sends[one.topic]
        exact = native_peak(due_ms)
        assert one.peak.gap_count <= exact <= one.peak.gap_count_limit, one.topic
        assert one.timers == len(publish_ms)


@pytest.mark.short
def test_those_that_matter_come_first_and_have_a_plan_as_far_as_was_asked(world: World) -> None:
    native_fit = {one.topic: one.native_fit for one in world.fleet.topics}
    assert native_fit.pop("mixed") == NativeFit.OVER
    assert native_fit.pop("short") == NativeFit.SHORT
    assert set(native_fit.values()) == {NativeFit.FINE}
    assert [one.topic for one in world.fleet.topics[:2]] == ["mixed", "short"]
    assert set(world.fleet.planned) == {"mixed"}
    assert world.fleet.waiting == ("short",)
    assert not world.fleet.keeps_limits


@pytest.mark.short
def test_a_bitmap_that_may_be_too_small_is_looked_into(world: World) -> None:
    peak = {one.topic: one.peak.gap_count_limit for one in world.fleet.topics}
    median = sorted(peak.values())[len(peak) // 2]
    broker = replace(PROFILE, ack_format="bitmap", metadata_store_limit_ranges=median)
    found = plan_all(world.history, base_of, broker, LIMITS, most=0)
    fine = {one.topic for one in found.topics if one.native_fit == NativeFit.FINE}
    kept = Allowance(constraints=LIMITS, ranges=median).gaps(NATIVE)
    assert fine <= {topic for topic in peak if peak[topic] <= kept} < set(peak) - {"mixed", "short"}


@pytest.mark.short
def test_a_plan_is_that_of_the_topic_planned_for_alone(world: World) -> None:
    planned = world.fleet.planned["mixed"]
    assert planned.plan.due_topic == "persistent://acme/fleet/mixed"
    assert planned.recommended.replay.peak_per_partition.gap_count <= ALLOWED
    rollover = Rollover(PROFILE.ledger_max_entries, PROFILE.ledger_min_age_ms, PROFILE.ledger_max_age_ms)
    native = most_gaps(base_of("mixed").with_partitions(1), *world.sends["mixed"], rollover=rollover)
    assert planned.native.replay.peak_of_total.gap_count == native > ALLOWED
    assert world.fleet.plan_of("mixed", base_of) == planned.plan
    assert world.fleet.plan_of("quiet-00", base_of) == replace(base_of("quiet-00"), scheme=Native())


@pytest.mark.short
def test_it_is_told_which_topic_is_planned_for(world: World) -> None:
    stages = list(dict.fromkeys(one.stage for one in world.heard))
    assert stages[0] == "putting the history in order"
    assert stages[1] == "counting native gaps of every topic"
    assert "pricing candidates for mixed" in stages


@pytest.mark.short
def test_what_is_more_than_was_to_be_planned_waits_and_is_no_plan(world: World) -> None:
    fleet = plan_all(world.history, base_of, PROFILE, LIMITS, most=0)
    assert fleet.waiting == ("mixed", "short")
    assert not fleet.planned
    assert not fleet.keeps_limits
    assert fleet.plan_of("mixed", base_of) is None
    assert fleet.plan_of("quiet-01", base_of) is not None


@pytest.mark.short
def test_a_history_that_nothing_follows_is_not_short(world: World) -> None:
    fleet = plan_all(world.history, base_of, PROFILE, LIMITS, most=0, as_is=True)
    assert fleet.waiting == ("mixed",)


@pytest.mark.short
def test_with_more_volume_more_topics_matter(world: World) -> None:
    fleet = plan_all(world.history, base_of, PROFILE, LIMITS, most=0, growth=20_000.0, as_is=True)
    assert "quiet-00" in fleet.waiting
    assert "fixed" in {one.topic for one in fleet.topics if one.peak.gap_count == 0}, (
        "one fixed delay has no gaps at any volume"
    )


@pytest.mark.short
def test_another_limit_matters_too(world: World) -> None:
    limits = replace(LIMITS, silence_seconds=0.05)
    fleet = plan_all(world.history, base_of, PROFILE, limits, most=0, as_is=True)
    native_fit = {one.topic: one.native_fit for one in fleet.topics}
    # A thousand timers wait there at any time, at 90 us each.
    assert native_fit["fixed"] == NativeFit.OTHER
    assert native_fit["quiet-00"] == NativeFit.FINE


# ----------------------------------------------------------------------------------------------------------- the answer
@pytest.fixture(scope="module")
def answered(spark: SparkSession, world: World, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """The command, on the same history in a file."""
    folder = tmp_path_factory.mktemp("fleet")
    assert SparkSession.getActiveSession() is spark
    rows = [
        pa.table({"publish_ms": publish_ms, "due_ms": due_ms, "topic": [topic] * len(publish_ms)})
        for topic, (publish_ms, due_ms) in world.sends.items()
    ]
    pq.write_table(pa.concat_tables(rows), folder / "history.parquet")
    (folder / "small.toml").write_text('base = "4.0"\nname = "small"\ngap_limit_ranges = 300\n', encoding="utf-8")
    arguments = ["plan", folder / "history.parquet", "--all-topics", "-o", folder / "plans", "--as-is", "--json"]
    found = CliRunner().invoke(app, [str(one) for one in (*arguments, "--profile", folder / "small.toml")])
    assert found.exit_code == 0, found.output
    return folder / "plans", json.loads(found.stdout)


@pytest.mark.short
def test_a_topic_that_no_plan_can_name_is_left_out_and_named(world: World) -> None:
    def refusing(topic: str) -> Plan:
        return base_of("../../etc/passwd" if topic in {"mixed", "fixed"} else topic)

    fleet = plan_all(world.history, refusing, PROFILE, LIMITS, as_is=True)

    assert set(fleet.unfit) == {"mixed", "fixed"}
    assert fleet.plan_of("mixed", refusing) is None
    assert fleet.plan_of("quiet-00", refusing) is not None
    assert not fleet.keeps_limits
    assert "No plan can name 2 topics" in fleet_verdict(fleet)
    assert set(fleet_facts(fleet, {})["unfit"]) == {"mixed", "fixed"}


@pytest.mark.short
def test_every_topic_has_a_plan_file_that_loads(answered: Answer, world: World) -> None:
    folder, facts = answered
    files = {one["topic"]: one["plan_file"] for one in facts["topics"]}
    assert set(files) == set(world.sends)
    for topic, name in files.items():
        plan = Plan.load(folder / name)
        assert plan.due_topic == f"persistent://public/default/{topic}"
        assert (plan.scheme == Native() and plan.partitions == 1) or topic == "mixed"
    assert len(list(folder.glob("*.toml"))) == len(world.sends)


@pytest.mark.short
def test_the_facts_are_ranked_and_counted(answered: Answer, world: World) -> None:
    _, facts = answered
    first = facts["topics"][0]
    assert (first["topic"], first["native_fit"]) == ("mixed", "over")
    assert first["native_gaps_counted"] <= native_peak(world.sends["mixed"][1]) <= first["native_gaps_at_most"]
    assert list(facts["planned"]) == ["mixed"]
    assert facts["keeps_limits"]
    assert facts["verdict"].startswith(f"Of {QUIET + 3} topics {QUIET + 2} can stay on native delays")


@pytest.mark.short
def test_the_index_leads_to_the_page_of_each_topic_that_matters(answered: Answer) -> None:
    folder, _ = answered
    assert sorted(path.name for path in folder.glob("*.html")) == ["index.html", "mixed.html"]
    with chromium() as browser:
        for width in (400, 1_280):
            with shown(browser, folder / "index.html", width=width) as seen:
                assert seen.page.locator("h1").inner_text() == f"timewheel plan: {QUIET + 3} topics"
                seen.page.locator("summary").first.click()
                assert "quiet-07" in seen.texts
                assert not seen.cut
                assert not seen.complaints
                seen.page.get_by_role("link", name="mixed").click()
                assert "mixed" in seen.page.locator("h1").inner_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--all-topics"], "give a folder"),
        (["--all-topics", "-o", "plans", "--topic", "a"], "it is of one topic"),
        (["--all-topics", "-o", "plans", "--report", "why.html"], "it is of one topic"),
        (["--all-topics", "-o", "no/such/plans"], "there is no folder"),
        (["--all-topics", "-o", __file__], "it is a folder"),
    ],
)
def test_options_that_contradict_are_refused_before_any_work(arguments: list[str], said: str) -> None:
    found = CliRunner().invoke(app, ["plan", "history.parquet", *arguments])
    assert found.exit_code == 2
    assert said in " ".join(found.output.replace("│", " ").split())


@given(topics=st.lists(st.text(max_size=200), unique=True, max_size=20))
@example(topics=["persistent://a/b/c", "a/b/c", "a-b-c", "A/B/C", "index", "..", "", "a" * 300, "a" * 301])
def test_every_topic_has_a_file_of_its_own(topics: list[str]) -> None:
    names = file_names(topics)
    assert set(names) == set(topics)
    assert len({name.casefold() for name in names.values()} | {"index"}) == len(topics) + 1
    assert all(re.fullmatch(r"\w[\w.-]*", name, re.ASCII) and len(name) < 140 for name in names.values())
