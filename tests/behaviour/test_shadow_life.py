"""A shadow's life: paused and begun again, reloads that forget, outages that last too long, a deleted intake."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.broker.due_topic import backlog, now_ms
from tests.broker.relay_stage import BUSINESS
from tests.broker.shadow_stage import ShadowStage, moved, shadow_plan, staged
from tests.support.command_line import timewheel, well
from timewheel.broker.protocol.consumers import EntryReader
from timewheel.broker.protocol.entries import Entry
from timewheel.core.clock import SystemClock
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.envelope import TIMER_PROPERTY
from timewheel.core.names import JOURNAL_SUBSCRIPTION, RELAY_SUBSCRIPTION
from timewheel.core.plan import Ring, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.shadow.desired_state import State, desired_in
from timewheel.shadow.draining import waiting
from timewheel.shadow.machine.cursors import Acked, Stretch
from timewheel.shadow.overview import overview_of
from timewheel.shadow.stored_entries import entries_in
from timewheel.testing import Broker, LocalPulsar, eventually

AHEAD_MS = 15_000
DAYS = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS))


def asked(on: ShadowStage, folder: Path, word: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A command of `timewheel shadow` on the stage's plan."""
    file = folder / "plan.toml"
    save_plan(on.plan, file)
    return timewheel("shadow", word, file, "--admin-url", on.broker.admin_url, *options)


def command(on: ShadowStage, folder: Path, word: str, *options: str) -> str:
    """Its output, where it succeeds."""
    done = well(asked(on, folder, word, *options))
    return done.stdout


@pytest.mark.short
def test_paused_it_lifts_nothing_and_what_was_lifted_comes_back_begun_again_it_lifts_what_was_left(
    on: ShadowStage, tmp_path: Path
) -> None:
    consumer, shadow = on.plain_consumer(), on.shadow()
    on.send(range(100), due_ms=now_ms() + AHEAD_MS)
    eventually(lambda: moved(shadow) == 100, 60)
    assert "shadowing -> paused" in command(on, tmp_path, "pause")
    assert "was paused already" in command(on, tmp_path, "pause")
    eventually(lambda: not shadow.view.moves, 60)
    on.send(range(100, 200), due_ms=now_ms() + 2 * AHEAD_MS)
    eventually(lambda: len(consumer.handled) == 100, 60)
    assert moved(shadow) == 100
    on.desired(State.SHADOWING)
    eventually(lambda: moved(shadow) == 200, 60)
    eventually(lambda: len(consumer.handled) == 200, 60)
    assert consumer.again == 0


@pytest.mark.parametrize("scheme", [DAYS, Wheel(rings=(Ring(slot_ms=DAY_MS, slots=40),))], ids=["tiers", "wheel"])
def test_aborted_everything_is_back_in_the_topic_under_its_exact_due_time(
    pulsar_broker: Broker, tmp_path: Path, scheme: Any
) -> None:
    plan = shadow_plan(scheme, max_delay_ms=30 * DAY_MS, guard_ms=HOUR_MS, partitions=0)
    with staged(pulsar_broker, plan) as on:
        shadow, producer, wanted = on.shadow(), on.plain_producer(), {}
        for number in range(300):
            due_ms = now_ms() + 2 * DAY_MS + number * 7_919_000
            wanted[f"{number}"] = due_ms
            producer.send_async(f"{number} {due_ms}".encode(), None, deliver_at=due_ms)
        producer.flush()
        eventually(lambda: shadow.shadow_status().acked_originals >= 300, 60)
        eventually(lambda: backlog(pulsar_broker, on.names.journal, RELAY_SUBSCRIPTION) == 0, 60)
        told = command(on, tmp_path, "abort", "--service-url", pulsar_broker.service_url)
        assert "draining -> native" in told
        assert f"put back into {plan.due_topic}: 300 timers" in told
        on_and_on = "so let this go on until it is empty, then end it: timewheel shadow run "
        assert on_and_on in told, "no subscription has passed any"
        refused = asked(on, tmp_path, "pause")
        assert refused.returncode, refused.stdout
        assert (
            "is native: nothing is moved, so there is nothing to pause; to begin: timewheel shadow start"
            in " ".join(refused.stderr.split())
        )
        assert desired_in(on.admin.topics.properties(on.names.journal)).state is State.NATIVE
        (part,) = on.parts()
        for sample in (100, 2_000):
            seen = overview_of(on.admin, on.dialer, plan, sample=sample, arrived_ms=HOUR_MS).not_moved
            assert abs(seen.count - 300) <= seen.error, f"{seen.text}: what has just come back waits too"
        cursor = on.admin.topics.internal_stats(part).cursors[BUSINESS]
        with EntryReader(on.dialer, part, after=cursor.mark_delete, keep_payload=True) as reader:
            last, back = reader.last_position(), list[Entry]()
            while not back or back[-1].position < last:
                back += reader.read(20_000)
        found = {entry.payload.split()[0].decode(): entry.deliver_at_ms for entry in back if entry.payload}
        assert found == wanted
        assert len(back) == 300
        assert cursor.gap_count == 0
        begun = command(on, tmp_path, "start", "--service-url", pulsar_broker.service_url)
        assert "native -> shadowing. A shadow run is connected, and follows it within seconds." in begun


