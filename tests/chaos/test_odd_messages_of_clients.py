"""What Java's and Go's clients can send, however odd, keeps no good message from coming once and in its time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pulsar
import pytest

from tests.broker.relay_stage import BUSINESS, now_ms, plan_of
from tests.broker.shadow_stage import ShadowStage
from tests.support.odd_senders import SENDERS, Target, find_go
from tests.support.other_languages import Line
from timewheel.consumers import DelayedConsumer
from timewheel.core.clock import SystemClock
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Plan, Ring, Tiered, Wheel
from timewheel.core.routing import Hold
from timewheel.ops.letters.box import dead_letter_box
from timewheel.ops.letters.letters import letters
from timewheel.shadow.machine.acked import Acked
from timewheel.shadow.machine.states import State
from timewheel.shadow.machine.stretches import stretches_of
from timewheel.shadow.stored_timers import properties_in
from timewheel.shadow.verifying import verify
from timewheel.shadow.walking import entries_in
from timewheel.testing import Broker, eventually

if TYPE_CHECKING:
    from tests.conftest import Evidence

AHEAD_MS = 50_000
"""So much later than the play begins is all due: longer than sending takes."""
LONGEST_MS = 100_000
PATIENCE_S = 120
TICK_MS = 1_050
TIERS = Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000))
SLOTS = Wheel(rings=(Ring(slot_ms=4_000, slots=32, headstart_ms=500),))
SEALED = "a batch that is encrypted"
"""Its names are encrypted too: as a dead letter it has none."""
HIDDEN = "compressed, and empty: ZLIB"
"""Go's client makes it; pulsar-client cannot open it, acknowledges it by itself, and hands it out to nobody."""
NAMELESS = {SEALED, HIDDEN}
"""Whose dead letters do not bear their names."""
BEYOND = "encrypted in chunks"
"""Not for a topic that a relay reads: it makes pulsar-client write beyond its memory, if that is told to hand out what
it cannot decrypt."""


class Place(NamedTuple):
    """Where a program sends to.

    Args:
        plan: Of the topics.
        target: By the due time.
        is_plain: Whether plain clients read, beside a shadow.
    """

    plan: Callable[[], Plan]
    target: Callable[[ShadowStage, int], Target]
    is_plain: bool = False


def held(stage: ShadowStage, due_ms: int, without: str = BEYOND) -> Target:
    route = stage.router.route(due_ms, now_ms())
    assert isinstance(route, Hold)
    return Target(route.topic, 0, is_timer=True, without=without)


PLACES = {
    "tier": Place(lambda: plan_of(TIERS, max_delay_ms=LONGEST_MS), held),
    "slot": Place(lambda: plan_of(SLOTS, max_delay_ms=LONGEST_MS), partial(held, without=f"{BEYOND}|{SEALED}")),
    "due topic": Place(
        lambda: plan_of(TIERS, max_delay_ms=LONGEST_MS),
        lambda stage, due_ms: Target(
            stage.plan.due_topic, stage.router.to_due(due_ms, now_ms()).deliver_at_ms, is_timer=True, without=HIDDEN
        ),
    ),
    "topic with a shadow": Place(
        lambda: plan_of(TIERS, relay="service", readers="any", intake=True, max_delay_ms=LONGEST_MS),
        lambda stage, due_ms: Target(stage.plan.due_topic, due_ms, is_timer=False, without=""),
        is_plain=True,
    ),
}


class Seen:
    """What a consumer was given.

    Attributes:
        good: How often each.
        odd: How often each.
        late_ms: Of the good ones.
    """

    def __init__(self, due_ms: int) -> None:
        self._due_ms = due_ms
        self.good: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.late_ms: dict[str, int] = {}

    def add(self, message: pulsar.Message) -> None:
        """Handle one."""
        payload = message.data()
        if payload.startswith(b"good-"):
            name = payload.decode()
            self.good[name] += 1
            self.late_ms.setdefault(name, now_ms() - self._due_ms)
            return
        try:
            properties = message.properties()
        except UnicodeDecodeError:
            properties = {}
        self.odd[known_by(payload, properties)] += 1


def known_by(payload: bytes, properties: Mapping[str, str]) -> str:
    """The name of an odd message: of a batch's, without its number."""
    if (name := properties.get("odd")) is None:
        text = payload.partition(b"\n")[0].decode(errors="replace")
        name = text.removeprefix("odd ") if text.startswith("odd ") else properties.get("tw-id", text)
    return name.partition(" #")[0]


