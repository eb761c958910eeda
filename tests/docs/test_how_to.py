"""The how-to guides: what they show works, and what they say is refused is refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from tests.behaviour.conftest import real_or_virtual
from tests.support import command_line
from tests.support.checkout import ROOT
from tests.support.pages import blocks, typed
from tests.support.processes import ran
from tests.support.pulsar_admin import problem_of
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedMessage
from timewheel.consumers.engine import MAX_GIVEN_BACK
from timewheel.core import Cancel, Plan
from timewheel.core.names import Names, partition_topic
from timewheel.core.plan import Calendar, Tiered
from timewheel.core.planfile import dump_plan, save_plan
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.testing import Broker, eventually

HOW_TO = ROOT / "docs" / "how-to"
TIMEOUT_S = 90
TIMEWHEEL = str(Path(sys.executable).parent / "timewheel")

FORMER = Plan(
    due_topic="persistent://public/default/change-a-plan",
    subscriptions=("billing",),
    scheme=Tiered(window_ms=5_000, tiers_ms=(5_000, 15_000)),
    max_delay_ms=120_000,
    guard_ms=500,
)
PLAN = replace(FORMER, scheme=Tiered(window_ms=5_000, tiers_ms=(5_000,)), revision=2)


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The one that the pages name, or a virtual one, which has any address."""
    yield from real_or_virtual(request, "broker_of_the_pages")


@pytest.fixture
def client(broker: Broker) -> Iterator[pulsar.Client]:
    opened = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield opened
    opened.close()


def make_topics(broker: Broker, *plans: Plan) -> None:
    with AdminClient(broker.admin_url) as admin:
        for plan in plans:
            ensure(admin, plan, now_ms=int(time.time() * 1_000))


def made_plan(broker: Broker, name: str, **limits: Any) -> Plan:
    """A plan whose topics are there."""
    plan = Plan(due_topic=f"persistent://public/default/{name}", subscriptions=("billing",), **limits)
    make_topics(broker, plan)
    return plan