@pytest.mark.short
def test_aborted_by_another_shadow_under_traffic_each_timer_is_in_the_topic_once(pulsar_broker: Broker) -> None:
    """The one that runs has hops under way when the other takes over; what it sent on already is not sent again."""
    plan = shadow_plan(DAYS, max_delay_ms=30 * DAY_MS, guard_ms=HOUR_MS)
    with staged(pulsar_broker, plan) as on:
        shadow, producer, sent = on.shadow(), on.plain_producer(), 0
        for _ in range(3):
            until_ms = now_ms() + 2_000
            while now_ms() < until_ms:
                producer.send_async(f"{sent}".encode(), None, deliver_at=now_ms() + (5 + sent % 20) * DAY_MS)
                sent += 1
                time.sleep(0.002)  # the traffic's own pace
            on.desired(State.DRAINING)
            other = on.shadow(start=False).start()
            producer.flush()
            eventually(lambda: shadow.view.desired.state is State.DRAINING and not shadow.view.moves, 60)
            eventually(lambda: (waiting(on.admin, plan), waiting(on.admin, plan)) == (0, 0), 60)
            other.stop()
            back = list(pending(on))
            assert Counter((one.payload or b"").decode() for one in back) == Counter(f"{one}" for one in range(sent))
            # By a name of their own: under the plan's a broker may take a position for one of the past.
            assert {one.producer.endswith("-drain") for one in back if TIMER_PROPERTY in one.properties} == {True}
            on.desired(State.SHADOWING)


def pending(on: ShadowStage) -> Iterator[Entry]:
    """What waits in the due topic."""
    (part,) = on.parts()
    internal = on.admin.topics.internal_stats(part)
    acked = Acked.of(internal.cursors[BUSINESS])
    whole = Stretch(acked.mark_delete, internal.last_confirmed, 0)
    for entries in entries_in(on.dialer, part, whole, SystemClock(), keep_payload=True):
        yield from (one for one in entries if one.payload and one.position not in acked)


@pytest.mark.short
def test_lifted_again_after_an_abort_a_timer_keeps_its_id(
    on: ShadowStage, pulsar_broker: Broker, tmp_path: Path
) -> None:
    shadow = on.shadow()
    on.send(range(50), due_ms=now_ms() + 40_000)
    eventually(lambda: shadow.shadow_status().acked_originals >= 50, 60)
    command(on, tmp_path, "abort", "--service-url", pulsar_broker.service_url)
    on.desired(State.SHADOWING)
    eventually(lambda: moved(shadow) == 100, 60)
    consumer = on.plain_consumer()
    eventually(lambda: len(consumer.handled) == 50, 60)
    assert consumer.again == 0
    ids = {message.properties()["tw-id"] for message in consumer.messages.values()}
    assert len(ids) == 50
    assert all(one.startswith(f"{on.parts()[0]}:") for one in ids)


@pytest.mark.short
def test_a_reload_that_forgets_is_made_good_from_the_journal(tuned: LocalPulsar) -> None:
    """The broker keeps 777 ranges of acknowledgements, and a near one before each far one makes a thousand."""
    with staged(tuned, shadow_plan(tick_ms=250)) as on:
        consumer, shadow = on.plain_consumer(), on.shadow()
        producer, count = on.plain_producer(), 1_000
        near_ms = now_ms() + 16_000
        for number in range(count):
            # One that waits for its turn natively, since no shadow moves what is due within its reach.
            producer.send_async(f"near{number} {near_ms}".encode(), None, deliver_at=near_ms, properties=_STAYS)
            due_ms = near_ms + 2_000
            producer.send_async(f"far{number} {due_ms}".encode(), None, deliver_at=due_ms)
        producer.flush()
        eventually(lambda: shadow.shadow_status().acked_originals >= count, 60)
        eventually(lambda: on.gaps() >= count - 1, 60)
        on.admin.topics.unload(on.names.journal)  # it begins a new ledger, which is empty
        on.admin.topics.unload(on.plan.due_topic)
        eventually(lambda: shadow.shadow_status().movers[0].acked_again >= count - 800, 60)
        assert now_ms() < near_ms, "all of it happened before anything was due"
        eventually(lambda: len(consumer.handled) == 2 * count, 60)
        assert consumer.again == 0


