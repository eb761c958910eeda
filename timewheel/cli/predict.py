"""`timewheel predict` and `timewheel compare`: replay a history through plans."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.cli.broker_profile import BrokerUrl, ProfileName, shown_profile
from timewheel.cli.connecting import ConnectionFile, Token, TokenFile, TrustFile
from timewheel.cli.from_survey import FromSurvey, need_one_source, predict_from
from timewheel.cli.planning import (
    AsIs,
    AsJson,
    Cores,
    DelayColumn,
    DelayUnitName,
    DueColumn,
    FileFormat,
    Growth,
    KeyColumn,
    MaybeHistory,
    Memory,
    PublishColumn,
    SizeColumn,
    TimerIdColumn,
    TimeUnitName,
    Topic,
    TopicColumn,
    console_for,
    growth_of,
    mapping_of,
    note_of,
    progress_on,
    session,
    show_reading,
    surveyed,
    take_options_of,
)
from timewheel.cli.terminal import say, show_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from timewheel.core.broker_profile import BrokerProfile
    from timewheel.core.plan import Plan
    from timewheel.spark_planner import Prediction, Traffic
    from timewheel.spark_planner.history.sampled import SampleNote

__all__ = ["compare", "predict"]


def compare(
    plan_files: Annotated[list[Path], typer.Argument(metavar="PLAN...", help="Plan files.", show_default=False)],
    history: MaybeHistory = None,
    *,
    stored: FromSurvey = None,
    topic: Topic = None,
    publish: PublishColumn = None,
    due: DueColumn = None,
    delay: DelayColumn = None,
    size: SizeColumn = None,
    key: KeyColumn = None,
    topic_column: TopicColumn = None,
    timer_id: TimerIdColumn = None,
    time_unit: TimeUnitName = "auto",
    delay_unit: DelayUnitName = "auto",
    file_format: FileFormat = "auto",
    profile: ProfileName = None,
    broker: BrokerUrl = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
    growth: Growth = None,
    as_is: AsIs = False,
    cores: Cores = None,
    memory: Memory = "2g",
    as_json: AsJson = False,
) -> None:
    """Predict the results of several plans on the same history, side by side."""
    if stored is not None and history is not None:
        # With --from there is no history: the last word is also a plan.
        plan_files, history = [*plan_files, Path(history)], None
    need_one_source(history, stored, {"--timer-id": timer_id, "--due": due, "--delay": delay})
    console = console_for(as_json=as_json)
    if stored is not None:
        predict_from(
            stored,
            topic,
            _loaded(plan_files),
            shown_profile(console, profile, broker, token, token_file, tls_ca, connection),
            growth=1.0 if growth is None else growth,
            as_is=as_is,
            as_json=as_json,
        )
        return
    assert history is not None  # need_one_source
    columns = {
        "publish": publish,
        "due": due,
        "delay": delay,
        "size": size,
        "key": key,
        "topic": topic_column,
        "timer_id": timer_id,
        "time_unit": time_unit,
        "delay_unit": delay_unit,
    }
    plans, note = _loaded(plan_files), note_of(history)
    _compare(
        plans,
        _Question(
            source=history,
            file_format=file_format,
            columns=columns,
            topic=topic,
            note=note,
            growth=growth,
            as_is=as_is,
        ),
        shown_profile(
            console, profile, broker, token, token_file, tls_ca, connection, None if note is None else note.profile
        ),
        cores,
        memory,
        as_json=as_json,
    )


def predict(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.", show_default=False)],
    history: MaybeHistory = None,
    **options: Any,
) -> None:
    """Predict the result of a plan on a history, and replay every timer through it."""
    compare([plan_file], history, **options)


take_options_of(compare, predict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The history, and the part of it, that the options select."""

    source: str
    file_format: str
    columns: Mapping[str, str | None]
    topic: str | None
    note: SampleNote | None
    growth: float | None
    as_is: bool


def _loaded(plan_files: list[Path]) -> dict[str, Plan]:
    """Load plans, by their files' names; an invalid plan is reported before any request to a broker and before Spark
    starts.
    """
    from timewheel.core.plan import Plan

    return {str(path): Plan.load(path) for path in plan_files}


def _compare(
    plans: Mapping[str, Plan],
    asked: _Question,
    broker: BrokerProfile,
    cores: int | None,
    memory: str,
    *,
    as_json: bool,
) -> None:
    import json

    console = console_for(as_json=as_json)
    with session(cores, memory) as spark:
        from timewheel.spark_planner import compare as compared

        growth = growth_of(asked.growth, asked.note, console)
        with progress_on(console) as on_progress:
            mapping = mapping_of(**asked.columns)
            seen = surveyed(spark, asked.source, asked.file_format, mapping, asked.topic, on_progress)
            wanted = seen.topic(asked.topic)
            found = compared(seen, wanted, plans, broker, growth=growth, as_is=asked.as_is, on_progress=on_progress)
    _print(console, found, growth)
    if as_json:
        print(json.dumps(_facts(found, growth), indent=1))


def _print(console: Console, found: Mapping[str, Prediction], growth: float) -> None:
    from timewheel.spark_planner.results import tables
    from timewheel.spark_planner.results.tables import shadow_table

    traffic = _traffic_of(found)
    show_reading(console, traffic.history.statistic, traffic.topic, traffic)
    for name, one in found.items():
        say(console, f"{name}: {tables.plan_label(one.grown.plan)}")
    show_table(console, tables.evaluations_table({name: one.grown for name, one in found.items()}, growth))
    show_table(console, tables.prediction_table(found))
    for name, one in found.items():
        hops = tables.hop_table(one.evaluation)
        if hops is not None and len(found) == 1:
            show_table(console, hops)
        moved = shadow_table(one.grown)
        if moved is not None:
            say(console, name)
            show_table(console, moved)
        if one.grown.gap_fraction > 1:
            say(console, f"{name}: more gaps than the broker keeps", style="bold red")


def _facts(found: Mapping[str, Prediction], growth: float) -> dict[str, Any]:
    from timewheel.spark_planner.results.facts import (
        evaluation_facts,
        extrapolation_facts,
        history_facts,
        prediction_facts,
    )

    traffic = _traffic_of(found)
    return {
        "history": history_facts(traffic.history),
        "topic": traffic.topic,
        "steady_state": extrapolation_facts(traffic),
        "growth": growth,
        "plans": {
            name: {**prediction_facts(one), "predicted_at_growth": evaluation_facts(one.grown)}
            for name, one in found.items()
        },
    }


def _traffic_of(found: Mapping[str, Prediction]) -> Traffic:
    """Return the traffic, which is the same for all predictions."""
    return next(iter(found.values())).traffic
