"""The tutorial of a troubled topic, done as it says: what is foretold comes, and the plan cures it."""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.pages import blocks, commands, typed
from tests.support.reader import Reader
from timewheel.testing import LocalPulsar

PAGE = (ROOT / "docs" / "troubled-topic.md").read_text(encoding="utf-8")
SET_UP = [
    "python3 -m venv ~/troubled/venv",
    "~/troubled/venv/bin/pip install '.[planner]'",
    "cd ~/troubled",
    "source venv/bin/activate",
    "timewheel broker --set brokerServicePort=6651 --set webServicePort=8081 "
    "--set managedLedgerMaxUnackedRangesToPersist=1000",
]
"""What the environment of the tests, its folders and the fixture `broker` are."""
OTHER_TERMINALS = ("timewheel relay run", "timewheel exporter")  # begin what goes on while the reader goes on


@pytest.fixture
def broker() -> Iterator[LocalPulsar]:
    settings = dict(setting.split("=") for setting in re.findall(r"--set (\S+)", SET_UP[-1]))
    with LocalPulsar(config=settings) as broker:
        yield broker


@pytest.mark.short
@pytest.mark.usefixtures("broker")
@pytest.mark.timeout(600)
def test_the_way_from_trouble_to_a_plan_works_as_it_stands(tmp_path: Path) -> None:
    shown: dict[str, str] = {}
    reader = Reader(tmp_path, Path(sys.executable).parent)
    with ExitStack() as terminals:
        for block in blocks(PAGE):
            if block.language == "python":
                reader.write(block)
                continue
            assert block.language == "console"
            for command in commands(block.content):
                if command.line in SET_UP:
                    continue
                if command.line.startswith(OTHER_TERMINALS):
                    terminals.enter_context(reader.started(command.line))
                else:
                    shown.setdefault(command.line, reader.type(command))
    foretold = re.search(
        r"deliver ([\d,]+) acknowledged", shown["timewheel gaps persistent://public/default/reminders"]
    )
    assert foretold is not None
    again = int(shown["python again.py"].split()[-1])
    assert again == int(foretold[1].replace(",", "")) > 800
    report = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert "renewals" in report


@pytest.mark.parametrize("hours", [6, 8, 12, 24])
def test_no_hour_of_the_day_parts_its_delays(hours: int) -> None:
    """A calendar whose intervals each had one delay would leave no gaps, and the planner would choose it."""
    delays = {one for block in blocks(PAGE, "python") for one in _delays(block.content)}
    interval_s = hours * 3_600
    for sent_s in range(0, 86_400, 60):
        in_one = Counter((sent_s + int(delay.total_seconds())) // interval_s for delay in delays)
        assert max(in_one.values()) > 1, f"sent at {sent_s // 3_600}:{sent_s // 60 % 60:02}"


def _delays(program: str) -> list[dt.timedelta]:
    found = re.findall(r"timedelta\((seconds|hours|days)=(\d+)\)", program)
    line = next((line for line in program.splitlines() if line.startswith("DELAYS")), "")
    return [dt.timedelta(**{unit: int(count)}) for unit, count in found if f"{unit}={count}" in line]


def test_it_begins_with_what_the_fixtures_do_and_takes_all_steps() -> None:
    lines = typed(PAGE)
    assert lines[: len(SET_UP)] == SET_UP
    steps = ["gaps", "gaps explain", "sample", "plan", "doctor", "topics ensure", "relay run", "status", "exporter"]
    places = [next(n for n, line in enumerate(lines) if line.startswith(f"timewheel {step} ")) for step in steps]
    assert places == sorted(places)
