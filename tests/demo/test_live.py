"""The demo's progress: one line, rewritten in place on a terminal, each 15 s elsewhere."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from timewheel.demo.run import PLAIN_PERIOD_S, PlainScreen, State, TerminalScreen, progress_line, screen_for

STATE = State(phase="playing", left_s=169.4, limit=500, gaps={"native": 5_003, "calendar": 177, "shadow": 96})
LINE = "[ 169 s left] playing  gaps now: native 5,003, timewheel at most 177, kept 500"


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (STATE, LINE),
        (State(phase="starting Pulsar", left_s=3), "[   3 s left] starting Pulsar"),
        (
            State(phase="playing", left_s=3, limit=75, gaps={"native": 7}),
            "[   3 s left] playing  gaps now: native 7, kept 75",
        ),
        (
            State(phase="playing", left_s=3, limit=75, gaps={"wheel": 7}),
            "[   3 s left] playing  gaps now: timewheel at most 7, kept 75",
        ),
    ],
)
def test_a_state_is_a_line_of_a_terminal(state: State, line: str) -> None:
    assert progress_line(state) == line
    assert len(line) <= 80


def test_elsewhere_a_line_is_written_each_quarter_of_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("timewheel.demo.run.time.monotonic", lambda: now_s)
    console = Console(file=StringIO(), width=80)
    with screen_for(console) as screen:
        assert isinstance(screen, PlainScreen)
        for _ in range(61):
            screen.show(STATE)
            now_s += 0.5
    assert written(console).splitlines() == [LINE] * 3, "after 0, 15 and 30 s"
    assert PLAIN_PERIOD_S == 15


@pytest.mark.parametrize("width", [80, 40])
def test_on_a_terminal_one_line_is_rewritten_and_is_gone_at_the_end(width: int) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=width, height=25, color_system=None)
    with screen_for(console) as screen:
        assert isinstance(screen, TerminalScreen)
        for _ in range(3):
            screen.show(STATE)
        screen.say("a line")
    text = written(console)
    assert "a line\n" in text
    assert text.count("\n") <= 2, "a line that was said, and the end"
    assert text.endswith("\x1b[2K"), "the last thing is that the line is erased"
