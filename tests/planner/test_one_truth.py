"""An answer has one truth: its sentences, tables, charts and status agree, where law and count differ by far too."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

from examples.history.generate import START_MS
from tests.planner.test_survey import of_sends, with_limit
from tests.support.contradictions import contradictions
from tests.support.dependent import DEPENDENT
from timewheel.cli.app import app
from timewheel.cli.plan import show_planned, status_of
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.escapes import timewheel_command
from timewheel.core.plan import Calendar, Native, Plan, Ring, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.spark_planner.choice.candidates import article_plans
from timewheel.spark_planner.estimating import estimate
from timewheel.spark_planner.job import plan_for, survey
from timewheel.spark_planner.results import tables
from timewheel.spark_planner.results.facts import (
    Prices,
    consequence,
    estimated_facts,
    estimated_verdict,
    gaps,
    in_words,
    next_steps,
    planned_facts,
    rooms_of,
)
from timewheel.spark_planner.results.report_page import report_page

pytestmark = pytest.mark.short

Sends = tuple[NDArray[np.int64], NDArray[np.int64]]
TIMERS = 8_000
BASE = Plan(due_topic="persistent://acme/crm/<reminders>", subscriptions=("billing",), max_delay_ms=60 * DAY_MS)
SCHEMES = (
    Native(),
    Calendar(interval_ms=10 * DAY_MS),
    Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, 5 * DAY_MS)),
    Tiered(window_ms=5 * DAY_MS, tiers_ms=(5 * DAY_MS,)),
    Wheel(rings=(Ring(slot_ms=DAY_MS, slots=70),)),
)


def turns(rng: np.random.Generator) -> Sends:
    """An hour and five days in turns: twice as many gaps as by the law."""
    sent_ms = START_MS + np.sort(rng.integers(0, 30 * DAY_MS, TIMERS))
    return sent_ms, sent_ms + np.where(np.arange(TIMERS) % 2 == 0, HOUR_MS, 5 * DAY_MS)


def few_long(rng: np.random.Generator) -> Sends:
    """One of 20 timers waits for days, the others for minutes: many handled messages between few gaps."""
    sent_ms = START_MS + np.sort(rng.integers(0, 30 * DAY_MS, TIMERS))
    is_far = rng.integers(0, 20, TIMERS) == 0
    return sent_ms, sent_ms + np.where(is_far, rng.integers(5, 10, TIMERS) * DAY_MS, rng.integers(0, HOUR_MS, TIMERS))


def sticky(rng: np.random.Generator) -> Sends:
    """Runs of 25 timers of one delay: a twentieth of the gaps of the law."""
    sent_ms = START_MS + np.sort(rng.integers(0, 30 * DAY_MS, TIMERS))
    return sent_ms, sent_ms + np.repeat(rng.integers(1, 30 * 24, TIMERS // 25) * HOUR_MS, 25)


def blocks(rng: np.random.Generator) -> Sends:
    """Ten timers in a row, due in fifteen minutes or in four weeks."""
    start_ms = np.sort(rng.integers(0, 30 * DAY_MS, TIMERS // 10))
    delay_ms = np.where(rng.random(len(start_ms)) < 0.5, rng.integers(25 * DAY_MS, 30 * DAY_MS, len(start_ms)),
                        15 * MINUTE_MS)  # fmt: skip
    sent_ms = (START_MS + start_ms[:, None] + np.cumsum(rng.integers(1, 40, (len(start_ms), 10)), 1)).ravel()
    due_ms = sent_ms + np.repeat(delay_ms, 10)
    order = np.argsort(sent_ms, kind="stable")
    return sent_ms[order], due_ms[order]


def nine(rng: np.random.Generator) -> Sends:
    """Due at nine of the next day, within a minute."""
    sent_ms = START_MS + np.sort(rng.integers(0, 28 * DAY_MS, TIMERS))
    return sent_ms, (sent_ms // DAY_MS + 1) * DAY_MS + 9 * HOUR_MS + rng.integers(0, MINUTE_MS, TIMERS)


def week(rng: np.random.Generator) -> Sends:
    """Shorter than its delays."""
    sent_ms = START_MS + np.sort(rng.integers(0, 7 * DAY_MS, TIMERS // 2))
    return sent_ms, sent_ms + rng.integers(0, 30 * DAY_MS, TIMERS // 2)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A history, and what is asked of it."""

    sends: Callable[[np.random.Generator], Sends]
    limit: int
    growth: float = 1.0
    as_is: bool = True
    partitions: int = 1
    key: str | None = None  # of half of the timers
    broker: dict[str, object] = field(default_factory=dict)  # other facts of its profile


