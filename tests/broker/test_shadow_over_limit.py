"""A shadow that would leave more gaps than the broker keeps is not begun in silence, and what is printed cures it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import BUSINESS, plan_of
from tests.broker.shadow_stage import ShadowStage
from tests.broker.test_shadow_look import run, saved
from tests.broker.test_shadow_taken_up import WIDE, gaps
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Plan, Tiered
from timewheel.shadow.curing import first_plan, fitted
from timewheel.shadow.machine.states import State, desired_in
from timewheel.testing import LocalPulsar, eventually

LIMIT = 200
EACH = 500


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalPulsar]:
    with LocalPulsar(config={"managedLedgerMaxUnackedRangesToPersist": str(LIMIT)}) as pulsar:
        yield pulsar


def filled(on: ShadowStage, *delays_ms: int) -> None:
    """Timers of these delays by turns, with a handled one behind each round."""
    producer, at_ms = on.plain_producer(), now_ms()
    consumer = on.plain_consumer()
    for number in range(EACH):
        for delay_ms in delays_ms:
            producer.send_async(b"later", None, deliver_at=at_ms + delay_ms)
        producer.send_async(f"{number}".encode(), None)
    producer.flush()
    eventually(lambda: len(consumer.handled) == EACH, 60)
    eventually(lambda: gaps(on) >= EACH - 1, 60)


def plan() -> Plan:
    return replace(WIDE, due_topic=plan_of().due_topic)


def as_printed(broker: LocalPulsar, text: str) -> subprocess.CompletedProcess[str]:
    """The command that would put it right, run by a shell as it stands there."""
    line = re.search(r"timewheel shadow start \S+ --window \S+", " ".join(text.split()))
    assert line is not None, text
    where = {"PULSAR_ADMIN_URL": broker.admin_url, "PULSAR_SERVICE_URL": broker.service_url}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | where | {"PATH": path, "COLUMNS": "500"}
    return subprocess.run(line.group(), shell=True, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_it_is_refused_and_begun_all_the_same_it_can_be_put_right_by_the_command_that_status_prints(
    broker: LocalPulsar, tmp_path: Path
) -> None:
    wide = plan()
    with ShadowStage(broker, wide) as on:
        filled(on, 3 * HOUR_MS, 5 * DAY_MS)
        file = saved(wide, tmp_path)
        for option in ("--dry-run", "--entries=100000"):
            refused = run(broker, "start", option, file)
            assert refused.returncode == 3, refused.stderr
            assert "still-over-limit" in refused.stdout
            assert f"has caught up; the broker keeps {LIMIT}" in " ".join(refused.stdout.split())
        assert desired_in(on.admin.topics.properties(on.names.journal)).state is State.PROVISIONED
        # A plan that is made for the topic has the window that is found to do.
        made = tmp_path / "made.toml"
        shown = run(broker, "start", wide.due_topic, "--out", str(made), "--dry-run")
        assert shown.returncode == 0, shown.stderr + shown.stdout
        first = first_plan(wide.due_topic, wide.subscriptions, wide.partitions, Plan.load(made).tick_ms)
        assert Plan.load(made) == fitted(first, 2 * HOUR_MS, 5 * DAY_MS)
        assert "Nothing was begun; the plan is in" in shown.stdout

        begun = run(broker, "start", file, "--ignore-refusals")
        assert begun.returncode == 0, begun.stderr
        with RelayProcess(broker, wide, tmp_path, kind="shadow") as service:
            assert str(service.plan_file) == file
            service.await_ready()
            eventually(lambda: service.told("shadow_caught_up"), 60)
            assert gaps(on) >= EACH - 1
            status = run(broker, "status", file)
            assert status.returncode == 3, status.stderr
            assert "--dry-run" not in status.stdout, "one excess, one remedy"
            Path(file).write_text("# written by hand\n" + Path(file).read_text())
            done = as_printed(broker, status.stdout)
            assert done.returncode == 0, done.stderr + done.stdout
            narrow = Plan.load(file)
            assert Path(file).read_text().startswith("# written by hand\n")
            assert "revision = 2, [tiered] window = " in done.stdout
            assert "Each shadow run that reads this file follows it" in done.stdout
            # The longest window that leaves room: the next one, 3 h, would let the timers of 3 h stay.
            assert isinstance(narrow.scheme, Tiered)
            assert (narrow.scheme.window_ms, narrow.revision) == (2 * HOUR_MS, 2)
            service.hang_up()
            eventually(lambda: gaps(on) <= 1, 60, message="what was let stay is taken up")
            assert run(broker, "status", file).returncode == 0
            assert run(broker, "verify", file).returncode == 0


def test_where_no_window_would_do_it_says_why_in_figures(broker: LocalPulsar, tmp_path: Path) -> None:
    with ShadowStage(broker, plan()) as on:
        filled(on, 90_000)
        found = run(broker, "start", saved(on.plan, tmp_path))
        assert found.returncode == 3, found.stderr
        told = " ".join(found.stdout.split())
        assert re.search(rf"No window would do: of {EACH} pending entries {EACH} are due within 3m, or", told), told
        assert "give the topic more partitions; or" in told
        unfit = run(broker, "start", on.plan.due_topic, "--out", str(tmp_path / "made.toml"), "--yes")
        assert unfit.returncode == 3, unfit.stderr
        assert "No window would do" in " ".join(unfit.stdout.split())
        assert "Nothing was begun; the plan is in" in unfit.stdout
        assert on.admin.topics.stats(on.parts()[0]).subscriptions[BUSINESS].gap_count >= EACH - 1
        assert MINUTE_MS + 2 * on.plan.guard_ms == 3 * MINUTE_MS
