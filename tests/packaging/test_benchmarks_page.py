"""The page of benchmarks: a run that asks some questions replaces their sections and no others."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import __main__ as command
from benchmarks.page import HEAD, merged, section, sections, title
from benchmarks.result import Result

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_a_section_that_is_asked_again_is_replaced_and_the_others_stay() -> None:
    page = merged("", {"b?": "## b?\n\nold b", "a?": "## a?\n\nold a"}, ["a?", "b?", "c?"])
    assert page == f"{HEAD}\n\n## a?\n\nold a\n\n## b?\n\nold b\n"

    again = merged(page, {"b?": "## b?\n\nnew b", "c?": "## c?\n\nnew c"}, ["a?", "b?", "c?"])
    assert again == f"{HEAD}\n\n## a?\n\nold a\n\n## b?\n\nnew b\n\n## c?\n\nnew c\n"
    assert merged(again, {}, ["a?", "b?", "c?"]) == again
    # What no benchmark asks any more is for a person to remove.
    assert list(sections(merged(again, {}, ["c?"]))) == ["c?", "a?", "b?"]


def test_several_questions_of_one_benchmark_have_a_line_each() -> None:
    results = [Result(question=name, subject="x", figures={f"{name}, s": 1.5}) for name in ("one", "two")]
    asked = ModuleType("asked", "How fast?")

    assert section(asked, results[:1], measured="Today.") == "## How fast?\n\nToday.\n\n- **x** one 1.50 s"
    assert section(asked, results, measured="Today.").endswith("\n\n- One. **x** one 1.50 s\n- Two. **x** two 1.50 s")


def test_the_page_shows_the_figures_that_a_benchmark_chooses_and_every_goal() -> None:
    asked = ModuleType("asked", "How fast?\n\nHow it is measured.")
    vars(asked).update(SHOWN=frozenset(("of raw", "all late, s")), HIDDEN=("aside",))
    results = [
        Result(question="q", subject="raw", figures={"of raw": 1.0, "MB": 7}),
        Result(question="q", subject="ours", figures={"of raw": 0.5, "all late, s": 1.5, "MB": 7}),
        Result(question="q", subject="aside", figures={"of raw": 2.5}),
        Result(question="q", subject="only MB", figures={"MB": 8}),
        Result(question="q", subject="a goal", figures={"MB": 9}, goal="at most 5 MB", met=False),
    ]
    lines = section(asked, results, measured="Today.").splitlines()[4:]
    assert lines == ["- **ours** 0.50 of raw, all late 1.50 s", "- **a goal** (at most 5 MB: MISSED)"]


def test_rows_of_one_goal_share_a_line_and_rows_without_it_do_not() -> None:
    asked = ModuleType("asked", "How fast?")
    results = [
        Result(question="q", subject="slow", figures={"ratio": 12.5}),
        Result(question="q", subject="a", figures={"ratio": 2}, goal="at most 3", met=True),
        Result(question="q", subject="b", figures={"ratio": 3}, goal="at most 3", met=True),
    ]
    lines = section(asked, results, measured="Today.").splitlines()[4:]
    assert lines == ["- **slow** ratio 12.50", "- ratio: **a** 2; **b** 3 (at most 3: met)"]


def test_every_figure_that_a_benchmark_chooses_stands_on_the_page() -> None:
    told = sections(PAGE.read_text(encoding="utf-8"))
    chosen = {title(module): module.SHOWN for module in command.questions().values() if hasattr(module, "SHOWN")}

    assert chosen
    assert [
        (name, figure)
        for name, shown in chosen.items()
        for figure in shown
        if not all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", told[name]) for word in re.split(r",? ", figure))
    ] == []


def test_every_section_of_the_page_is_of_a_benchmark_and_says_where_it_was_measured() -> None:
    told = sections(PAGE.read_text(encoding="utf-8"))
    titles = [title(module) for module in command.questions().values()]

    assert len(set(titles)) == len(titles)
    assert list(told) == [name for name in titles if name in told]
    line = re.compile(r"\n20\d\d-\d\d-\d\d, `python -m benchmarks \w+`: \d+-core ")
    assert [name for name, text in told.items() if not line.search(text)] == []


def test_writing_one_answer_keeps_the_other_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "benchmarks.md"
    asked = command.questions()
    page.write_text(merged("", {title(asked["relay"]): f"## {title(asked['relay'])}\n\nkept"}, []), encoding="utf-8")
    monkeypatch.setattr(command, "DOCS", page)

    assert command.main(["routing", "--quick", "--write"]) in {0, 1}  # whether it is quick enough is not asked here

    told = sections(page.read_text(encoding="utf-8"))
    assert list(told) == [title(asked["routing"]), title(asked["relay"])]
    assert told[title(asked["relay"])].endswith("kept")
    assert "python -m benchmarks routing --quick`" in told[title(asked["routing"])]
    assert "ratio" in capsys.readouterr().out
