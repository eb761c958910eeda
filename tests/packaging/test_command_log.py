"""What commands that run for long write: their log to standard error, results alone to standard output."""

from __future__ import annotations

import json
import logging
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.processes import ran
from timewheel.cli.connecting import log_once_a_minute, read_line
from timewheel.client.hooks import MAX_KINDS, REPEAT_AFTER_MS
from timewheel.testing.ports import free_ports

LOGGING = """
import logging, sys
from timewheel.cli.long_running import Format, Level, log_to_stderr
from timewheel.events import CalendarTopicClosed, CalendarTopicStuck
from timewheel.hooks import log_event

log_to_stderr(Format(sys.argv[1]), Level(sys.argv[2]))
log_event(CalendarTopicClosed(topic="t-1"))
log_event(CalendarTopicStuck(topic="t-2", note="2 wait"))
logging.getLogger("httpx").info("GET /")
logging.getLogger("httpx").warning("slow")
"""


def _logged(*options: str) -> str:
    command = [sys.executable, "-c", LOGGING, *options]
    done = ran(command, check=True)
    assert done.stdout == ""
    return done.stderr


def test_away_from_a_terminal_each_event_is_a_line_of_json() -> None:
    closed, stuck, slow = (json.loads(line) for line in _logged("auto", "info").splitlines())

    assert closed.pop("timestamp").endswith("Z")
    assert closed == {"logger": "timewheel", "level": "info", "event": "calendar_topic_closed", "topic": "t-1"}
    assert (stuck["event"], stuck["level"], stuck["note"]) == ("calendar_topic_stuck", "warning", "2 wait")
    assert (slow["logger"], slow["event"]) == ("httpx", "slow")


def test_the_level_is_that_of_events_and_libraries_tell_warnings_only() -> None:
    assert [json.loads(line)["event"] for line in _logged("json", "warning").splitlines()] == [
        "calendar_topic_stuck",
        "slow",
    ]


def test_a_reader_gets_text() -> None:
    closed, stuck, _ = _logged("console", "info").splitlines()

    assert "calendar_topic_closed" in closed
    assert "topic=t-1" in closed
    assert "warning" in stuck
    assert "note='2 wait'" in stuck
    assert "\x1b" not in stuck, "colours are for terminals"


HOSTILE = """
import logging
from timewheel.cli.long_running import Format, Level, log_to_stderr
from timewheel.events import CalendarTopicStuck
from timewheel.hooks import log_event

log_to_stderr(Format.{format}, Level.INFO)
bad = "t\\x1b]0;x\\x07\\x9b2J\\u202e\\nforged line"
log_event(CalendarTopicStuck(topic=bad, note=bad.partition("\\n")[0]))
logging.getLogger("pulsar").error("%s", bad, extra={{"place": bad}})
token = "secret"
try:
    raise ValueError(bad)
except ValueError:
    logging.getLogger("pulsar").exception("failed")
"""


@pytest.mark.parametrize("log_format", ["CONSOLE", "JSON"])
def test_what_others_chose_moves_no_terminal_and_forges_no_line(log_format: str) -> None:
    code = HOSTILE.format(format=log_format)
    done = ran([sys.executable, "-c", code], check=True)

    assert all(line.isprintable() for line in done.stderr.splitlines())
    assert "\nforged line" not in done.stderr
    assert "ValueError" in done.stderr
    assert "secret" not in done.stderr, "a traceback has no local variables"


def test_a_terminal_gets_text_by_itself() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", LOGGING, "auto", "warning"], stdout=subprocess.PIPE, stderr=theirs):
        os.close(theirs)
        shown = os.read(ours, 4096).decode()
    os.close(ours)

    assert "calendar_topic_stuck" in shown
    assert not shown.startswith("{")


