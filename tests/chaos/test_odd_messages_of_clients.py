"""What Java's and Go's clients can send, however odd, keeps no good message from coming once and in its time."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.broker.due_topic import now_ms
from tests.broker.odd_neighbours import Handled, known_by, unacknowledged
from tests.broker.relay_stage import BUSINESS, plan_of
from tests.broker.shadow_stage import ShadowStage
from tests.conftest import Evidence
from tests.support.other_languages import Line, java_command, lines_of
from tests.support.processes import ran
from timewheel.broker.admin.client import AdminClient
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Plan, Ring, Tiered, Wheel
from timewheel.core.routing import Hold
from timewheel.dead_letters.dead_letters import dead_letter_box, dead_letters
from timewheel.shadow.desired_state import State
from timewheel.shadow.stored_entries import properties_in
from timewheel.shadow.verification import verify
from timewheel.testing import Broker, eventually

HERE = Path(__file__).parent
BUILD_TIMEOUT_S = 1_200  # the client has many dependencies, which are compiled once on each machine


class Target(NamedTuple):
    """A topic that a program sends to."""

    topic: str
    deliver_at_ms: int  # the time for delivery by the broker; 0: not delayed
    is_timer: bool
    without: str


class OddSender(NamedTuple):
    """The program of a language."""

    language: str
    # builds the program in a folder and returns its command, so that the command only has to send
    built: Callable[[Path], Sequence[str]]

    def send(self, command: Sequence[str], broker: Broker, due_ms: int, targets: Iterable[Target]) -> list[Line]:
        """Return its report on each message: topic, name, and the error, if its client or the broker refused the
        message.
        """
        asked = (
            str(one)
            for to in targets
            for one in (to.topic, to.deliver_at_ms, "timer" if to.is_timer else "plain", to.without)
        )
        return lines_of([*command, broker.service_url, str(due_ms), *asked])


def find_go() -> str | None:
    """Find Go's tool, on the path or in the folder of its own installer."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


def _java(_: Path) -> Sequence[str]:
    return [*java_command(), str(HERE / "OddMessages.java")]


def _go(folder: Path) -> Sequence[str]:
    go = find_go()
    assert go is not None
    program = folder / "odd-messages"
    built = ran([go, "build", "-o", str(program), "."], cwd=HERE / "odd_messages_go", timeout=BUILD_TIMEOUT_S)
    assert built.returncode == 0, built.stderr
    return [str(program)]


SENDERS = {"java": OddSender("Java", _java), "go": OddSender("Go", _go)}


PATIENCE_S = 120
STANDS_MS = 50_000  # for topics, relays and consumers of all places, which are made before anything is sent
TIERS = Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000))
SLOT_MS = 4_000
SEALED = "a batch that is encrypted"  # its names are encrypted too: as a dead letter it has none
HIDDEN = "compressed, and empty: ZLIB"
"""Go's client makes it; pulsar-client cannot open it, acknowledges it by itself, and hands it out to nobody."""
NAMELESS = {SEALED, HIDDEN}  # whose dead letters do not bear their names
BEYOND = "encrypted in chunks"
"""Not for a topic that a relay reads: it makes pulsar-client write beyond its memory, if that is told to hand out what
it cannot decrypt."""


class Place(NamedTuple):
    """Where a program sends to."""

    plan: Callable[[int], Plan]  # of the topics, by the longest delay
    target: Callable[[ShadowStage, int], Target]  # by the due time
    is_plain: bool = False  # whether plain clients read, beside a shadow


def held(stage: ShadowStage, due_ms: int) -> Target:
    route = stage.router.route(due_ms, now_ms())
    assert isinstance(route, Hold)
    return Target(route.topic, 0, is_timer=True, without=BEYOND)