class Stand:
    """A place at work.

    Args:
        broker: Where.
        place: Which.
        due_ms: When all is due.
        stack: Ends it.
    """

    def __init__(self, broker: Broker, place: Place, due_ms: int, stack: ExitStack) -> None:
        self.stage = stack.enter_context(ShadowStage(broker, place.plan()))
        self.seen = Seen(due_ms)
        self.target = place.target(self.stage, due_ms)
        self.is_plain = place.is_plain
        self._take_any_schema(broker)
        if self.is_plain:
            self.stage.wish(State.SHADOWING)
            self.stage.shadow()
            self._consume_plainly(stack)
        else:
            self.stage.relay()
            self._consume(stack)

    def _take_any_schema(self, broker: Broker) -> None:
        """As a careless team sets it: then every schema can be sent to one topic."""
        path = self.target.topic.replace("://", "/")
        url = f"{broker.admin_url}/admin/v2/{path}/schemaCompatibilityStrategy"
        httpx.put(url, json="ALWAYS_COMPATIBLE").raise_for_status()
        eventually(lambda: httpx.get(url).json() == "ALWAYS_COMPATIBLE")

    def _consume(self, stack: ExitStack) -> None:
        stage = self.stage
        consumer = DelayedConsumer(stage.client, stage.plan, BUSINESS, relay=False, hooks=(stage.events,))
        thread = threading.Thread(target=consumer.run, args=(self.seen.add,), daemon=True)
        thread.start()
        stack.callback(consumer.close)
        stack.callback(thread.join)
        stack.callback(consumer.stop)

    def _consume_plainly(self, stack: ExitStack) -> None:
        consumer = self.stage.client.subscribe(
            self.stage.plan.due_topic, BUSINESS, consumer_type=pulsar.ConsumerType.Shared
        )
        ends = threading.Event()

        def run() -> None:
            while not ends.is_set():
                try:
                    message = consumer.receive(200)
                except pulsar.Timeout:
                    continue
                self.seen.add(message)
                consumer.acknowledge(message)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        stack.callback(consumer.close)
        stack.callback(thread.join)
        stack.callback(ends.set)

    def dead(self) -> dict[str, str]:
        """Reasons of the dead letters, by name."""
        found = letters(self.stage.admin, dead_letter_box(self.stage.plan), most=1_000).letters
        return {known_by(one.payload, one.properties): one.reason for one in found}

    def left(self) -> Iterator[str]:
        """Names of those that stand where they were put, or in the due topic, and nobody has acknowledged."""
        stage = self.stage
        for topic in {self.target.topic, stage.plan.due_topic}:
            part = stage.names.part(topic, 0)
            stats = stage.admin.topics.internal_stats(part)
            cursor = stats.cursors[BUSINESS if topic == stage.plan.due_topic else RELAY_SUBSCRIPTION]
            acked = Acked.of(cursor)
            for stretch in stretches_of(stats.ledgers, cursor.mark_delete, 1 << 62):
                for entries in entries_in(stage.dialer, part, stretch, SystemClock(), keep_payload=True):
                    for entry in entries:
                        if entry.position not in acked:
                            for _, properties in properties_in(entry):
                                yield known_by(b"?", properties)

    def unaccounted(self, names: set[str]) -> set[str]:
        """Those that were neither handled, nor are dead letters, nor stand where they were put."""
        return names.difference(self.seen.odd, self.dead(), self.left())


@pytest.mark.proof
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("language", ["java", "go"])
def test_what_a_client_sends_keeps_no_good_one_from_coming_once_and_in_its_time(
    pulsar_broker: Broker, language: str, tmp_path: Path, say: Callable[[object], None], evidence: Evidence
) -> None:
    if language == "go" and find_go() is None:
        pytest.skip("go is not here (Debian: apt-get install golang-go, 1.24 or newer)")
    sender = SENDERS[language]
    command = sender.built(tmp_path)
    with ExitStack() as stack:
        due_ms = now_ms() + AHEAD_MS
        stands = {name: Stand(pulsar_broker, place, due_ms, stack) for name, place in PLACES.items()}
        lines = sender.send(command, pulsar_broker, due_ms, [stand.target for stand in stands.values()])
        assert lines[-1]["at_ms"] < due_ms, "sending took longer than they are far from due"
        for name, stand in stands.items():
            figures = check(name, stand, [line for line in lines if line["topic"] == stand.target.topic], say)
            evidence(f"what {sender.language}'s client can send, in a {name}", figures)


def check(name: str, stand: Stand, lines: Sequence[Line], say: Callable[[object], None]) -> dict[str, object]:
    """What became of all that a program has told of one place."""
    refused = {line["name"]: line["error"] for line in lines if line["error"]}
    good = {line["name"] for line in lines if line["name"].startswith("good-")}
    sent = {line["name"] for line in lines} - good - refused.keys()
    try:
        eventually(lambda: stand.seen.good.keys() >= good, PATIENCE_S, poll=0.2)
        eventually(lambda: stand.unaccounted(sent) <= NAMELESS, PATIENCE_S, poll=1)
    except AssertionError:
        say(f"{name}: missing {sorted(good - stand.seen.good.keys())}, unaccounted for {stand.unaccounted(sent)}")
        raise
    assert set(stand.seen.good.values()) == {1}
    assert min(stand.seen.late_ms.values()) >= (-TICK_MS if stand.is_plain else 0)
    assert not stand.stage.events.named("relay_partition_stopped")
    dead = stand.dead()
    unnamed = dead.keys() - sent
    assert len(unnamed) == len(stand.unaccounted(sent)), unnamed
    assert not dead.keys() & stand.seen.odd.keys(), "one or the other"
    if stand.is_plain:
        found = verify(stand.stage.admin, stand.stage.dialer, stand.stage.plan)
        assert found.is_balanced, found.wrong
    handled, left = sent & stand.seen.odd.keys(), set(stand.left()) & sent
    say(f"{name}: refused {refused}; dead {dead}; left {sorted(left)}")
    say(Counter(event.name for event in stand.stage.events.events))
    return {
        "kinds": len(sent) + len(refused),
        "refused by client or broker": len(refused),
        "handled": len(handled),
        "dead letters": len(dead),
        "left": len(left),
        "good ones": len(good),
        "lost": 0,
        "twice": 0,
        "early": 0,
        "latest ms": max(stand.seen.late_ms.values()),
    }
