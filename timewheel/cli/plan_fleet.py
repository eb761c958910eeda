"""`timewheel plan --all-topics`: one pass over a history of many topics, and a plan file for each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from timewheel.cli.exit_status import FAILED
from timewheel.cli.planning import need_new_folder, show_lost
from timewheel.cli.terminal import say, show_table

if TYPE_CHECKING:
    from rich.console import Console

    from timewheel.core.plan import Plan
    from timewheel.spark_planner import Fleet, Prices

__all__ = ["answer_fleet", "file_names", "need_folder", "show_fleet", "write_fleet"]

MAX_SHOWN = 40
INDEX = "index.html"


def need_folder(folder: Path | None, of_one_topic: Mapping[str, object]) -> None:
    """Refuse an impossible folder for the plans, and options (by name) for a single topic, before any work."""
    for option, given in of_one_topic.items():
        if given is not None:
            raise typer.BadParameter("it is of one topic, --all-topics of all", param_hint=option)
    if folder is None:
        raise typer.BadParameter("--all-topics writes a plan for each topic: give a folder", param_hint="--out")
    need_new_folder(folder, "with --all-topics it is a folder")


def file_names(topics: Iterable[str]) -> dict[str, str]:
    """Return a file name without its ending for each topic: the topic's own name, as far as every file system accepts
    it.
    """
    found: dict[str, str] = {}
    taken = {INDEX.removesuffix(".html")}
    for topic in topics:
        short = re.sub(r"[^\w.-]+", "-", topic.removeprefix("persistent://"), flags=re.ASCII).strip("-.")[:120]
        name, number = short or "timers", 1
        while name.casefold() in taken:
            number += 1
            name = f"{short or 'timers'}-{number}"
        taken.add(name.casefold())
        found[topic] = name
    return found


def answer_fleet(
    console: Console,
    fleet: Fleet,
    folder: Path | None,
    base_of: Callable[[str], Plan],
    prices: Prices,
    *,
    as_json: bool,
) -> NoReturn:
    """Print and write the answer, and end the command: status 1 if a topic has no plan that keeps every limit."""
    from timewheel.spark_planner.results.facts import fleet_facts

    assert folder is not None  # need_folder
    show_fleet(console, fleet)
    files = write_fleet(console, fleet, folder, base_of, prices)
    if as_json:
        print(json.dumps(fleet_facts(fleet, files, prices), indent=1))
    raise typer.Exit(0 if fleet.keeps_limits else FAILED)


def show_fleet(console: Console, fleet: Fleet) -> None:
    """Print the answer on a terminal."""
    from timewheel.spark_planner.results.facts import fleet_verdict
    from timewheel.spark_planner.results.tables import fleet_table

    show_lost(console, fleet.history.statistic)
    say(console, fleet_verdict(fleet), style="bold green" if fleet.keeps_limits else "bold red")
    shown = fleet.topics[:MAX_SHOWN]
    more = len(fleet.topics) - len(shown)
    caption = f"The {len(shown)} topics nearest to their limit" if more else "All topics"
    show_table(console, fleet_table(fleet, shown, caption))


def write_fleet(
    console: Console, fleet: Fleet, folder: Path, base_of: Callable[[str], Plan], prices: Prices
) -> dict[str, str]:
    """Write the plans, the report of each topic that was planned for, and the index page of the reports.

    Returns:
        The name of each plan file, by topic.
    """
    from timewheel.core.planfile import save_plan
    from timewheel.spark_planner import report_page
    from timewheel.spark_planner.results.report_page import fleet_page

    folder.mkdir(exist_ok=True)
    names = file_names(one.topic for one in fleet.topics)
    files: dict[str, str] = {}
    for one in fleet.topics:
        plan = fleet.plan_of(one.topic, base_of)
        if plan is not None:
            files[one.topic] = f"{names[one.topic]}.toml"
            save_plan(plan, folder / files[one.topic])
    pages: dict[str, str] = {}
    for topic, planned in fleet.planned.items():
        pages[topic] = f"{names[topic]}.html"
        page = report_page(planned, plan_file=files[topic], prices=prices)
        (folder / pages[topic]).write_text(page, encoding="utf-8")
    (folder / INDEX).write_text(fleet_page(fleet, pages), encoding="utf-8")
    say(console, f"plans   {len(files):,} in {folder}")
    say(console, f"report  {folder / INDEX}")
    return files
