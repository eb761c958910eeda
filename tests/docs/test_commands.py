"""Commands in the docs: every line that a page shows is one."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.testing import CliRunner

from tests.support.checkout import ROOT, files
from tests.support.pages import typed
from tests.support.tables import commands
from timewheel.cli.app import app

OPTIONS = {
    name: {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    for name, command in commands()
}


def unknown(line: str) -> list[str]:
    """What of a line of a shell is no command of ours, or no option of it; nothing, if it is not about timewheel."""
    words = shlex.split(line, comments=True)
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if not words or words[0] != "timewheel":
        return []
    # The longest: there is `timewheel plan HISTORY`, and `timewheel plan check PLAN`.
    name = max((known for known in OPTIONS if words[: len(known.split())] == known.split()), key=len, default=None)
    if name is None:
        return [line]
    return [word for word in words if word.startswith("-") and word.partition("=")[0] not in OPTIONS[name]]


def test_every_command_of_every_page_is_one() -> None:
    lines = [
        (str(page), line)
        for page in files()
        if page.suffix == ".md"
        for line in typed((ROOT / page).read_text(encoding="utf-8"))
    ]
    assert sum(line.startswith("timewheel ") for _, line in lines) > 10
    assert [(page, found) for page, line in lines if (found := unknown(line))] == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("timewheel topics ensure plan.toml --dry-run", []),
        ("A=1 timewheel topics ensure plan.toml --dry", ["--dry"]),
        ("timewheel plan check plan.toml --log checks.jsonl", []),
        ("timewheel plan history.parquet --log checks.jsonl", ["--log"]),
        ("timewheel topics mend plan.toml", ["timewheel topics mend plan.toml"]),
        ("make bench --whatever", []),
    ],
)
def test_a_command_that_is_not_there_is_found(line: str, found: list[str]) -> None:
    assert unknown(line) == found


@pytest.mark.parametrize("name", OPTIONS)
def test_help_shows_every_word_of_a_command_and_of_its_options(name: str) -> None:
    command = dict(commands())[name]
    options = [one for one in command.params if one.help and not getattr(one, "hidden", False)]
    sources = [command.help, *(one.help for one in options)]

    shown = CliRunner().invoke(app, [*name.split()[1:], "--help"], prog_name="timewheel")

    assert shown.exit_code == 0
    assert [text for text in sources if "".join(text.split()) not in "".join(shown.output.split())] == []
