"""The least rights of each role: they suffice for its work, and a right less is refused by the topic's name."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import httpx
import pulsar
import pytest

from tests.broker.conftest import Connect
from tests.broker.due_topic import Events, now_ms, running
from tests.broker.relay_stage import BUSINESS, WHEEL, plan_of
from tests.broker.shadow_stage import PlainConsumer, moved, shadow_plan
from tests.support.command_line import timewheel, well
from tests.support.kept import Kept
from tests.support.secured import Secured
from tests.support.tokens import token_for
from timewheel.broker.admin import AdminClient
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.session import Authentication
from timewheel.consumers import DelayedConsumer, DelayedMessage, ParkTimer, RetryLater
from timewheel.core import Plan
from timewheel.core.envelope import Envelope
from timewheel.core.names import namespace_of, partition_topic
from timewheel.core.plan import Cancel
from timewheel.core.planfile import save_plan
from timewheel.core.topology import topology
from timewheel.errors import TimewheelError
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.relay import Relay, compactor
from timewheel.shadow.desired_state import State, desired_for
from timewheel.shadow.shadow import Shadow
from timewheel.testing import eventually

PLANS: dict[str, Callable[[], Plan]] = {
    "tiers": plan_of,
    "wheel": lambda: plan_of(WHEEL),
    "cancel": lambda: plan_of(cancel=Cancel()),
    "shadow": shadow_plan,
}
RELAY = "consume tier, produce tier, produce due, produce dead_letter"
LEAST = {
    "tiers": {"sender": "produce due, produce tier", "service": "consume due", "relay": RELAY},
    "wheel": {
        "sender": "produce due, produce slot",
        "service": "consume due",
        "relay": "consume slot, produce due, produce dead_letter",
    },
    "cancel": {
        "sender": "produce due, produce tier, produce cancellations",
        "service": "consume due, consume retry, produce retry, produce tier, produce parked, consume cancellations",
        "relay": f"{RELAY}, produce retry, consume cancellations, produce cancellations",
    },
    "shadow": {
        "sender": "produce due",
        "service": "consume due",
        "shadow": f"{RELAY}, consume due, consume intake, consume journal, produce journal",
    },
}
"""Actions by the topics' roles in the plan's topology. Senders and services of a shadowed topic are plain clients."""
COMMANDS = {
    ("status", "--json"): "consume due, consume tier, consume dead_letter",
    ("dead-letters", "list", "--json"): "consume dead_letter",
    ("dead-letters", "replay", "--all"): "consume dead_letter, produce due, produce tier",
    ("dead-letters", "drop", "--all"): "consume dead_letter",
}
WITHIN_S = 60


class Less(NamedTuple):
    plan: str
    who: str
    right: str


LESS = [
    Less(plan, who, right)
    for plan, rows in LEAST.items()
    for who, rights in rows.items()
    for right in rights.split(", ")
    if plan == "tiers" or right not in LEAST["tiers"].get(who, RELAY)
]
"""Each right once: a role does the same by it in each plan."""


class Granted:
    """A plan's topics in a tenant of others, and roles that were granted these rights alone."""

    def __init__(self, secured: Secured, plan: Plan) -> None:
        self.broker = secured.broker
        tenant = f"least-{uuid.uuid4().hex[:8]}"
        self.plan = replace(plan, due_topic=f"persistent://{tenant}/timers/reminders")
        with self.admin(token_for("admin")) as admin:
            admin.tenants.create(tenant, admin_roles=["others"])
            ensure(admin, self.plan, now_ms=now_ms(), create_namespaces=True)
            if plan.intake:
                desired_for(admin, self.plan, State.SHADOWING, now_ms=now_ms())

    def admin(self, token: str) -> AdminClient:
        return AdminClient(self.broker.admin_url, token=token)

    def topics(self, role: str) -> list[str]:
        return [spec.name for spec in topology(self.plan, now_ms()).topics if spec.role == role]

    def token(self, rights: str, less: str = "") -> str:
        """Return the token of a new role with these rights."""
        role, actions = f"role-{uuid.uuid4().hex[:8]}", dict[str, list[str]]()
        for action, of in (right.split() for right in rights.split(", ") if right != less):
            for topic in self.topics(of):
                actions.setdefault(topic, []).append(action)
        with httpx.Client(headers={"Authorization": f"Bearer {token_for('admin')}"}) as http:
            for topic, granted in actions.items():
                path = f"{topic.replace('://', '/')}/permissions/{role}"
                http.post(f"{self.broker.admin_url}/admin/v2/{path}", json=granted).raise_for_status()
        return token_for(role)


@pytest.fixture
def granted(secured: Secured, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Granted]:
    @contextmanager
    def made(kind: str) -> Iterator[Granted]:
        yield Granted(secured, PLANS[kind]())

    monkeypatch.setattr(compactor, "LOOK_EVERY_MS", 500)
    monkeypatch.setattr(compactor, "is_worth_it", lambda loose, _: loose > 0)
    return lambda kind: kept.get(f"granted {kind}", lambda: made(kind))


