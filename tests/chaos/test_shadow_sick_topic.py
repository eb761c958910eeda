"""A topic full of far timers and of gaps, under the traffic of a Java service: cured, checked, put back, checked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.conftest import MakePlay
from tests.support.other_languages import PlainService
from tests.support.own_broker import own_broker
from tests.support.shadow_play import ShadowPlay, shadow_plan
from timewheel.broker.protocol.dialing import Dialer
from timewheel.core.clock import SystemClock
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.names import parts_of
from timewheel.core.plan import Tiered
from timewheel.shadow.desired_state import caught_up_in, desired_in
from timewheel.shadow.machine.cursors import Stretch, acked_in
from timewheel.shadow.stored_entries import entries_in
from timewheel.testing import LocalPulsar, eventually


@dataclass(frozen=True, slots=True, kw_only=True)
class Sick:
    """How large it is."""

    far: int  # timers that are far from due
    between: int  # after so many of them one is handled
    rate: int  # of timers a second, once it is sick
    processes: int  # of the shadow
    timeout_s: int  # for each of the steps
    heap_mb: int  # of the broker


SICK = {
    "short": Sick(far=10_000, between=5, rate=100, processes=1, timeout_s=120, heap_mb=1_024),
    # On 4.2 a million delayed messages, of which hardly two are due in the same half-second, take a GB of heap
    # (broker-facts: stale-index-entries-starve).
    "long": Sick(far=1_000_000, between=5, rate=200, processes=1, timeout_s=1_200, heap_mb=4_096),
}


def command(word: str, plan_file: Path, *options: str, timeout_s: int) -> tuple[str, float]:
    """What a command of `timewheel shadow` prints, and how many seconds it took."""
    began = time.monotonic()
    line = [sys.executable, "-m", "timewheel", "shadow", word, str(plan_file), *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{done.stdout[-2_000:]}\n{done.stderr[-2_000:]}"
    return done.stdout, time.monotonic() - began


@pytest.mark.timeout(5_400)
@pytest.mark.proof
@pytest.mark.parametrize("sick", SICK.values(), ids=SICK)
def test_a_sick_topic_is_cured_under_traffic_and_put_back_with_every_due_time(
    shadow_play: MakePlay, stack: ExitStack, sick: Sick
) -> None:
    tiers = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS))
    broker = stack.enter_context(own_broker({}, partial(LocalPulsar, heap_mb=sick.heap_mb)))
    play = shadow_play(shadow_plan(HOUR_MS, tiers, max_delay_ms=31 * DAY_MS), broker=broker)
    plan, urls = play.plan, ("--service-url", broker.service_url, "--admin-url", broker.admin_url)
    traffic = {"far": sick.far, "between": sick.between, "rate": sick.rate}
    with PlainService(broker, plan.due_topic, plan.subscriptions[0], **traffic) as service:
        found = service.told()
        handled = sick.far // sick.between
        assert (found["handled"], found["refused"]) == (handled, 0)
        # At least, for the service goes on already, and handles more while its acknowledgements are on the way.
        eventually(lambda: gaps(play) >= handled, 60, message="one gap for each that was handled")

        began = time.monotonic()
        play.mover("mover", "--processes", str(sick.processes), "--journal-hold", "2h")
        eventually(lambda: is_caught_up(play), sick.timeout_s, poll=0.1, message="the backlog is moved")
        took_s = time.monotonic() - began
        play.say(f"{sick.far:,} moved in {took_s:.0f} s: {sick.far / took_s:,.0f}/s")
        eventually(lambda: gaps(play) < sick.rate * 10, sick.timeout_s, message="originals acknowledged")
        acked_s = time.monotonic() - began
        cured_gaps = gaps(play)

        printed, verify_s = command("verify", play.plan_file, *urls, "--json", timeout_s=sick.timeout_s)
        verified = json.loads(printed)
        assert verified["is_balanced"]
        assert verified["partitions"][0]["journal"] >= sick.far, "nothing was let go yet"

        printed, abort_s = command("abort", play.plan_file, *urls, timeout_s=sick.timeout_s)
        assert "draining -> native" in printed
        printed, _ = command("verify", play.plan_file, *urls, "--json", timeout_s=sick.timeout_s)
        assert json.loads(printed)["is_balanced"]
        ended = service.end()
    assert (ended["again"], ended["early"], ended["refused"]) == (0, 0, 0)
    assert ended["handled"] == ended["near"], "all that is near, and nothing else"
    back, under_another_due_time = pending_far(play)
    assert under_another_due_time == 0
    assert back == Counter(f"f{number}" for number in range(ended["far"])), "each once"
    play.evidence(
        "a sick topic under a Java service",
        {
            "far timers": sick.far,
            "gaps before": handled,
            "gaps after": cured_gaps,
            "moved a second": round(sick.far / took_s),
            "cured after s": round(acked_s),
            "verified in s": round(verify_s),
            "put back in s": round(abort_s),
            "sent meanwhile": ended["far"] + ended["near"] - sick.far - handled,
            "lost": 0,
            "handled twice": ended["again"],
            "latest ms": ended["latest_ms"],
        },
    )


def gaps(play: ShadowPlay) -> int:
    """Of the service's subscription."""
    stats = [play.admin.topics.stats(part) for part in parts_of(play.plan.due_topic, play.plan.partitions)]
    return sum(one.subscriptions[play.plan.subscriptions[0]].gap_count for one in stats)


def is_caught_up(play: ShadowPlay) -> bool:
    """Whether the shadow has noted so, for every partition."""
    properties = play.admin.topics.properties(play.names.journal)
    desired = desired_in(properties)
    return all(caught_up_in(properties, part, desired) is not None for part in range(play.plan.own_partitions))


def pending_far(play: ShadowPlay) -> tuple[Counter[str], int]:
    """The far timers that wait in the due topic by name; and how many of them have another due time than they say."""
    dialer, clock, names, changed = Dialer(play.broker.service_url), SystemClock(), Counter[str](), 0
    for part in parts_of(play.plan.due_topic, play.plan.partitions):
        internal = play.admin.topics.internal_stats(part)
        acked = acked_in(internal, play.admin.topics.stats(part))[play.plan.subscriptions[0]]
        whole = Stretch(acked.mark_delete, internal.last_confirmed, 0)
        for entries in entries_in(dialer, part, whole, clock, keep_payload=True):
            for entry in entries:
                if entry.position in acked or not entry.payload:
                    continue
                name, _, due = bytes(entry.payload).decode().partition(" ")
                if name.startswith("f"):
                    names[name] += 1
                    changed += entry.deliver_at_ms != int(due)
    return names, changed