BITMAPS = {"ack_format": "bitmap", "metadata_store_limit_ranges": 50}
CASES = {
    "turns": Case(sends=turns, limit=500),
    "turns, where the law keeps what the count breaks": Case(sends=turns, limit=600),
    "sticky": Case(sends=sticky, limit=60),
    "sticky, where the law breaks what the count keeps": Case(sends=sticky, limit=400),
    "blocks": Case(sends=blocks, limit=250),
    "nine": Case(sends=nine, limit=60),
    "three times the volume": Case(sends=turns, limit=1_000, growth=3.0),
    "no partitions": Case(sends=turns, limit=500, partitions=0),
    "nothing fits": Case(sends=nine, limit=3, partitions=0),
    "continued": Case(sends=week, limit=2_000, as_is=False),
    "a hot key": Case(sends=turns, limit=500, key="<b>tenant</b>"),
    "bitmaps": Case(sends=few_long, limit=170, broker=BITMAPS),
    "bitmaps, three times the volume": Case(sends=few_long, limit=510, growth=3.0, broker=BITMAPS),
    "bitmaps, and nothing fits": Case(
        sends=few_long, limit=22, partitions=0, broker={**BITMAPS, "metadata_store_limit_ranges": 1}
    ),
    "events": Case(sends=lambda rng: DEPENDENT["four timers of an event, seconds apart"](rng, TIMERS), limit=150),
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a reader gets."""

    facts: dict[str, Any]
    text: str
    page: str
    status: int


@pytest.fixture(scope="module")
def answers(spark: SparkSession) -> Callable[[str], Answer]:
    """Each is made once."""
    made: dict[str, Answer] = {}

    def answer(name: str) -> Answer:
        if name not in made:
            made[name] = _answer(spark, CASES[name])
        return made[name]

    return answer


def _answer(spark: SparkSession, case: Case) -> Answer:
    sent_ms, due_ms = case.sends(np.random.default_rng(4))
    keys = [case.key if case.key and number % 2 else None for number in range(len(sent_ms))]
    rows = list(zip(sent_ms.tolist(), due_ms.tolist(), keys, strict=True))
    history = survey(spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint, key string").coalesce(1))
    base = replace(BASE, partitions=case.partitions)
    schemes = [one for one in SCHEMES if case.partitions or not isinstance(one, Calendar)]
    profile = BrokerProfile.from_mapping(
        {"base": "4.0", "name": "4.0, small", "gap_limit_ranges": case.limit, **case.broker}
    )
    rules = {plan.scheme: plan for plan in article_plans(base, int((due_ms - sent_ms).max())).values()}
    candidates = list(({scheme: replace(base, scheme=scheme) for scheme in schemes} | rules).values())
    planned = plan_for(history, "", base, profile, candidates=candidates, growth=case.growth, as_is=case.as_is)
    history.cached.forget()
    console = Console(file=io.StringIO(), width=200)
    show_planned(console, planned, "", Prices())
    assert isinstance(console.file, io.StringIO)
    facts = json.loads(json.dumps(planned_facts(planned)))
    return Answer(
        facts=facts,
        text=console.file.getvalue(),
        page=report_page(planned),
        status=status_of(planned, history.statistic),
    )


@pytest.mark.parametrize("name", CASES)
def test_no_answer_contradicts_itself(answers: Callable[[str], Answer], name: str) -> None:
    answer = answers(name)
    assert contradictions(answer.facts, answer.text, answer.status) == []
    assert contradictions(answer.facts, answer.page, answer.status) == []
    assert "<b>" not in answer.page


Mutation = Callable[[str], str]


def figure(pattern: str) -> Mutation:
    """Adds a timer to the figure that a pattern finds."""

    def mutated(text: str) -> str:
        return re.sub(pattern, lambda found: f"{found[1]}{int(found[2].replace(',', '')) + 1:,}", text, count=1)

    return mutated


MUTATIONS: dict[str, Mutation] = {
    "what an unload delivers": figure(r"(delivers up to )([\d,]+)"),
    "the gaps of today": figure(r"(Native delays on one partition leave )([\d,]+)"),
    "the gaps of the verdict": figure(r"(leaves at most )([\d,]+)"),
    "the gaps of the reasons": figure(r"(is the cheapest that fits: )([\d,]+)"),
    "a room": figure(r"(reached is [^.]*?: at )(\d+)"),
    "how a figure is known": lambda text: text.replace(
        "gaps in a partition (counted)", "gaps in a partition (estimated)"
    ),
    "the verdict": lambda text: text.replace(
        " on 2 partitions: this history", " on 2 partitions (NOT within every limit): this"
    ),
    "whether to stay": lambda text: text.replace("Use native delays", "Stay with native delays"),
}
OF_TEXT: dict[str, Mutation] = {
    "a card": figure(r"(Gaps then: )(\d+)"),
    "what the recommended plan breaks": lambda text: re.sub(r"(\nrecommended .*)-\n", r"\1gaps\n", text, count=1),
    "a cell": figure(r"(\ntoday: native +\d+ +)([\d,]+)"),
}
OF_PAGE: dict[str, Mutation] = {
    "a legend": figure(r"(native, 1 partition: peak )([\d,]+)"),
    "a marker": lambda text: re.sub(r'("kind": "recommended", [^{}]*?"y": )', r"\g<1>9", text),
    "a card": figure(r"(?s)(Gaps now .*?<strong>)([\d,]+)"),
}


@pytest.mark.parametrize(
    ("kind", "mutated"),
    [pytest.param(kind, mutated, id=f"{kind}: {name}")
     for kind, every in (("text", MUTATIONS | OF_TEXT), ("page", MUTATIONS | OF_PAGE))
     for name, mutated in every.items()],
)  # fmt: skip
def test_a_contradiction_is_found(answers: Callable[[str], Answer], kind: str, mutated: Mutation) -> None:
    answer = answers("turns")
    before: str = getattr(answer, kind)
    after = mutated(before)
    assert after != before
    assert contradictions(answer.facts, after, answer.status)


@pytest.mark.parametrize("status", [1, 3])
def test_another_exit_status_is_found(answers: Callable[[str], Answer], status: int) -> None:
    answer = answers("turns")
    assert contradictions(answer.facts, answer.text, status)


@pytest.mark.parametrize(
    "mutation",
    [
        {"keeps_limits": False},
        {"front": []},
        {"rooms": [{"limit": "80% of the broker's gap limit in a partition", "times": 0.45, "timers_per_day": 1.0}]},
    ],
)
def test_facts_that_contradict_each_other_are_found(answers: Callable[[str], Answer], mutation: dict[str, Any]) -> None:
    answer = answers("turns")
    assert contradictions({**answer.facts, **mutation}, answer.text)


def test_a_plan_that_is_said_to_fit_and_brings_messages_again_is_found(answers: Callable[[str], Answer]) -> None:
    facts = answers("bitmaps, and nothing fits").facts
    assert facts["recommended"]["broken_constraints"] == ["redelivered"]
    fitting = {**facts, "keeps_limits": True, "recommended": {**facts["recommended"], "broken_constraints": []}}
    again = f"recommended: {facts['recommended']['delivered_again']} again and breaks []"
    assert again in contradictions(fitting, answers("bitmaps, and nothing fits").text)


# ------------------------------------------------------------------------------------------------------ what to do next
@pytest.mark.parametrize("scheme", ["native", "tiered", "shadow"])
def test_the_next_steps_work_as_they_are_printed(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as they do without a broker: each ends where the broker does not answer."""
    plan = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), max_delay_ms=60 * DAY_MS)
    if scheme != "native":
        plan = replace(plan, scheme=SCHEMES[2])
    if scheme == "shadow":
        plan = replace(plan, intake=True, relay="service", readers="any")
    monkeypatch.chdir(tmp_path)
    save_plan(plan, Path("it's a plan.toml"))
    steps = next_steps(plan, "it's a plan.toml", ["--admin-url", "http://127.0.0.1:1"])
    assert 1 <= len(steps) <= 3
    for _, words in steps:
        found = CliRunner().invoke(app, shlex.split(timewheel_command(*words))[1:])
        assert found.exit_code == 1, found.output
        assert "no connection to http://127.0.0.1:1" in f"{found.output} {found.exception}"


