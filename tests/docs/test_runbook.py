"""The runbook: each sign of trouble leads to a case, and each case has the steps and the mistakes to avoid."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.test_commands import unknown
from tests.support.runbook import Case, Sign, cases, in_code, read

CASES = cases()


def test_every_sign_of_trouble_has_one_case() -> None:
    found = Counter(sign for case in CASES for sign in case.signs)
    assert [sign for sign in in_code() if found[sign] != 1] == []


def test_no_case_has_a_sign_that_the_code_does_not_give() -> None:
    given = set(in_code())
    assert [(case.link, sign) for case in CASES for sign in case.signs if sign not in given] == []


def commands_of(text: str) -> list[str]:
    """Whole commands in blocks and in backticks."""
    shown = re.findall(r"^\$ (timewheel .*)$", text, re.MULTILINE)
    return [*shown, *(" ".join(found.split()) for found in re.findall(r"`(timewheel [a-z][^`]*)`", text))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.link)
def test_the_command_line_takes_the_commands_of_a_case(case: Case) -> None:
    assert [found for line in commands_of(case.text) for found in unknown(line)] == []


def test_signs_are_read_across_lines_and_end_before_the_meaning(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(
        "# A page\n\n## A title\n\n- Events: `a_b`,\n  `c`\n- Exit status: `gaps 3`\n\n`x` is:\n\n- No sign: `y`\n"
    )
    (case,) = read(page)
    assert case.signs == (Sign("Events", "a_b"), Sign("Events", "c"), Sign("Exit status", "gaps 3"))
    assert (case.title, case.link) == ("A title", "README.md#a-title")