def run(*command: str, folder: Path, env: dict[str, str] | None = None) -> Any:
    """What a command printed; it ends well."""
    done = ran(command, cwd=folder, env=env, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def timewheel(line: str, folder: Path | None = None, ends: int = 0) -> Any:
    done = command_line.timewheel(*line.split()[1:], cwd=folder, timeout=TIMEOUT_S)
    assert done.returncode == ends, done.stdout + done.stderr
    return done


def page(name: str) -> str:
    return (HOW_TO / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.real
def test_the_test_of_a_service_is_one(broker: Broker, tmp_path: Path) -> None:
    # The others run in tests/virtual/test_example.py and tests/broker/test_local_cluster.py.
    _, block, _ = blocks(page("test-your-service"), "python")
    (tmp_path / "test_reminders.py").write_text(block.content)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "reminders.toml").write_text(next(blocks(readme, "toml")).content)
    given = {"TIMEWHEEL_TEST_BROKER": broker.service_url, "TIMEWHEEL_TEST_BROKER_ADMIN": broker.admin_url}
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_reminders.py")
    assert "1 passed" in run(*command, folder=tmp_path, env={**os.environ, **given}).stdout


@pytest.mark.real
def test_a_plan_is_watched_as_it_says(broker: Broker, client: pulsar.Client, tmp_path: Path) -> None:
    """A topic without a relay, sent to by hand; what the page shows has the form of what comes."""
    plan = made_plan(broker, "watch-a-plan", max_delay_ms=60_000)
    producer = client.create_producer(plan.due_topic)
    for number in range(200):
        producer.send_async(b"x", None, deliver_after=timedelta(milliseconds=45_000 + 37 * number % 9_000))
    producer.flush()
    save_plan(plan, tmp_path / "reminders.toml")

    (line,) = typed(page("watch-a-plan"))
    checked = timewheel(line, tmp_path).stdout
    assert (tmp_path / "checks.jsonl").read_text().count("\n") == 1
    shown, cron = (block.content for block in blocks(page("watch-a-plan"), ""))
    names = [row.split()[0] for row in shown.split("\n\n")[1].splitlines()]
    assert [row.split()[0] for row in checked.split("\n\n")[1].splitlines()] == names
    header = next(row for row in shown.splitlines() if "predicted" in row)
    assert header.split() in [row.split() for row in checked.splitlines()]
    assert cron.startswith("15 * * * *"), "minute, hour, day of month, month, day of week"
    options = {word for word in shlex.split(cron.partition("timewheel plan check")[2]) if word.startswith("--")}
    helped = timewheel("timewheel plan check --help").stdout
    assert all(option in helped for option in options), helped

    (block,) = blocks(page("watch-a-plan"), "python")
    (tmp_path / "watch.py").write_text(block.content + "assert is_fine\n")
    assert "fine alone" in run(sys.executable, "watch.py", folder=tmp_path).stdout


@pytest.mark.timeout(180)
def test_a_plan_is_changed_as_it_says(broker: Broker, client: pulsar.Client, tmp_path: Path) -> None:
    """A tier of 15 s in which a timer waits is taken out of the plan."""
    make_topics(broker, FORMER)
    with DelayedProducer(client, FORMER) as producer:
        producer.send(b"renew", deliver_after=timedelta(seconds=15.6))
    save_plan(PLAN, tmp_path / "reminders.toml")

    look, make, remove, shadow = typed(page("change-a-plan"))
    assert shadow.startswith("timewheel shadow start "), "of a topic that is full already; the page of shadows walks it"
    (shown,) = blocks(page("change-a-plan"), "")
    said = timewheel(look, tmp_path, ends=1).stderr.replace("/change-a-plan.tw.", "/reminders.tw.")
    assert said.split() == shown.content.split(), "the error is the page's, but for the name of the topic"

    made = timewheel(make, tmp_path).stdout
    assert "warning: persistent://public/default/change-a-plan.tw.tier-15s" in made

    (block,) = blocks(page("change-a-plan"), "python")
    names: dict[str, Any] = {"client": client, "plan": PLAN}
    exec(compile(block.content, "change-a-plan.md", "exec"), names)
    with names["admin"], names["consumer"] as consumer:
        message = consumer.receive(timedelta(seconds=40))
        assert message.data() == b"renew"
        consumer.acknowledge(message)
    assert "change-a-plan.tw.tier-15s: removed" in timewheel(remove, tmp_path).stdout


@pytest.mark.timeout(180)
def test_timewheel_is_left_as_it_says(broker: Broker, client: pulsar.Client, tmp_path: Path) -> None:
    """Tiers and a calendar, each with a timer that waits for days; the page's plans, but for their topics' names."""
    text = page("leave-timewheel")
    assert len(text.split()) <= 700
    native, calendar = (block.content.replace("default/", "default/leave-") for block in blocks(text, "toml"))
    (tmp_path / "reminders.toml").write_text(native)
    (tmp_path / "audits.toml").write_text(calendar)
    left = {name: Plan.load(tmp_path / f"{name}.toml") for name in ("reminders", "audits")}
    former = {
        "reminders": replace(left["reminders"], scheme=Tiered(window_ms=3_600_000, tiers_ms=(3_600_000, 864_000_000))),
        "audits": replace(left["audits"], scheme=Calendar(), former_intervals_ms=()),
    }
    make_topics(broker, *former.values())
    for plan in former.values():
        with DelayedProducer(client, plan) as producer:
            producer.send(b"renew", deliver_after=timedelta(days=20))

    lines = typed(text)
    assert [line.split()[1] for line in lines] == ["topics", "doctor", "relay", "topics", "topicPolicies", "topics"]
    prepare, _, abort, remove, *by_hand = lines
    assert [problem_of(line) for line in by_hand] == [None, None]
    timewheel(prepare, tmp_path)
    assert ": 1 timer; 0 cancelled, 0 dead letters" in timewheel(abort, tmp_path).stdout
    assert timewheel(remove, tmp_path).stdout.count(": removed") == 2

    timewheel("timewheel topics ensure audits.toml", tmp_path)
    assert "this plan's consumers read it" in timewheel("timewheel relay abort audits.toml", tmp_path).stdout


@pytest.mark.timeout(180)
def test_the_topics_of_a_plan_with_cancel_are_left_as_it_says(broker: Broker, client: pulsar.Client) -> None:
    """The log of cancellations is never empty, and goes all the same."""
    text, topic = page("leave-timewheel"), "persistent://public/default/reminders"
    (by_hand,) = (block.content for block in blocks(text, "python"))
    assert f"delete-partitioned-topic {topic}.tw.cancellations" in text
    plan = Plan(due_topic=f"{topic}-cut", subscriptions=("billing",), cancel=Cancel())
    names, now_ms = Names(plan), int(time.time() * 1_000)
    with AdminClient(broker.admin_url) as admin:
        ensure(admin, plan, now_ms=now_ms)
        with DelayedProducer(client, plan) as producer:
            producer.cancel(producer.send(b"renew", deliver_after=timedelta(days=20)))
        assert admin.topics.internal_stats(partition_topic(names.cancellations, 0)).entries
        left = replace(plan, cancel=None, revision=2)
        ensure(admin, left, now_ms=now_ms)
        for name in (names.cancellations, names.parked("billing"), names.retry("billing")):
            assert admin.topics.partitions(name) is not None
            its = by_hand.replace(f"{topic}.tw.cancellations", name).replace("http://localhost:8080", broker.admin_url)
            exec(compile(its, "leave-timewheel.md", "exec"), {})
        ensure(admin, left, now_ms=now_ms)
        assert admin.topics.partitions(names.cancellations) is None


def test_a_timer_is_found_from_python_as_it_says(
    broker: Broker,
    client: pulsar.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (block,) = blocks(page("look-after-timers"), "python")
    due_ms = int(time.time() * 1_000) + 86_400_000
    plan = made_plan(broker, "look-after")
    save_plan(plan, tmp_path / "reminders.toml")
    monkeypatch.chdir(tmp_path)
    with DelayedProducer(client, plan) as producer:
        producer.send(b"renew", deliver_at=due_ms, timer_id="sub-42")
    its_time = "1_796_889_600_000"
    assert its_time in block.content
    exec(block.content.replace(its_time, str(due_ms)), {})
    assert capsys.readouterr().out.startswith("due Sighting(")


TRACED = """
import pulsar
from timewheel.consumers import DelayedConsumer
from timewheel.core.planfile import load_plan
client = pulsar.Client({url!r}, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
plan = load_plan("reminders.toml")
consumer = DelayedConsumer(client, plan, "billing").start()
{blocks}
consumer.close()
client.close()
"""


@pytest.mark.real
def test_timers_are_traced_as_it_says(broker: Broker, tmp_path: Path) -> None:
    """The blocks as one program, whose days are tenths of a second; it prints its spans."""
    plan = made_plan(broker, "trace-timers", max_delay_ms=60_000)
    save_plan(plan, tmp_path / "reminders.toml")
    text = page("trace-timers")
    code = "\n".join(block.content for block in blocks(text, "python")).replace("days=17", "seconds=1.7")
    (tmp_path / "trace.py").write_text(TRACED.format(url=broker.service_url, blocks=code))
    traced = run(sys.executable, "trace.py", folder=tmp_path)
    assert traced.stderr == ""

    (printed,) = re.findall(r"^me 00-(\w+)-(\w+)-\w\w$", traced.stdout, re.MULTILINE)
    spans = {span["name"]: span for span in _json_values(traced.stdout)}
    send, process = f"send {plan.due_topic}", f"process {plan.due_topic}"
    assert spans.keys() == {send, "sign up", "charge", process}
    sent, processed = spans[send], spans[process]
    assert sent["context"]["trace_id"] == spans["sign up"]["context"]["trace_id"] == f"0x{printed[0]}"
    assert sent["context"]["span_id"] == f"0x{printed[1]}"
    assert [link["context"]["span_id"] for link in processed["links"]] == [sent["context"]["span_id"]]
    assert processed["parent_id"] is None
    assert spans["charge"]["parent_id"] == processed["context"]["span_id"]

    rows = re.findall(r"^\| `([\w.]+)` \|(.*)\|(.*)\|$", text, re.MULTILINE)
    assert {name for name, cell, _ in rows if cell.strip()} == sent["attributes"].keys()
    assert {name for name, _, cell in rows if cell.strip()} == processed["attributes"].keys()


@pytest.mark.usefixtures("broker")
def test_timers_are_cancelled_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The table goes into the plan file, the blocks run as one program, then the commands."""
    text = page("cancel-timers")
    (table,) = blocks(text, "toml")
    plan = Plan(due_topic="persistent://public/default/cancel-timers", subscriptions=("billing",))
    (tmp_path / "reminders.toml").write_text(f"{dump_plan(plan)}\n{table.content}")
    made = timewheel("timewheel topics ensure reminders.toml", tmp_path)
    assert "4 topics" in made.stdout, "the due topic, what is tried again, the log of cancellations, the parked timers"
    code = "\n".join(block.content for block in blocks(text, "python"))
    quiet = "pulsar.Client(logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), service_url="
    monkeypatch.chdir(tmp_path)
    exec(code.replace("pulsar.Client(", quiet) + "producer.close()\nclient.close()\n", {})
    assert capfd.readouterr().err == ""

    lines = typed(text)
    cancelled, listed = (timewheel(line, tmp_path) for line in lines)
    assert "order-8  timers not delivered yet will not be delivered" in cancelled.stdout
    names = {"order-7", "order-8", "meeting-3", "reminder-of-ann", "account-5"}
    assert all(name in listed.stdout for name in names), listed.stdout
    assert "5 of 5 cancellations in effect" in listed.stdout
    told = json.loads(timewheel(f"{lines[1]} account-5 --json", tmp_path).stdout)
    assert (told["live"], told["cancellations"][0]["group"]) == (1, "account-5")
    packed = timewheel("timewheel cancellations compact reminders.toml", tmp_path)
    assert "5 cancellations in effect were written in packs" in packed.stdout, packed.stderr
    again = json.loads(timewheel("timewheel cancellations list reminders.toml --json", tmp_path).stdout)
    assert again["live"] == 5
    timewheel("timewheel timer cancel reminders.toml", tmp_path, ends=2)
    (tmp_path / "without.toml").write_text(dump_plan(plan))
    for line in ("timewheel timer cancel without.toml a", "timewheel cancellations list without.toml"):
        assert "[cancel]" in timewheel(line, tmp_path, ends=2).stderr


@pytest.mark.usefixtures("broker")
def test_timers_are_tried_again_and_parked_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line goes into the plan file, the block runs until all is done, then the commands."""
    text = page("retry-timers")
    (line,), (code, overdue) = blocks(text, "toml"), blocks(text, "python")
    plan = Plan(due_topic="persistent://public/default/retry-timers", subscriptions=("billing",))
    (tmp_path / "reminders.toml").write_text(f"{line.content}{dump_plan(plan)}")
    monkeypatch.chdir(tmp_path)
    assert "3 topics" in timewheel("timewheel topics ensure reminders.toml").stdout
    names: dict[str, Any] = {}
    quiet = "pulsar.Client(logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), service_url="
    program = code.content.replace("pulsar.Client(", quiet).replace("timedelta(hours=8)", "timedelta(seconds=1)")
    handling = threading.Thread(target=exec, args=(compile(program, "retry-timers.md", "exec"), names), daemon=True)
    handling.start()
    eventually(lambda: "charge" in names and names["consumer"].ready, TIMEOUT_S)
    with DelayedProducer(names["client"], Plan.load("reminders.toml")) as producer:
        producer.send(b"unknown customer", timer_id="order-7")
        producer.send(b"shop is closed", timer_id="order-8")
    eventually(lambda: (names["consumer"].counts.parked, names["consumer"].counts.done) == (1, 1), TIMEOUT_S)
    names["consumer"].stop()
    handling.join(TIMEOUT_S)
    names["consumer"].close()
    exec(compile(overdue.content, "retry-timers.md", "exec"), names)
    names["client"].close()
    assert capsys.readouterr().out == "attempt 1: order-8\n"

    lines = typed(text)
    listed, shown, dry, gone = (timewheel(line) for line in lines)
    assert "1 of 1 parked timers" in listed.stdout
    assert "there is no such customer" in shown.stdout
    assert "1 would be handled again, 0 left, of 1 selected" in dry.stdout
    assert "1 discarded, 0 left" in gone.stdout
    limit = f"After {MAX_GIVEN_BACK} redeliveries"
    for called in ("RetryLater", "max_attempts=5", "--subscription", "tw-parked-error", "republish_failed", limit):
        assert called in text


@pytest.mark.real
def test_consumers_run_in_a_service_as_it_says(broker: Broker, client: pulsar.Client) -> None:
    plan = made_plan(broker, "in-your-service")
    on_threads, on_a_loop = (block.content for block in blocks(page("run-in-your-service"), "python"))
    came: list[bytes] = []

    def handle(message: DelayedMessage) -> None:
        came.append(message.data())
        names["consumer"].stop()

    async def handle_async(message: DelayedMessage) -> None:
        came.append(message.data())
        signal.raise_signal(signal.SIGTERM)

    names: dict[str, Any] = {"client": client, "plan": plan, "handle": handle, "handle_async": handle_async}
    with DelayedProducer(client, plan) as producer:
        producer.send(b"on threads")
        exec(on_threads, names)
        producer.send(b"on a loop")
        exec(on_a_loop, names)
        asyncio.run(names["main"]())
    assert came == [b"on threads", b"on a loop"]
    assert (ROOT / "examples" / "fastapi_orders.py").is_file()


def test_what_stands_around_handlers_does_what_it_says(
    broker: Broker, client: pulsar.Client, caplog: pytest.LogCaptureFixture
) -> None:
    plan = made_plan(broker, "around")
    with DelayedProducer(client, plan) as producer:
        producer.send(b"x", timer_id="closed", properties={"tenant": "closed"})
        producer.send(b"x", timer_id="open", deliver_after=timedelta(seconds=1))
    (block,) = blocks(page("use-middleware"), "python")

    class MailServer:
        looks = 0

        def is_up(self) -> bool:
            self.looks += 1
            return self.looks > 1

    code = block.content.replace("timedelta(seconds=30)", "timedelta(seconds=0.3)")
    names: dict[str, Any] = {"client": client, "plan": plan, "mail_server": MailServer()}
    with caplog.at_level("INFO"):
        exec(compile(code, "use-middleware.md", "exec"), names)
        with names["consumer"] as consumer:
            consumer.run(lambda _: consumer.stop())
            counts = consumer.counts
    assert (counts.skipped, counts.postponed, counts.done) == (1, 1, 1)
    assert [record.message.partition(" took")[0] for record in caplog.records if " took " in record.message] == ["open"]


SHADOWED = "persistent://public/default/shadow-a-topic"
FAR, SOON = 200, 20


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_topic_is_shadowed_as_it_says(broker: Broker, client: pulsar.Client, tmp_path: Path) -> None:
    """A topic of plain clients, from the first look to the way out; its far timers are due in two days."""
    text = page("shadow-a-topic").replace("public/default/reminders", "public/default/shadow-a-topic")
    (plan,) = blocks(text, "toml")
    (tmp_path / plan.named).write_text(plan.content)
    look, start, run, shorten, status, verify, unload, pause, resume, abort = typed(text)

    def done(line: str) -> str:
        return str(timewheel(line, tmp_path).stdout)

    def gap_status() -> Any:
        (part,) = json.loads(done(f"{status} --json"))["partitions"]
        return part

    with AdminClient(broker.admin_url) as admin:
        admin.topics.create_unpartitioned(SHADOWED)
    consumer = client.subscribe(SHADOWED, "billing", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(SHADOWED)
    for number in range(FAR + SOON):
        delay = timedelta(days=2) if number < FAR else timedelta(seconds=2)
        producer.send_async(str(number).encode(), None, deliver_after=delay)
    producer.flush()

    assert f"an entry is moved: {FAR} now" in done(look)
    assert "-> shadowing" in done(start)
    assert "was shadowing already" in done(shorten)
    assert 'window = "10m"' in (tmp_path / plan.named).read_text()
    ready = tmp_path / "ready"
    words = run.replace("--http :8090", f"--ready-file {ready}").split()[1:]
    with (tmp_path / "run.log").open("wb") as log:
        running = subprocess.Popen([TIMEWHEEL, *words], cwd=tmp_path, stdout=log, stderr=log)
    try:
        eventually(ready.exists, TIMEOUT_S)
        eventually(lambda: gap_status()["caught_up_ms"] is not None, TIMEOUT_S)
        for _ in range(SOON):
            consumer.acknowledge(consumer.receive(20_000))
        assert "shadowing since" in done(status)
        assert f"The audit balances: {FAR} copies in the journal" in done(verify)
        verb, url = unload.split()[2:]
        httpx.request(verb, url, timeout=TIMEOUT_S).raise_for_status()
        eventually(
            lambda: (gap_status()["subscriptions"][0]["delayed"], gap_status()["mover"] is None) == (0, False), 60
        )
        assert "shadowing -> paused" in done(pause)
        assert "paused -> shadowing" in done(resume)
        assert "draining -> native" in done(abort)
        with AdminClient(broker.admin_url) as admin:
            back = admin.topics.stats(SHADOWED).subscriptions["billing"]
        assert (back.backlog, back.gap_count) == (FAR, 0)
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(TIMEOUT_S)


def _json_values(text: str) -> Iterator[Any]:
    """The JSON objects that stand in a text one after the other."""
    for found in re.finditer(r"^\{$", text, re.MULTILINE):
        yield json.JSONDecoder().raw_decode(text, found.start())[0]