_STAYS = {"tw-id": "without a timer's line"}  # what has half of an envelope is not moved


def test_after_an_outage_that_was_too_long_both_copies_come_under_one_id(on: ShadowStage) -> None:
    """A copy was published, and nobody was there to acknowledge its original before that was due."""
    consumer, mover = on.plain_consumer(), on.mover()
    on.send(range(20), due_ms=now_ms() + 4_000)
    eventually(lambda: mover.counts.moved == 20, 60)
    eventually(lambda: len(consumer.handled) == 20, 60)
    originals = {name: message.message_id() for name, message in consumer.messages.items()}
    on.shadow()
    eventually(lambda: consumer.again == 20, 60)
    for name, place in originals.items():
        own_id = f"{on.parts()[0]}:{place.ledger_id()}:{place.entry_id()}"
        assert consumer.latest[name].properties()["tw-id"] == own_id


@pytest.mark.short
def test_a_journal_that_was_deleted_is_told_and_nothing_is_lost(on: ShadowStage) -> None:
    consumer, shadow = on.plain_consumer(), on.shadow()
    eventually(lambda: shadow.shadow_status().movers[0].caught_up, 60)
    on.admin.topics.delete(on.names.journal, force=True)
    on.send(range(50), due_ms=now_ms() + AHEAD_MS)
    eventually(lambda: "shadow start" in shadow.view.refusal, 60)
    assert not shadow.ready
    assert on.names.journal in str(on.events.named("shadow_refuses")[-1].fields["reason"])
    on.send(range(50, 100), due_ms=now_ms() + AHEAD_MS)
    eventually(lambda: len(consumer.handled) == 100, 60)


@pytest.mark.short
def test_the_journal_is_let_go_when_every_subscription_has_passed(on: ShadowStage) -> None:
    consumer, shadow = on.plain_consumer(), on.shadow(hold_ms=2_000)
    on.send(range(100), due_ms=now_ms() + AHEAD_MS)
    eventually(lambda: moved(shadow) == 100, 60)
    assert backlog(on.broker, on.names.journal, JOURNAL_SUBSCRIPTION) > 0
    eventually(lambda: len(consumer.handled) == 100, 60)
    eventually(lambda: backlog(on.broker, on.names.journal, JOURNAL_SUBSCRIPTION) == 0, 60)


@pytest.mark.short
@pytest.mark.timeout(300)
def test_sixty_thousand_timers_of_one_delay_keep_nothing_from_coming_at_once(pulsar_broker: Broker) -> None:
    plan = shadow_plan(DAYS, max_delay_ms=30 * DAY_MS, guard_ms=HOUR_MS)
    with staged(pulsar_broker, plan) as on:
        consumer, shadow = on.plain_consumer(), on.shadow()
        producer = on.plain_producer(max_pending_messages=5_000)
        for number in range(60_000):
            if number % 5_000 == 0:  # a mover that is 50,000 behind cannot help: how-to/shadow-a-topic tells so
                least = number - 20_000
                eventually(lambda: moved(shadow) >= least, 120)  # noqa: B023 - called before the next
            due_ms = now_ms() + 3 * DAY_MS
            producer.send_async(f"{number} {due_ms}".encode(), None, deliver_at=due_ms)
        producer.flush()
        eventually(lambda: moved(shadow) == 60_000, 120)
        time.sleep(2)  # the broker reads what it will read, so that a starved one is starved
        waits = []
        for number in range(5):
            producer.send(f"now{number} {now_ms()}".encode())
            producer.send(f"soon{number} {now_ms() + 500}".encode(), deliver_at=now_ms() + 500)
            eventually(partial(consumer.lateness_ms.__contains__, f"soon{number}"), 60)
            waits += [consumer.lateness_ms[f"now{number}"], consumer.lateness_ms[f"soon{number}"]]
        nudges = sum(one.nudges for one in shadow.shadow_status().movers)
        # All came, where one that starves comes in three days; a machine that stalls keeps some of them for seconds.
        assert min(waits) < 1_600, "at once, but for the broker's tick"
        assert nudges >= 5
        assert not any(name.startswith("tw") or name == "" for name in consumer.handled), "nobody gets a nudge"
