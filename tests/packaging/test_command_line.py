"""How the command ends: one line and a status, never a traceback for what we raise on purpose."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.processes import ran
from timewheel.cli.app import app
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Plan, Tiered
from timewheel.core.planfile import save_plan

# A command that fails in the way under test, run through the real main().
FAILING = """
import sys
from timewheel.cli.app import app, main
from timewheel.core.errors import PlanError, TopologyError

@app.command()
def fail():
    raise {error}

main()
"""
PLAN_ERROR = "PlanError('tiered.window', '0s', 'at least 1s')"
TOPOLOGY_ERROR = "TopologyError('t', 'is missing', 'create it')"


def _end(error: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-c", FAILING.format(error=error), *arguments], env=environment or {})


@pytest.mark.parametrize(
    ("error", "arguments", "environment", "status", "said"),
    [
        (PLAN_ERROR, ["fail"], {}, 2, r"timewheel: plan: tiered\.window = '0s': at least 1s\n"),
        (TOPOLOGY_ERROR, ["fail"], {}, 1, r"timewheel: t: is missing; create it\n"),
        (PLAN_ERROR, ["--traceback", "fail"], {}, 1, r"Traceback[^\0]*PlanError[^\0]*"),
        (PLAN_ERROR, ["fail"], {"TIMEWHEEL_TRACEBACK": "1"}, 1, r"Traceback[^\0]*PlanError[^\0]*"),
        ("ZeroDivisionError('bug')", ["fail"], {}, 1, r"Traceback[^\0]*ZeroDivisionError[^\0]*"),
    ],
    ids=["plan", "topology", "option", "environment", "bug"],
)
def test_an_error_of_ours_is_one_line_and_a_bug_keeps_its_traceback(
    error: str, arguments: list[str], environment: dict[str, str], status: int, said: str
) -> None:
    done = _end(error, *arguments, environment=environment)

    assert (done.returncode, done.stdout) == (status, "")
    assert re.fullmatch(said, done.stderr), done.stderr


HOSTILE = "x\x1b]0;t\x07\x9b2J\u202e\ud800\ntimewheel: all is well"


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (f"TopologyError({HOSTILE!r}, 'is missing', 'create it')", ["fail"]),
        (f"TopologyError({HOSTILE!r}, 'is missing', 'create it')", ["--traceback", "fail"]),
        (f"ZeroDivisionError({HOSTILE!r})", ["fail"]),
        (f"__import__('typer').BadParameter({HOSTILE!r})", ["fail"]),
        (PLAN_ERROR, ["no\x1b[2J\x9b2J\u202esuch"]),
    ],
    ids=["error", "traceback", "bug", "usage", "unknown command"],
)
def test_no_error_moves_the_terminal_or_forges_a_message(error: str, arguments: list[str]) -> None:
    done = _end(error, *arguments)

    assert done.returncode in {1, 2}
    assert "\\x1b" in done.stderr
    assert all(line.isprintable() for line in done.stderr.splitlines())
    assert "\ntimewheel: all is well" not in done.stderr


def test_a_name_that_is_no_text_is_printed() -> None:
    code = "import sys; from timewheel.cli.app import app, main; sys.argv = ['timewheel', 'odd']\n"
    code += "app.command('odd')(lambda: print('\\ud800')); main()"
    done = ran([sys.executable, "-c", code])

    assert (done.returncode, done.stdout) == (0, "\\ud800\n")


def test_a_command_in_an_error_names_the_plan_file_that_was_given(tmp_path: Path) -> None:
    file = tmp_path / "my plan.toml"
    scheme = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,))
    save_plan(Plan(due_topic="persistent://acme/crm/orders", subscriptions=("a",), scheme=scheme), file)
    words = [sys.executable, "-m", "timewheel", "relay", "abort", str(file)]
    done = ran(words)
    assert done.returncode == 2, done.stderr
    assert f"run timewheel topics ensure '{file}' --ignore-former-topics" in done.stderr


# The signal arrives in code that Python compiled from a string, as it does in the making of any dataclass.
STOPPED = """
import os, signal
from timewheel.cli.long_running import stop_at_end

stop_at_end()
try:
    exec("os.kill(os.getpid(), signal.{name})\\nwhile True: pass")
except KeyboardInterrupt:
    print("in order")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_command_that_is_stopped_ends_in_order_wherever_the_signal_finds_it(name: str) -> None:
    ended = ran([sys.executable, "-c", STOPPED.format(name=name)])
    assert (ended.returncode, ended.stdout) == (0, "in order\n")


@pytest.mark.parametrize(
    ("words", "usage"),
    [(["plan", "check", "--help"], "timewheel plan check [OPTIONS]"), (["plan", "--help"], "timewheel plan [OPTIONS]")],
)
def test_two_words_may_be_a_command_beside_that_of_the_first(words: list[str], usage: str) -> None:
    done = CliRunner().invoke(app, words, prog_name="timewheel", env={"COLUMNS": "120", "TERM": "dumb"})

    assert done.exit_code == 0
    assert usage in done.output


def test_a_history_by_the_name_of_a_command_is_named_with_its_folder(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "check"), "--profile", "no-such-profile"])

    assert done.exit_code == 2
    assert "no-such-profile" in done.output, "it went on to planning"


@pytest.mark.parametrize(
    "memory", ["512q", "", "2", "2gb", "511m", "0g", "1025g", "-2g", "2 g", "\u0662g", "9" * 30 + "g"]
)
def test_a_heap_that_java_does_not_take_is_refused_at_the_option(memory: str) -> None:
    done = CliRunner().invoke(app, ["plan", "h.parquet", "--memory", memory], env={"COLUMNS": "200", "TERM": "dumb"})

    assert done.exit_code == 2
    assert "--memory" in done.output
    assert "no heap from 512m to 1024g" in done.output