def test_a_plan_in_words() -> None:
    tiered = replace(BASE, scheme=Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS)))
    assert in_words(tiered).startswith("Timers due in more than 12 hours wait in topics of 5 days, 1 day and 12 hours")
    assert in_words(replace(BASE, partitions=3)).startswith("Timers wait in your topic of 3 partitions, under the")


@pytest.mark.parametrize("as_is", [False, True], ids=["continued", "as it is"])
@pytest.mark.parametrize("sends", [week, sticky, turns, blocks])
def test_an_answer_from_a_survey_has_one_figure_of_native_gaps(
    sends: Callable[[np.random.Generator], Sends], *, as_is: bool
) -> None:
    stored = of_sends(*sends(np.random.default_rng(4)))
    found = estimate(stored, "", BASE, with_limit(6_000), candidates=[BASE], as_is=as_is)
    figure = gaps(found, found.choice.native)
    texts = [estimated_verdict(found), consequence(found), *tables.plans_table(found).rows[0][2:3]]
    if as_is:
        texts.append(found.choice.reasons[0])
    assert [text for text in texts if f"{figure.value:,.0f}" not in text] == []
    facts = estimated_facts(found)
    assert facts["native"]["gaps"]["value"] == facts["recommended"]["gaps"]["value"] == figure.value
    room = next(room for room in rooms_of(found) if room.limit.startswith("80%"))
    broken = facts["native"]["broken_constraints"]
    assert (room.times < 1) == ("gap_fraction" in broken) == (figure.value > 0.8 * 6_000)
    assert found.keeps_limits == (not broken)
