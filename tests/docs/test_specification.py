"""The specification's test vectors are the core's, and its page and that of other languages show what is so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.support.checkout import ROOT
from tests.support.other_languages import PROGRAMS, checked_by_node
from tests.support.pages import blocks
from tests.support.specification_vectors import PAGE, text
from timewheel.client import dead_letters
from timewheel.core import envelope

SPECIFICATION = ROOT / "docs" / "specification.md"
OTHER_LANGUAGES = ROOT / "docs" / "how-to" / "send-from-other-languages.md"


def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PAGE.read_text(encoding="utf-8"))
    return found


def test_the_vectors_are_what_the_core_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "run: make docs-tables"


def test_the_vectors_have_both_sides_of_each_rule() -> None:
    read = stored()["envelopes_read"]
    for verdict in ("timer", "refused", "later_version", "no_timer"):
        assert any(verdict in one for one in read), verdict
    messages = stored()["intake"]["messages"]
    assert any("goes_on" in one for one in messages)
    assert any("refused" in one for one in messages)
    lengths = {len(way["way"]) for plan in stored()["plans"].values() for way in plan["ways"]}
    assert {1, 2, 6} <= lengths, "straight to the due topic, by one topic, and by several"


def test_who_knows_only_the_page_agrees_with_the_vectors() -> None:
    """A second writing of the rules, in JavaScript and without a look at ours."""
    said = checked_by_node(PAGE)
    assert said.pop("failed") == []
    counts = {name: len(stored()[name]) for name in ("envelopes_read", "envelopes_written", "keys")}
    ways = sum(len(plan["ways"]) for plan in stored()["plans"].values())
    assert said == {**counts, "intake": len(stored()["intake"]["messages"]), "ways": ways}


def test_it_would_find_a_vector_that_is_wrong(tmp_path: Path) -> None:
    wrong = stored()
    wrong["keys"][2]["hash"] += 1
    wrong["plans"]["wheel"]["ways"][-1]["way"][0]["release_at_ms"] -= 1
    (tmp_path / "vectors.json").write_text(json.dumps(wrong))
    assert [one["kind"] for one in checked_by_node(tmp_path / "vectors.json")["failed"]] == ["keys", "ways"]


def test_the_page_names_every_section_of_the_vectors_and_every_property() -> None:
    page = SPECIFICATION.read_text(encoding="utf-8")
    assert [name for name in stored() if name != "format" and f"`{name}`" not in page] == []
    ours = {value for name, value in vars(envelope).items() if name.endswith("_PROPERTY")}
    ours |= {value for name, value in vars(dead_letters).items() if name.startswith("DEAD_")} - {"tw-dead-"}
    ours |= {"tw-probe"}
    assert set(re.findall(r"`(tw-[a-z-]+)`", page)) - {"tw-"} == ours


def test_what_is_shown_of_other_languages_stands_in_the_programs_that_run() -> None:
    """But for how far it is set in."""
    page = OTHER_LANGUAGES.read_text(encoding="utf-8")
    for language, program in (("java", "Timers.java"), ("javascript", "timers.mjs")):
        shown = [block.content for block in blocks(page, language)]
        lines = [line.strip() for line in (PROGRAMS / program).read_text(encoding="utf-8").splitlines()]
        code = "\n".join(lines)
        assert len(shown) == 3
        for block in shown:
            assert "\n".join(line.strip() for line in block.splitlines()) in code, block
    assert ".tw.intake" in page
