"""`timewheel predict` and `timewheel compare`: what plans would have done on a history."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.cli.planning import (
    AsJson,
    Cores,
    DelayColumn,
    DelayUnitName,
    DueColumn,
    FileFormat,
    HistorySource,
    KeyColumn,
    Memory,
    ProfileName,
    PublishColumn,
    SizeColumn,
    TimeUnitName,
    Topic,
    TopicColumn,
    console_for,
    mapping_of,
    profile_of,
    progress_on,
    session,
    show_quarantine,
    show_table,
    surveyed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from timewheel.spark_planner.job import History, Prediction

__all__ = ["compare", "predict"]


def predict(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.", show_default=False)],
    history: HistorySource,
    *,
    topic: Topic = None,
    publish: PublishColumn = None,
    due: DueColumn = None,
    delay: DelayColumn = None,
    size: SizeColumn = None,
    key: KeyColumn = None,
    topic_column: TopicColumn = None,
    time_unit: TimeUnitName = "auto",
    delay_unit: DelayUnitName = "auto",
    file_format: FileFormat = "auto",
    profile: ProfileName = "4.0",
    cores: Cores = None,
    memory: Memory = "2g",
    as_json: AsJson = False,
) -> None:
    """Predict what one plan does on a history, and replay every timer through it."""
    options = {
        "publish": publish,
        "due": due,
        "delay": delay,
        "size": size,
        "key": key,
        "topic": topic_column,
        "time_unit": time_unit,
        "delay_unit": delay_unit,
    }
    _predict([plan_file], history, topic, options, file_format, profile, cores, memory, as_json=as_json)


def compare(
    plan_files: Annotated[list[Path], typer.Argument(metavar="PLAN...", help="Plan files.", show_default=False)],
    history: HistorySource,
    *,
    topic: Topic = None,
    publish: PublishColumn = None,
    due: DueColumn = None,
    delay: DelayColumn = None,
    size: SizeColumn = None,
    key: KeyColumn = None,
    topic_column: TopicColumn = None,
    time_unit: TimeUnitName = "auto",
    delay_unit: DelayUnitName = "auto",
    file_format: FileFormat = "auto",
    profile: ProfileName = "4.0",
    cores: Cores = None,
    memory: Memory = "2g",
    as_json: AsJson = False,
) -> None:
    """Predict what several plans do on the same history, side by side."""
    options = {
        "publish": publish,
        "due": due,
        "delay": delay,
        "size": size,
        "key": key,
        "topic": topic_column,
        "time_unit": time_unit,
        "delay_unit": delay_unit,
    }
    _predict(plan_files, history, topic, options, file_format, profile, cores, memory, as_json=as_json)


def _predict(
    plan_files: list[Path],
    source: str,
    topic: str | None,
    columns: Mapping[str, str | None],
    file_format: str,
    profile: str,
    cores: int | None,
    memory: str,
    *,
    as_json: bool,
) -> None:
    import json

    from timewheel.core.plan import Plan

    # Whatever is wrong with them is told before Spark starts.
    plans = {str(path): Plan.load(path) for path in plan_files}
    broker = profile_of(profile)
    console = console_for(as_json=as_json)
    with session(cores, memory) as spark:
        from timewheel.spark_planner.job import predict as predicted

        with progress_on(console) as tell:
            seen = surveyed(spark, source, file_format, mapping_of(**columns), tell)
            wanted = seen.topic(topic)
            found = {name: predicted(seen, wanted, one, broker, tell=tell) for name, one in plans.items()}
    _print(console, seen, found)
    if as_json:
        print(json.dumps(_facts(seen, wanted, found), indent=1))


def _print(console: Console, history: History, found: Mapping[str, Prediction]) -> None:
    from timewheel.spark_planner import tables

    show_quarantine(console, history.statistic.quarantined, history.statistic.rows)
    for name, one in found.items():
        console.print(f"{name}: {tables.plan_label(one.evaluation.plan)}", markup=False, soft_wrap=True)
    show_table(console, tables.evaluations_table({name: one.evaluation for name, one in found.items()}))
    show_table(console, tables.prediction_table(found))
    for name, one in found.items():
        hops = tables.hop_table(one.evaluation)
        if hops is not None and len(found) == 1:
            show_table(console, hops)
        if one.evaluation.gap_fraction > 1:
            console.print(f"{name}: more gaps than the broker keeps", style="bold red", markup=False, soft_wrap=True)


def _facts(history: History, topic: str, found: Mapping[str, Prediction]) -> dict[str, Any]:
    from timewheel.spark_planner.facts import history_facts, prediction_facts

    return {
        "history": history_facts(history),
        "topic": topic,
        "plans": {name: prediction_facts(one) for name, one in found.items()},
    }
