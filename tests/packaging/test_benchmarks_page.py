"""The page of benchmarks: a run that asks some questions replaces their sections and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as command
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

    assert command.main(["routing", "--quick", "--write"]) in {0, 1}  # whether it is quick enough is not asked here

    told = sections(page.read_text(encoding="utf-8"))
    assert list(told) == [title(asked["routing"]), title(asked["relay"])]
    assert told[title(asked["relay"])].endswith("kept")
    assert ", `routing --quick`: " in told[title(asked["routing"])]
    assert "ratio" in capsys.readouterr().out
