"""`timewheel plan`, `predict` and `compare`: on the shipped example as it stands, and on histories with faults."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from examples.history.make_renewals import PATH, ROWS
from tests.support.processes import ran
from timewheel.cli.app import app
from timewheel.core.plan import Plan
from timewheel.core.planfile import parse_plan
from timewheel.spark_planner.choice import choose
from timewheel.spark_planner.choice.candidates import candidate_plans

TIERED = """
format = 1
due_topic = "persistent://acme/crm/renewals"
subscriptions = ["billing"]
max_delay = "90d"
[tiered]
window = "1d"
tiers = ["1d", "10d"]
"""
TIERED_FILE = "tiered.toml"
NATIVE = 'format = 1\ndue_topic = "persistent://acme/crm/renewals"\nsubscriptions = ["billing"]\n[native]\n'


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> Any:
    """The command line in this process, with the tests' own Spark."""

    def command(*arguments: str | Path) -> Result:
        # Spark's session is per thread, and the command takes the one that is there.
        assert SparkSession.getActiveSession() is spark
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plan")


def some_candidates(*arguments: Any) -> tuple[Plan, ...]:
    """Every sixth: to price one takes a quarter of a second. That there are over 300: test_candidates.py."""
    return candidate_plans(*arguments)[::6]


@pytest.fixture(scope="module")
def planned(run: Any, folder: Path) -> Result:
    """The one command of the README, with --json and some prices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "candidate_plans", some_candidates)
        result: Result = run(
            *("plan", PATH, "--as-is", "-o", folder / "plan.toml", "--report", folder / "why.html", "--json"),
            *("--price-topic-month", "2.5", "--price-million-writes", "0.4", "--currency", "CHF"),
        )
    assert result.exit_code == 0, result.output
    return result


def test_one_command_plans_from_the_shipped_example(planned: Result, folder: Path) -> None:
    found = json.loads(planned.stdout)
    plan = Plan.load(folder / "plan.toml")
    assert plan == parse_plan(found["plan"])
    assert plan.partitions == found["recommended"]["partitions"]
    assert plan.due_topic == "persistent://public/default/renewals"
    assert found["history"]["timers"] == ROWS
    assert found["history"]["quarantined_by_reason"] == {}
    assert found["keeps_limits"]
    assert found["candidate_count"] >= 50
    assert set(found["article_rules"]) == {"1 day", "1 day and 5 days", "12 hours", "day topics"}
    assert "<h2>Why</h2>" in (folder / "why.html").read_text(encoding="utf-8")


def test_its_numbers_are_those_of_the_exact_count(planned: Result) -> None:
    found = json.loads(planned.stdout)
    native = found["native"]["on_this_traffic"]
    assert native["counted"]["entries"] == ROWS
    counted = native["counted"]["peak_gaps"]
    assert counted["gap_count"] == counted["gap_count_limit"]
    assert native["predicted"]["peak_gaps"] == pytest.approx(counted["gap_count"], rel=0.01)
    recommended = found["recommended"]["on_this_traffic"]["counted"]["peak_gaps_per_partition"]["gap_count"]
    assert recommended <= 0.8 * found["profile"]["gap_limit_ranges"] < counted["gap_count"]


def test_people_read_the_reasons_beside_the_json(planned: Result) -> None:
    found = json.loads(planned.stdout)
    for sentence in found["reasons"]:
        assert sentence in planned.stderr
    for stage in ("reading the history", "pricing candidates", "counting ", "replaying simple rules"):
        assert stage in planned.stderr
    for caption in ("Alternatives: ", "Growth: ", "Peak gaps and hops at this volume: "):
        assert caption in planned.stderr
    assert "Assumed, name them before use" in planned.stderr
    # Renewals are due at 09:00 of a day within two months, so up to 61 days from when they are sent.
    assert "Sends of more than 90d will be refused (max_delay, --max-delay)" in planned.stderr
    assert "the longest of this history is of 61d." in planned.stderr


def test_a_months_money_is_told_at_the_prices_that_were_given(planned: Result, folder: Path) -> None:
    found = json.loads(planned.stdout)
    money, plan = found["money_a_month"], found["recommended"]
    given = {"currency": "CHF", "million_writes": 0.4, "topic_month": 2.5}
    assert money["prices"] == {**given, "gb_month": None, "relay_month": None}
    assert money["recommended"]["partition_topics"] == 2.5 * plan["partition_topics"]
    a_month = plan["entries_written_per_second"] * 86_400 * 365.25 / 12
    assert money["recommended"]["entries_written"] == pytest.approx(0.4 * a_month / 1e6)
    total = f"{money['recommended']['total']:,.2f} CHF"
    assert f"{total} a month, native {money['native']['total']:,.2f} CHF" in planned.stderr
    assert total in (folder / "why.html").read_text(encoding="utf-8")


def test_the_three_figures_are_told_with_how_they_are_known(planned: Result) -> None:
    found = json.loads(planned.stdout)
    counted = found["native"]["on_this_traffic"]["counted"]["peak_gaps"]["gap_count"]
    assert f"Gaps now: {counted:,} gaps at the peak (counted); native delays, one partition" in planned.stderr
    assert "entries written a second (estimated); " in planned.stderr
    # Five days of sends show no growth.
    assert found["growth_seen"] is None
    assert len(found["reasons"]) <= 5
    assert "Simple rules for comparison" in planned.stderr


@pytest.mark.short
def test_a_topic_without_partitions_gets_a_plan_without_and_is_predicted_by_it(run: Any, folder: Path) -> None:
    file = folder / "unpartitioned.toml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "candidate_plans", some_candidates)
        planned: Result = run("plan", PATH, "--as-is", "--unpartitioned", "-o", file, "--json")
    assert planned.exit_code == 0, planned.output
    found = json.loads(planned.stdout)
    assert Plan.load(file).partitions == found["recommended"]["partitions"] == 0
    assert " on a topic without partitions: " in planned.stderr
    predicted: Result = run("predict", file, PATH, "--as-is", "--json")
    assert predicted.exit_code == 0, predicted.output
    counted = found["recommended"]["on_this_traffic"]["counted"]["peak_gaps_per_partition"]
    assert counted in _values(json.loads(predicted.stdout))


def _values(facts: Any) -> list[Any]:
    """A fact and all that is in it."""
    within = facts.values() if isinstance(facts, dict) else facts if isinstance(facts, list) else ()
    return [facts, *(value for one in within for value in _values(one))]


@pytest.fixture(scope="module")
def faulty(folder: Path) -> Path:
    path = folder / "faulty.csv"
    start_s = 1_760_000_000
    rows = [f"{start_s + number},{60 + number % 7},{('a', 'b')[number % 2]}" for number in range(400)]
    path.write_text("\n".join(["sent,wait,queue", *rows, f"{start_s},-5,a", f"{start_s},soon,b", ",5,a"]) + "\n")
    return path


COLUMNS = ("--publish", "sent", "--delay", "wait", "--time-unit", "s", "--delay-unit", "s")


@pytest.mark.short
def test_a_shadow_is_planned_where_nobody_is_to_change(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "candidate_plans", some_candidates)
    out, report = folder / "shadow.toml", folder / "shadow.html"
    result = run("plan", PATH, "--as-is", "--shadow", "-o", out, "--report", report, "--json")
    assert result.exit_code == 0, result.output
    plan, found = Plan.load(out), json.loads(result.stdout)
    assert (plan.intake, plan.relay, plan.readers) == (True, "service", "any")
    assert found["native"]["shadow"] is None
    shadow = found["recommended"]["shadow"]
    assert 0 < shadow["moved"] < ROWS
    assert shadow["extra_writes_per_moved"] >= 2
    counted, own = (
        found["recommended"]["on_this_traffic"]["counted"],
        found["recommended"]["on_this_traffic"]["predicted"],
    )
    assert counted["entries"] == pytest.approx(ROWS + own["shadow"]["moved"], rel=0.01)
    assert counted["hop_count"] == pytest.approx(own["hops_mean"] * ROWS, rel=0.02)
    assert counted["peak_gaps"]["gap_count"] == pytest.approx(own["peak_gaps"], rel=0.1, abs=10)
    told = " ".join(result.stderr.split())
    assert "Use a shadow with" in told
    assert "The shadow, estimated: producers and consumers stay as they are" in told
    assert "stay in the due topic and make gaps there (max_delay" in told
    page = report.read_text(encoding="utf-8")
    assert "For a shadow there are no sliders" in page
    assert f"timewheel shadow run {out}" in page

    beside = folder / "beside.toml"
    beside.write_text(TIERED + "", encoding="utf-8")
    compared = run("compare", out, beside, PATH, "--as-is", "--json")
    assert compared.exit_code == 0, compared.output
    plans = json.loads(compared.stdout)["plans"]
    assert [facts["predicted"]["shadow"] is not None for facts in plans.values()] == [True, False]
    assert "The shadow, estimated" in " ".join(compared.stderr.split())


def test_the_quarantine_is_never_silent(run: Any, folder: Path, faulty: Path) -> None:
    (folder / "native.toml").write_text(NATIVE)
    result = run("predict", folder / "native.toml", faulty, *COLUMNS, "--json")
    assert result.exit_code == 0, result.output
    reasons = {"delay_negative": 1, "delay_not_a_number": 1, "publish_missing": 1}
    history = json.loads(result.stdout)["history"]
    assert (history["quarantined_by_reason"], history["is_enough"]) == (reasons, True)
    assert "QUARANTINE  3 of 403 rows were not used" in result.stderr
    assert "1 delay_not_a_number" in result.stderr


def test_an_answer_by_few_of_the_rows_is_none(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "candidate_plans", some_candidates)
    start_ms = 1_760_000_000_000
    rows = [
        f"{start_ms + number},{start_ms + number + 60_000 if number % 100 < 39 else 'soon'}" for number in range(1_000)
    ]
    path, plan, page = folder / "few.csv", folder / "few.toml", folder / "few.html"
    path.write_text("\n".join(["publish_ms,due_ms", *rows]) + "\n")
    planned = run("plan", path, "-o", plan, "--report", page)
    said = "NOT DECIDED, since 610 of 1,000 rows (61%) were not used, and at most 5% may be left out: write times with"
    assert planned.exit_code == 1, planned.output
    assert said in " ".join(planned.output.split())
    assert said in page.read_text(encoding="utf-8")
    predicted = run("predict", plan, path)
    assert (predicted.exit_code, said in " ".join(predicted.output.split())) == (1, True)
    assert run("survey", path, "-o", folder / "few").exit_code == 0
    stored = run("plan", "--from", folder / "few")
    assert (stored.exit_code, said in " ".join(stored.output.split())) == (1, True)
    path.write_text(
        "\n".join(["publish_ms,due_ms", *(row.replace("soon", str(start_ms + 90_000)) for row in rows)]) + "\n"
    )
    assert run("plan", path, "-o", plan).exit_code == 0  # by the remedy


def test_of_several_topics_one_is_asked_for(run: Any, folder: Path, faulty: Path) -> None:
    (folder / "native.toml").write_text(NATIVE)
    options = (*COLUMNS, "--topic-column", "queue")
    result = run("predict", folder / "native.toml", faulty, *options)
    assert result.exit_code == 2
    assert "name one with --topic" in " ".join(result.output.replace("│", " ").split())
    result = run("predict", folder / "native.toml", faulty, *options, "--topic", "a", "--json")
    (plan,) = json.loads(result.stdout)["plans"].values()
    assert plan["counted"]["entries"] == 200


def test_plans_are_compared_on_one_history(run: Any, folder: Path) -> None:
    (folder / "native.toml").write_text(NATIVE.replace("[native]", 'max_delay = "90d"\n[native]'))
    (folder / "tiered.toml").write_text(TIERED)
    result = run("compare", folder / "native.toml", folder / "tiered.toml", PATH, "--as-is", "--json")
    assert result.exit_code == 0, result.output
    native, tiered = json.loads(result.stdout)["plans"].values()
    # Unequal delays of up to 60 days against those of a day: the window decides.
    assert tiered["counted"]["peak_gaps"]["gap_count"] < native["counted"]["peak_gaps"]["gap_count"] / 10
    assert tiered["predicted"]["hops_mean"] == pytest.approx(tiered["counted"]["hop_count"] / ROWS, rel=0.001)
    assert native["counted"]["hop_count"] == 0
    assert "a 1d window over tiers of 1d, 10d" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("plan", PATH, "--publish", "sent_at"), 2, "no column 'sent_at' in the history"),
        (("plan", PATH, "--profile", "3.9"), 2, "none of 4.0, 4.2, 5.0"),
        (("plan", PATH, "--profile", "4.0", "--broker", "http://localhost:8080"), 2, "--profile or --broker, not both"),
        (("plan", PATH, "--broker", "localhost:8080"), 1, "connection: --broker must begin with http://"),
        (("plan", PATH, "--broker", "http://127.0.0.1:1"), 1, "no connection to http://127.0.0.1:1"),
        (("plan", PATH, "--max-delay", "a year"), 1, "expected one whole number and one unit"),
        (("plan", PATH, "--max-delay", "60d"), 2, "shorter than the history's longest delay, 61d"),
        (("plan", PATH, "--max-silence", "ten seconds"), 1, "expected one whole number and one unit"),
        (("plan", PATH, "--max-silence", "0s"), 2, "give 1ms or more, or none"),
        (("plan", PATH, "--max-lateness", "0s"), 2, "give 1ms or more, or none"),
        (("plan", PATH, "--growth", "inf"), 2, "less than or equal to 1000000"),
        (("plan", PATH, "--growth", "nan"), 2, "Invalid value for '--growth'"),
        (("plan", PATH, "--gap-fraction", "nan"), 2, "Invalid value for '--gap-fraction'"),
        (("plan", PATH, "--relay-cost", "inf"), 2, "--relay-cost: inf is no finite number: give one, like 2"),
        (("plan", PATH, "--price-topic-month", "inf"), 2, "inf is no finite number: give one, like 2"),
        (("plan", PATH, "--memory", "1x"), 2, "no heap from 512m to 1024g: write a whole number and m or g, like 2g"),
        (("plan", PATH, "--price-gb-month", "-1"), 2, "Invalid value for '--price-gb-month'"),
        (("plan", PATH, "--due-topic", "reminders"), 1, "persistent://tenant/namespace/topic"),
        (("plan", "/nowhere/at/all.parquet"), 1, "check the path"),
        (("plan", PATH, "-o", "/nowhere/plan.toml"), 2, "there is no folder /nowhere"),
        (("plan", PATH, "-o", "/"), 2, "/ is a folder: give a file"),
        (("predict", "/nowhere/plan.toml", PATH), 1, "must be a readable UTF-8 file"),
        (("predict", TIERED_FILE, PATH, "--broker", "http://127.0.0.1:1"), 1, "no connection to http://127.0.0.1:1"),
        (("compare", TIERED_FILE, PATH, "--profile", "5.0", "--broker", "http://x"), 2, "--broker, not both"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(
    run: Any, folder: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    (folder / TIERED_FILE).write_text(TIERED)
    result = run(*(folder / TIERED_FILE if argument == TIERED_FILE else argument for argument in arguments))
    # What is not click's own error leaves the app as an exception, which `main` prints as one line.
    assert result.exit_code == status
    assert said in " ".join(f"{result.output} {result.exception}".replace("│", " ").split())


@pytest.mark.parametrize(
    ("rows", "status"),
    [("publish_ms,due_ms\n1800000000000,1800003600000\n", 0), ("publish_ms,due_ms\n1800000000000,soon\n", 1)],
    ids=["answer", "error"],
)
@pytest.mark.short
def test_java_says_nothing_beside_an_answer_or_an_error(tmp_path: Path, rows: str, status: int) -> None:
    history = tmp_path / "history.csv"
    history.write_text(rows)
    words = ["plan", history, "--due-topic", "persistent://acme/crm/renewals", "--subscription", "billing"]
    words += ["--cores", "1", "--memory", "512m", "-o", tmp_path / "plan.toml"]
    done = ran([sys.executable, "-m", "timewheel", *words], timeout=300)
    assert done.returncode == status, done.stderr
    assert "WARN" not in done.stderr
    assert done.stderr == "" if status == 0 else done.stderr.startswith("timewheel: ")


def test_help_loads_no_spark() -> None:
    code = (
        "import sys\nfrom timewheel.cli.app import app\n"
        "try:\n    app(['plan', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'pyspark', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    done = ran([sys.executable, "-c", code], check=True)
    assert done.stdout.splitlines()[-1] == "[]"