def test_a_calendar_that_cannot_be_rolled_is_told_in_the_log(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    plan = tmp_path / "plan.toml"
    plan.write_text('format = 1\ndue_topic = "persistent://a/b/c"\nsubscriptions = ["s"]\n[calendar]\n')
    command = [sys.executable, "-m", "timewheel", "topics", "roll", str(plan), "--watch"]
    command += ["--admin-url", f"http://127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as rolling:
        assert rolling.stderr is not None
        told = json.loads(rolling.stderr.readline())
        rolling.send_signal(signal.SIGINT)
        out, err = rolling.communicate(timeout=60)

    assert (told["logger"], told["event"], told["due_topic"]) == (
        "timewheel",
        "calendar_roll_failed",
        "persistent://a/b/c",
    )
    assert (rolling.returncode, out, err) == (0, "", "")


CLIENT = """
import logging, sys
if len(sys.argv) > 2:
    logging.basicConfig(format=sys.argv[2])
import pulsar
from timewheel.cli.connecting import client_log

with client_log() as log:
    client = pulsar.Client(sys.argv[1], operation_timeout_seconds=1, logger=log)
    try:
        client.create_producer("t")
    except pulsar.PulsarException:
        pass
    client.close()
"""


def test_the_clients_own_errors_are_records_of_the_logger_pulsar() -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", CLIENT, f"pulsar://127.0.0.1:{port}", "%(name)s %(levelname)s %(place)s"]
    done = ran(command, check=True)

    assert done.stdout == ""
    assert {line.partition(":")[0] for line in done.stderr.splitlines()} == {
        "pulsar ERROR ClientConnection",
        "pulsar ERROR ClientImpl",
    }


def test_a_command_without_a_log_keeps_the_clients_own_errors_off_the_terminal() -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", CLIENT, f"pulsar://127.0.0.1:{port}"]
    done = ran(command, check=True)

    assert (done.stdout, done.stderr) == ("", "")


AT = "2026-11-21 09:00:00.000 {} [139701] ProducerImpl:230 | {}"
BUSY = "[persistent://a/b/t, n] Failed to create producer: {} org.apache: Producer with name 'n' is already connected"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (AT.format("ERROR", BUSY.format("ProducerBusy")), logging.DEBUG),
        (AT.format("ERROR", BUSY.format("ProducerFenced")), logging.DEBUG),
        (AT.format("ERROR", BUSY.format("TopicNotFound")), logging.ERROR),
        (AT.format("ERROR", BUSY.format("ProducerBlockedQuotaExceededError")), logging.ERROR),
        (AT.format("ERROR", "Connection refused"), logging.ERROR),
        (AT.format("FATAL", "no memory"), logging.CRITICAL),
        ("no line of the client's", logging.ERROR),
    ],
)
def test_that_another_process_has_a_lease_is_no_error_of_one_that_stands_by(line: str, level: int) -> None:
    found, text, place = read_line(line + "\n")
    assert found == level
    assert text == (line.partition(" | ")[2] if place else line)


OUTAGE = (
    "[<none> -> pulsar://10.0.0.{0}:6650] Failed to establish connection: Connection refused",
    "[10.0.0.1:{0} -> 10.0.0.2:6650] Connection already disconnected",
)


def test_an_outage_is_a_line_of_each_kind_and_the_next_names_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    repeats = log_once_a_minute(clock)
    for number in range(1_200):
        for line in OUTAGE:
            repeats.raised(line.format(number))
        clock.advance(40)
    assert caplog.messages == [line.format(0) for line in OUTAGE]
    clock.advance(REPEAT_AFTER_MS)
    repeats.raised(OUTAGE[0].format(0))
    assert caplog.messages[2:] == [
        f"{OUTAGE[0].format(0)} (1199 more like it before)",
        f"{OUTAGE[1].format(1_199)} (1198 more like it before)",
    ]


def test_another_reason_is_another_line_and_the_oldest_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    repeats = log_once_a_minute(ManualClock())
    kinds = [f"[persistent://a/b/c] Failed to create producer: {'x' * number}" for number in range(1, MAX_KINDS + 2)]
    for kind in (*kinds, kinds[-1], kinds[0]):
        repeats.raised(kind)
    assert caplog.messages == [*kinds, kinds[0]]
