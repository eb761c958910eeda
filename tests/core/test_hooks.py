"""The catalogue of events, and where they go: silent until a service configures logging."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from dataclasses import fields
from typing import get_type_hints

import pytest

from timewheel.client.hooks import Hooks
from timewheel.events import CATALOGUE, CalendarTopicDeleted, HandlerFailed, RelaySessionCrashed, TimerFarTooEarly
from timewheel.hooks import Alarm, Event, log_event

CRASHED = RelaySessionCrashed(topic="persistent://a/b/c-partition-0", reason='a hole at "3:7"')


@pytest.mark.parametrize("kind", CATALOGUE, ids=lambda kind: str(kind.name))
def test_every_event_says_what_it_means_and_what_to_do(kind: type[Event]) -> None:
    assert kind.name == re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    assert kind.level in ("info", "warning", "error")
    # A record of the standard library would refuse a fact under a name of its own.
    taken = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "event", "level", "logger", "timestamp"}
    assert not taken & {field.name for field in fields(kind)}
    assert {*get_type_hints(kind).values()} - {str, int, str | None, int | None} <= {*get_type_hints(Event).values()}


def test_no_two_events_share_a_name() -> None:
    assert len({kind.name for kind in CATALOGUE}) == len(CATALOGUE)


def test_what_is_not_known_is_left_out() -> None:
    assert HandlerFailed(timer_id=None, error="ValueError()").fields == {"error": "ValueError()"}


def test_the_alarms_alone_carry_a_count() -> None:
    counted = {kind.name for kind in CATALOGUE if "count" in {field.name for field in fields(kind)}}
    assert counted == {kind.name for kind in CATALOGUE if issubclass(kind, Alarm)}
    assert TimerFarTooEarly(topic="t", early_ms=5, remedy="r").fields["count"] == 1


def test_a_hook_that_raises_is_logged_and_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Event) -> None:
        raise ValueError("boom")

    told: list[Event] = []
    Hooks((broken, told.append)).emit(CRASHED)

    assert told == [CRASHED]
    (record,) = caplog.records
    assert (record.name, record.levelname, vars(record)["event"]) == ("timewheel", "ERROR", "hook_failed")
    assert vars(record)["error"] == "ValueError('boom')"


def test_a_record_is_text_for_readers_and_facts_for_formatters(caplog: pytest.LogCaptureFixture) -> None:
    Hooks().emit(CRASHED)

    (record,) = caplog.records
    assert record.getMessage() == (
        'relay_session_crashed topic=persistent://a/b/c-partition-0 reason="a hole at \\"3:7\\""'
    )
    assert (record.name, record.levelname, record.module) == ("timewheel", "ERROR", "test_hooks")
    facts = {name: vars(record)[name] for name in ("event", "topic", "reason")}
    assert facts == {"event": "relay_session_crashed", **CRASHED.fields}


def test_a_level_that_the_service_does_not_want_costs_no_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "timewheel"):
        log_event(CalendarTopicDeleted(topic="t"))

    assert caplog.records == []


# A calendar that cannot be rolled, since nobody listens there: an error, told without hooks. Once while nothing is
# configured, and once more after the service has configured its logging: to start a process takes longer than all else.
SERVICE = """
import logging
import sys
from timewheel.core import Calendar, Plan, SystemClock
from timewheel.broker.admin import AdminClient
from timewheel.provision import CalendarRoller

plan = Plan(due_topic="persistent://a/b/c", subscriptions=("s",), scheme=Calendar(interval_ms=86_400_000))
for configure in (lambda: None, lambda: logging.basicConfig(format="%(levelname)s %(name)s %(message)s")):
    configure()
    with AdminClient("http://127.0.0.1:9", retry_for_s=0) as admin:
        assert CalendarRoller(admin, plan, SystemClock()).tick() is None
    print("done")
    print("done", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def told() -> list[tuple[str, str]]:
    """What a service wrote to its output and to its errors: before it configured its logging, and after that."""
    ran = subprocess.run([sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=60, check=True)
    (out, later_out, _), (err, later_err, _) = ran.stdout.split("done\n"), ran.stderr.split("done\n")
    return [(out, err), (later_out, later_err)]


def test_a_service_that_configures_nothing_sees_nothing(told: list[tuple[str, str]]) -> None:
    assert told[0] == ("", "")


def test_a_service_that_configures_logging_sees_events_in_its_own_log(told: list[tuple[str, str]]) -> None:
    out, err = told[1]

    assert out == ""
    assert err.startswith("ERROR timewheel calendar_roll_failed due_topic=persistent://a/b/c error=")
