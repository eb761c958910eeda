"""Events: the code blocks of the pages do what is said of them."""

from __future__ import annotations

import json
import re
import sys

import pytest
from markdown_it import MarkdownIt

from tests.support.checkout import ROOT
from tests.support.processes import ran

# What every block is tried with: one event, told as the SDK tells it.
TOLD = """
from tests.support.processes import ran
from timewheel.events import CalendarTopicMissing, RelaySessionCrashed
from timewheel.client.hooks import Hooks

Hooks({hooks}).emit(CalendarTopicMissing(topic="t-2", remedy="make it"))
"""


def _block(word: str) -> str:
    """The one Python block of the page for operators that has this word."""
    page = (ROOT / "docs" / "how-to" / "see-logs-and-events.md").read_text(encoding="utf-8")
    fences = [token for token in MarkdownIt().parse(page) if token.type == "fence" and token.info == "python"]
    (found,) = [fence.content for fence in fences if word in fence.content]
    return found


def _stderr_of(program: str) -> str:
    done = ran([sys.executable, "-c", program], check=True)
    assert done.stdout == ""
    return done.stderr


def test_the_standard_library_alone_shows_events() -> None:
    block = _block("basicConfig(level")
    assert _stderr_of(block + TOLD.format(hooks="")) == (
        'ERROR timewheel calendar_topic_missing topic=t-2 remedy="make it"\n'
    )


def test_structlog_over_standard_logging_gets_the_facts() -> None:
    assert json.loads(_stderr_of(_block("ExtraAdder") + TOLD.format(hooks=""))) == {
        "event": "calendar_topic_missing",
        "level": "error",
        "logger": "timewheel",
        "topic": "t-2",
        "remedy": "make it",
    }


def test_hooks_count_and_act(caplog: pytest.LogCaptureFixture) -> None:
    names: dict[str, object] = {}
    program = _block("Counter") + TOLD.format(hooks="hooks")
    exec(program + 'Hooks(hooks).emit(RelaySessionCrashed(topic="t-1", reason="a fault"))', names)

    assert names["counts"] == {"calendar_topic_missing": 1, "relay_session_crashed": 1}
    assert names["crashed"] == ["t-1"]
    assert [vars(record)["event"] for record in caplog.records] == ["calendar_topic_missing", "relay_session_crashed"]


def test_readme_names_the_logger_that_shows_events() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"`(logging\.basicConfig\(.*?\))`", readme)
    assert "calendar_topic_missing" in _stderr_of(f"import logging\n{line}\n" + TOLD.format(hooks=""))
