"""The page of benchmarks: a run that asks some questions replaces their sections and no others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from benchmarks import __main__ as command
from benchmarks.machine import shares
from benchmarks.result import HEAD, merged, sections, title


def test_a_section_that_is_asked_again_is_replaced_and_the_others_stay() -> None:
    page = merged("", {"b?": "## b?\n\nold b", "a?": "## a?\n\nold a"}, ["a?", "b?", "c?"])
    assert page == f"{HEAD}\n\n## a?\n\nold a\n\n## b?\n\nold b\n"

    again = merged(page, {"b?": "## b?\n\nnew b", "c?": "## c?\n\nnew c"}, ["a?", "b?", "c?"])
    assert again == f"{HEAD}\n\n## a?\n\nold a\n\n## b?\n\nnew b\n\n## c?\n\nnew c\n"
    assert merged(again, {}, ["a?", "b?", "c?"]) == again
    # What no benchmark asks any more is for a person to remove.
    assert list(sections(merged(again, {}, ["c?"]))) == ["c?", "a?", "b?"]


def test_writing_one_answer_keeps_the_other_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "benchmarks.md"
    asked = command.questions()
    page.write_text(merged("", {title(asked["relay"]): f"## {title(asked['relay'])}\n\nkept"}, []), encoding="utf-8")
    monkeypatch.setattr(command, "DOCS", page)
    monkeypatch.setattr(command, "Quiet", lambda: SimpleNamespace(disturbance=lambda: None))

    assert command.main(["routing", "--quick", "--write"]) in {0, 1}  # whether it is quick enough is not asked here

    told = sections(page.read_text(encoding="utf-8"))
    assert list(told) == [title(asked["routing"]), title(asked["relay"])]
    assert told[title(asked["relay"])].endswith("kept")
    assert ", `routing --quick`: " in told[title(asked["routing"])]
    assert "ratio" in capsys.readouterr().out


def test_on_a_machine_that_is_too_busy_nothing_is_written_and_the_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, json = tmp_path / "benchmarks.md", tmp_path / "results.json"
    monkeypatch.setattr(command, "DOCS", page)
    monkeypatch.setattr(command, "Quiet", lambda: SimpleNamespace(disturbance=lambda: "machine too busy"))

    assert command.main(["routing", "--quick", "--write", "--json", str(json)]) == 1

    assert not page.exists()
    assert '"disturbed": {\n    "routing": "machine too busy"' in json.read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert "machine too busy: no result" in printed
    assert "MISSED: " not in printed


class Times(NamedTuple):
    user: float
    system: float
    idle: float
    iowait: float
    steal: float
    guest: float  # a part of ``user``


@pytest.mark.parametrize(
    ("passed", "busy", "stolen"),
    [
        (Times(0, 0, 4, 0, 0, 0), 0, 0),
        (Times(1, 1, 1, 1, 0, 1), 0.5, 0),
        (Times(1, 0, 2, 0, 1, 0), 0.25, 0.25),
        (Times(0, 0, 0, 0, 0, 0), 0, 0),
    ],
)
def test_shares_of_a_machines_time(passed: Times, busy: float, stolen: float) -> None:
    before = Times(10, 20, 30, 40, 50, 5)
    after = Times(*(then + more for then, more in zip(before, passed, strict=True)))
    assert shares(before, after) == (busy, stolen)
