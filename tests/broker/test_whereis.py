"""`timewheel whereis` on a real broker: timers of every scheme are found where they are, by few looks."""

from __future__ import annotations

import datetime as dt
import json
import random
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.due_topic import Handled, now_ms, running
from tests.broker.relay_stage import BUSINESS, Stage, plan_of
from tests.support.command_line import timewheel
from timewheel.consumers import DelayedConsumer
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.inspect.whereis import State, Wanted, Whereabouts, whereis
from timewheel.producers import DelayedProducer
from timewheel.testing import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Evidence
    from timewheel.testing import Broker

SEED = 20_261_123
LONGEST_MS = 100_000
MARGIN_MS = 5_000
"""Around a release or a due time: both sides of it are right."""
SCHEMES: dict[str, Scheme] = {
    "native": Native(),
    "tiered": Tiered(window_ms=5_000, tiers_ms=(5_000, 15_000)),
    "calendar": Calendar(interval_ms=120_000),  # made an interval ahead, which a slow machine may need
    "wheel": Wheel(rings=(Ring(slot_ms=2_000, slots=14), Ring(slot_ms=20_000, slots=8))),
}
MAX_READS = 5


@dataclass(frozen=True, slots=True)
class Sent:
    timer_id: str
    due_ms: int
    key: str | None

    def wanted(self) -> Wanted:
        return Wanted.of(self.timer_id, due_ms=self.due_ms, key=self.key)


def send(producer: Any, source: random.Random, count: int, over_ms: int) -> list[Sent]:
    """So many timers in so much time, some of them with keys."""
    sent = []
    began = now_ms()
    for number in range(count):
        ahead_ms = began + number * over_ms // count - now_ms()
        if ahead_ms > 0:
            time.sleep(ahead_ms / 1_000)
        key = f"k{source.randrange(50)}" if source.random() < 0.3 else None
        after = dt.timedelta(milliseconds=source.randrange(LONGEST_MS))
        timer = producer.send(b"x", deliver_after=after, partition_key=key)
        sent.append(Sent(timer.id, timer.due_ms, key))
    return sent


def is_right(found: Whereabouts) -> bool:
    """It is where it should be at that moment; near a release or the due time both places will do."""
    left_ms = found.due_ms - found.at_ms if found.due_ms is not None else 0
    if left_ms < -MARGIN_MS:
        return found.state in (State.HANDLED, State.REMOVED)
    if left_ms < MARGIN_MS and found.state in (State.HANDLED, State.REMOVED):
        return True
    here = found.here
    if here is None or found.state not in (State.HELD, State.DUE):
        return False
    return any(
        here.topic.startswith(f"{stop.topic}-partition-")
        and here.envelope.entered_ms == stop.entered.first_ms
        and stop.entered.first_ms <= found.at_ms
        and (stop.is_due or stop.leaves_ms > found.at_ms - MARGIN_MS)
        for stop in found.way
    )