PLACES = {
    "tier": Place(lambda longest_ms: plan_of(TIERS, max_delay_ms=longest_ms), held),
    "slot": Place(
        lambda longest_ms: plan_of(
            Wheel(rings=(Ring(slot_ms=SLOT_MS, slots=longest_ms // SLOT_MS + 7, headstart_ms=500),)),
            max_delay_ms=longest_ms,
        ),
        held,
    ),
    "due topic": Place(
        lambda longest_ms: plan_of(TIERS, max_delay_ms=longest_ms),
        lambda stage, due_ms: Target(
            stage.plan.due_topic, stage.router.to_due(due_ms, now_ms()).deliver_at_ms, is_timer=True, without=HIDDEN
        ),
    ),
    "topic with a shadow": Place(
        lambda longest_ms: plan_of(TIERS, relay="service", readers="any", intake=True, max_delay_ms=longest_ms),
        lambda stage, due_ms: Target(stage.plan.due_topic, due_ms, is_timer=False, without=""),
        is_plain=True,
    ),
}


class Stand:
    """A place at work.

    Args:
        broker: Where.
        place: Which.
        due_ms: When all is due.
        longest_ms: The longest delay.
        stack: Ends it.
    """

    def __init__(self, broker: Broker, place: Place, due_ms: int, longest_ms: int, stack: ExitStack) -> None:
        self.stage = stack.enter_context(ShadowStage(broker, place.plan(longest_ms)))
        self.target = place.target(self.stage, due_ms)
        self.is_plain = place.is_plain
        take_any_schema(broker, self.target.topic)
        if self.is_plain:
            self.stage.desired(State.SHADOWING)
            self.stage.shadow()
            self.seen = Handled.plainly_by(self.stage, due_ms, stack)
        else:
            self.stage.relay()
            self.seen = Handled.by(self.stage, due_ms, stack)

    def dead(self) -> dict[str, str]:
        """Reasons of the dead letters, by name."""
        found = dead_letters(self.stage.admin, dead_letter_box(self.stage.plan), most=1_000).dead_letters
        return {known_by(one.payload, one.properties): one.reason for one in found}

    def left(self) -> Iterator[str]:
        """Names of those that stand where they were put, or in the due topic, and nobody has acknowledged."""
        stage = self.stage
        for topic in {self.target.topic, stage.plan.due_topic}:
            subscription = BUSINESS if topic == stage.plan.due_topic else RELAY_SUBSCRIPTION
            for entry in unacknowledged(stage, topic, subscription):
                for properties in properties_in(entry):
                    yield known_by(b"?", properties)

    def unaccounted(self, names: set[str]) -> set[str]:
        """Those that were neither handled, nor are dead letters, nor stand where they were put."""
        return names.difference(self.seen.odd, self.dead(), self.left())


def take_any_schema(broker: Broker, topic: str) -> None:
    """As a careless team sets it: then every schema can be sent to one topic."""
    url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/schemaCompatibilityStrategy"
    httpx.put(url, json="ALWAYS_COMPATIBLE").raise_for_status()
    eventually(lambda: httpx.get(url).json() == "ALWAYS_COMPATIBLE")


def sending_ms(broker: Broker, send: Callable[[int, list[Target]], Sequence[Line]]) -> int:
    """How long a program takes here and now to start and to send to all places, by what it takes for one topic."""
    topic = f"persistent://public/default/sending-{now_ms()}"
    with AdminClient(broker.admin_url) as admin:
        admin.topics.create_unpartitioned(topic)
    take_any_schema(broker, topic)
    began_ms = now_ms()
    lines = send(began_ms, [Target(topic, 0, is_timer=False, without="")])
    first_ms, last_ms = lines[0]["at_ms"], lines[-1]["at_ms"]
    return int(first_ms - began_ms + len(PLACES) * (last_ms - first_ms))


@pytest.mark.proof
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("language", ["java", "go"])
def test_what_a_client_sends_keeps_no_good_one_from_coming_once_and_in_its_time(
    pulsar_broker: Broker, language: str, tmp_path: Path, say: Callable[[object], None], evidence: Evidence
) -> None:
    if language == "go" and find_go() is None:
        pytest.skip("go is not here (Debian: apt-get install golang-go, 1.24 or newer)")
    sender = SENDERS[language]
    send = partial(sender.send, sender.built(tmp_path), pulsar_broker)
    ahead_ms = STANDS_MS + 2 * sending_ms(pulsar_broker, send)
    say(f"all is due in {ahead_ms} ms")
    with ExitStack() as stack:
        due_ms = now_ms() + ahead_ms
        stands = {name: Stand(pulsar_broker, place, due_ms, ahead_ms, stack) for name, place in PLACES.items()}
        lines = send(due_ms, [stand.target for stand in stands.values()])
        assert lines[-1]["at_ms"] < due_ms, "sending took much longer than it had taken just before"
        for name, stand in stands.items():
            figures = check(name, stand, [line for line in lines if line["topic"] == stand.target.topic], say)
            evidence(f"what {sender.language}'s client can send, in a {name}", figures)


def check(name: str, stand: Stand, lines: Sequence[Line], say: Callable[[object], None]) -> dict[str, object]:
    """What became of all that a program has told of one place."""
    refused = {line["name"]: line["error"] for line in lines if line["error"]}
    good = {line["name"] for line in lines if line["name"].startswith("good-")}
    sent = {line["name"] for line in lines} - good - refused.keys()
    figures = stand.seen.await_good(good, PATIENCE_S)
    try:
        eventually(lambda: stand.unaccounted(sent) <= NAMELESS, PATIENCE_S, poll=1)
        # A partition that makes no progress has a backlog.
        stand.stage.await_all_acknowledged(PATIENCE_S)
    except AssertionError:
        say(f"{name}: unaccounted for {stand.unaccounted(sent)}")
        raise
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
        **figures,
    }
