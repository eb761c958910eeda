"""The tutorial, done as a newcomer does it: its files written, its commands typed, and what it shows comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.pages import Block, Command, blocks, commands, pattern, typed
from tests.support.reader import Reader

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SET_UP = [
    "python3 -m venv ~/tutorial/venv",
    "~/tutorial/venv/bin/pip install '.[cli]'",
    "cd ~/tutorial",
    "source venv/bin/activate",
]
"""What the fixture `clean_python` does, with the wheel of this checkout."""
BROKER = "timewheel broker --set brokerServicePort=6650 --set webServicePort=8080"
"""What the fixture `broker_of_the_pages` does."""


@pytest.mark.short
@pytest.mark.usefixtures("broker_of_the_pages")
@pytest.mark.timeout(600)
def test_the_tutorial_works_as_it_stands(clean_python: Path, tmp_path: Path) -> None:
    done = []
    reader = Reader(tmp_path, clean_python.parent)
    for block in blocks(PAGE):
        if block.language in {"toml", "python"}:
            reader.write(block)
            continue
        assert block.language == "console"
        for command in commands(block.content):
            if command.line not in {*SET_UP, BROKER}:
                reader.type(command)
                done.append(command.line)
    assert done.count("python handle.py") == 3
    assert "python refused.py" in done


def test_its_first_commands_are_what_the_fixtures_do() -> None:
    assert typed(PAGE)[:5] == [*SET_UP, BROKER]


# ------------------------------------------------------------------------------------------------- how a page is read


def test_a_console_is_read_as_commands_with_what_comes_back() -> None:
    content = "$ one -a   # why: exit status 3\n  # and more\n$ two\nsome 12 lines\n...\n^C\n"
    assert commands(content) == [
        Command("one -a", (), until_reported=False, status=3),
        Command("two", ("some 12 lines", "..."), until_reported=True),
    ]
    assert list(blocks(f"Into `x.toml`:\n\n```console\n{content}```\n")) == [Block("x.toml", "console", content)]


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ("took 28 steps\nlate by 0:00:00.1", True),
        ("took 3 steps\nlate by 1:20:07.004", True),
        ("took 28 steps\nlate by 0:00:00", False),
        ("took no steps\nlate by 0:00:00.1", False),
        ("took 28 steps", False),
    ],
)
def test_numbers_are_the_readers_own_and_words_are_the_pages(text: str, is_same: bool) -> None:
    assert bool(pattern(("took 28 steps", "late by 0:00:00.1")).fullmatch(text)) is is_same