class Play:
    """Timers from their sender to their service, each with the rights of its row but for the one that is left out."""

    def __init__(self, granted: Granted, kind: str, connect: Connect, less: Less | None = None) -> None:
        self._granted, self._kind, self._run = granted, kind, uuid.uuid4().hex[:8]
        self.events, self.handled = Events(), Counter[str]()
        self._tokens = {
            who: granted.token(rights, less.right if less is not None and less.who == who else "")
            for who, rights in LEAST[kind].items()
        }
        self._clients = {
            who: connect(granted.broker, authentication=pulsar.AuthenticationToken(token))
            for who, token in self._tokens.items()
        }

    def _handle(self, message: DelayedMessage) -> None:
        name, _, run = (message.timer_id or "").partition(" ")
        if run != self._run:
            return  # of an earlier test
        if name == "tried-again" and message.attempt < 2:
            raise RetryLater(timedelta(seconds=1 if message.attempt == 0 else 4))
        if name == "parked":
            raise ParkTimer("enough")
        self.handled[name] += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            (self._start_shadow if self._kind == "shadow" else self._start)(stack)
            yield

    def _start(self, stack: ExitStack) -> None:
        plan, hooks = self._granted.plan, (self.events,)
        producer = stack.enter_context(DelayedProducer(self._clients["sender"], plan, hooks=hooks))
        stack.enter_context(Relay(self._clients["relay"], plan, hooks=hooks))
        consumer = DelayedConsumer(self._clients["service"], plan, BUSINESS, relay=False, hooks=hooks)
        stack.enter_context(running(consumer, self._handle))
        timers = {"delayed": 1, "held": 6}
        if plan.cancel is not None:
            timers |= {"cancelled": 6, "tried-again": 1, "parked": 1}
        for name, delay_s in timers.items():
            sent = producer.send(b"", deliver_after=timedelta(seconds=delay_s), timer_id=f"{name} {self._run}")
            if name == "cancelled":
                producer.cancel(sent)

    def _start_shadow(self, stack: ExitStack) -> None:
        plan, token, broker = self._granted.plan, self._tokens["shadow"], self._granted.broker
        dialer = Dialer(broker.service_url, authentication=Authentication.by_token(lambda: token))
        admin = stack.enter_context(self._granted.admin(token))
        self.shadow = Shadow(self._clients["shadow"], plan, dialer, admin, hooks=(self.events,))
        stack.callback(self.shadow.stop, 5_000)
        self.shadow.start()
        consumer = PlainConsumer(self._clients["service"], plan.due_topic)
        stack.callback(consumer.close)
        self.handled = consumer.handled
        due_ms = now_ms() + 10_000
        self._clients["sender"].create_producer(plan.due_topic).send(self._run.encode(), deliver_at=due_ms)

    def is_done(self) -> bool:
        """Return whether all was handled, tried again, parked and packed."""
        if self._kind == "shadow":
            return self.handled[self._run] > 0 and moved(self.shadow) > 0
        is_cancel = self._granted.plan.cancel is not None
        told = {event.name for event in self.events.events}
        expected = {"delayed", "held", "tried-again"} if is_cancel else {"delayed", "held"}
        return self.handled.keys() == expected and (
            not is_cancel or told >= {"cancellations_compacted", "timer_parked"}
        )


def is_refusal(text: str, topics: list[str], words: str = "it takes the permission") -> bool:
    return words in text and any(re.search(rf"{re.escape(topic)}(?!\.tw)", text) for topic in topics)


@pytest.mark.parametrize("kind", LEAST)
def test_the_least_rights_carry_timers_from_their_sender_to_their_service(
    granted: Callable[[str], Granted], connect: Connect, kind: str
) -> None:
    play = Play(granted(kind), kind, connect)
    with play.running():
        eventually(play.is_done, WITHIN_S, message=str(play.events.events))
    assert [event for event in play.events.events if "uthoriz" in str(event)] == []


@pytest.mark.parametrize("less", LESS, ids=" ".join)
def test_a_right_less_is_refused_by_name(granted: Callable[[str], Granted], connect: Connect, less: Less) -> None:
    play, topics = Play(granted(less.plan), less.plan, connect, less), granted(less.plan).topics(less.right.split()[1])
    said: list[str] = []

    def is_refused() -> bool:
        return any(is_refusal(text, topics) for text in [*said, *map(str, play.events.events)])

    try:
        with play.running():
            eventually(is_refused, WITHIN_S)
    except (TimewheelError, pulsar.PulsarException) as error:
        said.append(str(error))
    assert is_refused(), said


def bury(granted: Granted, connect: Connect) -> None:
    """Make two dead letters by a relay: a timer that is due now, and one that a tier holds when it is sent again."""
    client = connect(granted.broker, authentication=pulsar.AuthenticationToken(token_for("admin")))
    producer = client.create_producer(partition_topic(granted.topics("tier")[-1], 0))
    for due_ms in (now_ms(), now_ms() + 50_000):
        producer.send(b"", properties=Envelope(uuid.uuid4().hex, due_ms, now_ms(), hops=10_000).properties())
    with Relay(client, granted.plan) as relay:
        eventually(lambda: relay.status().total("dead") == 2)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_a_command_takes_suffices_and_a_right_less_is_named(
    granted: Callable[[str], Granted], connect: Connect, tmp_path: Path, words: tuple[str, ...]
) -> None:
    there, rights, plan_file = granted("tiers"), COMMANDS[words], tmp_path / "plan.toml"
    save_plan(there.plan, plan_file)
    bury(there, connect)
    command, options = words[:-1], [words[-1], "--admin-url", there.broker.admin_url]
    if words[-1] != "--json":
        options += ["--json", "--service-url", there.broker.service_url]

    def told(token: str) -> CompletedProcess[str]:
        return timewheel(*command, plan_file, *options, "--token", token)

    for less in rights.split(", "):
        done, named = told(there.token(rights, less)), there.topics(less.split()[1])
        said = done.stdout + done.stderr
        assert is_refusal(said, named) or is_refusal(said, named, "Unauthorized to"), said
    done = well(told(there.token(rights)))
    unseen = [one["what"] for one in json.loads(done.stdout).get("unseen", [])]
    former = [f"topics of earlier plans in {namespace_of(there.plan.due_topic)}"]
    assert unseen == (former if command == ("status",) else [])