def searched(
    broker: Broker, scheme: Scheme, count: int, over_ms: int, wait_ms: int, partitions: int = 2
) -> tuple[list[Whereabouts], Plan]:
    """Send, let relay and consumer work, and look for each while they go on."""
    source = random.Random(SEED)
    plan = plan_of(scheme, partitions=partitions, guard_ms=1_000, max_delay_ms=LONGEST_MS)
    with Stage(broker, plan) as stage, ExitStack() as stack:
        stack.enter_context(running(DelayedConsumer(stage.client, plan, BUSINESS), Handled()))
        producer = stack.enter_context(DelayedProducer(stage.client, plan))
        sent = send(producer, source, count, over_ms)
        time.sleep(wait_ms / 1_000)
        source.shuffle(sent)
        return [whereis(stage.admin, plan, one.wanted()) for one in sent], plan


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_timers_of_every_scheme_are_found_where_they_are(pulsar_broker: Broker, name: str) -> None:
    found, _ = searched(pulsar_broker, SCHEMES[name], 40, 3_000, 1_500)

    wrong = [one for one in found if not is_right(one)]
    assert not wrong, wrong[0]
    reads = sorted(one.cost.reads for one in found)
    assert reads[len(reads) // 2] <= MAX_READS, Counter(reads)


def run(broker: Broker, plan: Plan, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plan_file = folder / "plan.toml"
    save_plan(plan, plan_file)
    return timewheel("whereis", plan_file, *arguments, "--admin-url", broker.admin_url)


def test_the_command_tells_where_it_is_and_where_it_goes(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = plan_of(partitions=2)
    with Stage(pulsar_broker, plan) as stage, DelayedProducer(stage.client, plan) as producer:
        generated = producer.send(b"x", deliver_after=dt.timedelta(seconds=50))
        own = producer.send(b"x", deliver_after=dt.timedelta(seconds=3), timer_id="sub-42", partition_key="k")
        sent_ms = now_ms()

        told = run(pulsar_broker, plan, tmp_path, generated.id)
        assert told.returncode == 0, told.stderr
        assert f"held in {stage.tiers[0]}-partition-0, due in" in told.stdout
        assert told.stdout.count("goes to") >= 9, "tiers of four seconds for fifty"
        facts = json.loads(run(pulsar_broker, plan, tmp_path, generated.id, "--json").stdout)
        assert (facts["state"], facts["due_ms"], facts["reads"]) == ("held", generated.due_ms, 1)

        # An id says nothing of its send: by its due time alone all entries are looked at, here two or three.
        by_due = run(pulsar_broker, plan, tmp_path, "sub-42", "--due", own.due_at.isoformat())
        assert by_due.returncode == 0, by_due.stdout + by_due.stderr
        assert "sub-42: held in" in by_due.stdout
        to_the_minute = run(pulsar_broker, plan, tmp_path, "sub-42", "--due", f"{own.due_at:%Y-%m-%dT%H:%MZ}")
        assert "sub-42: held in" in to_the_minute.stdout
        early = run(pulsar_broker, plan, tmp_path, "sub-42", "--due", "2027-01-01T08:00Z").stdout
        assert "due      2027-01-01T08:00:00.000Z to 2027-01-01T08:00:59.999Z" in early
        assert "sub-42: not found" in run(pulsar_broker, plan, tmp_path, "sub-42", "--due", "2027-01-01").stdout

        # Past its due time, and no relay: it is where it was.
        time.sleep(max(own.due_ms + 500 - now_ms(), 0) / 1_000)
        hints = ("sub-42", "--sent-at", str(sent_ms), "--key", "k")
        late = run(pulsar_broker, plan, tmp_path, *hints)
        assert "held in" in late.stdout, late.stdout
        assert "ago" in late.stdout.splitlines()[0]

        stage.relay()
        with running(DelayedConsumer(stage.client, plan, BUSINESS), Handled()):
            eventually(
                lambda: "handled: every" in run(pulsar_broker, plan, tmp_path, *hints, "--max-reads", "50").stdout,
                30,
                message="handled",
            )


def test_what_is_not_there_or_not_said_is_told(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = plan_of()
    with Stage(pulsar_broker, plan):
        unknown = run(pulsar_broker, plan, tmp_path, "sub-42")
        assert unknown.returncode == 1
        assert "does not contain its time of sending" in unknown.stderr
        assert unknown.stderr.count("\n") == 1
        due = str(now_ms() + 40_000)
        nowhere = run(pulsar_broker, plan, tmp_path, "sub-42", "--sent-at", str(now_ms()), "--due", due)
        assert nowhere.returncode == 4, nowhere.stdout + nowhere.stderr
        assert "sub-42: not found" in nowhere.stdout
        assert "searched" in nowhere.stdout
        bad = run(pulsar_broker, plan, tmp_path, "sub-42", "--sent-at", "yesterday")
        assert bad.returncode == 2


@pytest.mark.proof
@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_a_thousand_of_a_thousand_are_found(pulsar_broker: Broker, name: str, evidence: Evidence) -> None:
    found, plan = searched(pulsar_broker, SCHEMES[name], 1_000, 20_000, 10_000, partitions=4)

    wrong = [one for one in found if not is_right(one)]
    reads = sorted(one.cost.reads for one in found)
    seeks = sorted(one.cost.seeks for one in found)
    states = Counter(one.state.value for one in found)
    assert not wrong, (len(wrong), wrong[0])
    # Hops come in by several relays, and their order among each other is not strict.
    few = sum(one <= MAX_READS for one in reads) / len(reads)
    assert few == 1 if name in ("native", "calendar") else few >= 0.99, Counter(reads)
    evidence(
        f"`timewheel whereis`, {name}",
        {
            "found": f"{len(found) - len(wrong)} of {len(found)}",
            **states,
            "partitions": plan.partitions,
            "reads": f"median {reads[len(reads) // 2]}, at most {reads[-1]}",
            f"with at most {MAX_READS}": f"{100 * few:.1f} %",
            "searches by the broker": f"median {seeks[len(seeks) // 2]}, at most {seeks[-1]}",
        },
    )
