"""Verdicts on messages that nothing takes, and letters in parts."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from tests.relay.relay_world import PLAN, SOURCE_PARTITION
from tests.support.client_messages import client_message
from tests.support.manual_clock import ManualClock
from timewheel.client.dead_letters import PART_BYTES, in_parts
from timewheel.client.positions import Position
from timewheel.core.names import Names
from timewheel.relay.driver import dead_letter_writer as buryings
from timewheel.relay.driver.dead_letter_writer import MAX_JUMPS, MAX_VERDICTS, DeadLetterWriter, Seen, Verdict, Verdicts
from timewheel.relay.driver.source import Handle
from timewheel.relay.machine.order import Spot

HERE, THERE = Position(7, 1, -1), Position(7, 2, 0)


def test_what_fails_twice_in_a_row_at_one_message_is_that_messages() -> None:
    verdicts = Verdicts()
    verdicts.crashed(HERE, "KeyError('x')")
    verdicts.crashed(THERE, "KeyError('x')")
    verdicts.crashed(HERE, "KeyError('x')")
    assert verdicts.given == {}
    verdicts.crashed(HERE, "KeyError('x')")
    assert verdicts.given == {HERE: Verdict("its relay failed twice: KeyError('x')")}


def test_a_failure_without_a_message_is_nobodys() -> None:
    verdicts = Verdicts()
    for _ in range(3):
        verdicts.crashed(None, "before anything came")
    assert verdicts.given == {}


def test_a_letter_that_is_refused_keeps_its_reason_and_counts() -> None:
    verdicts = Verdicts()
    verdicts.refused(HERE, "it cannot be sent on: MessageTooBig", None)
    for refusals in (1, 2):
        verdicts.refused(HERE, "it cannot be sent on: MessageTooBig", verdicts.given[HERE])
        assert verdicts.given[HERE] == Verdict("it cannot be sent on: MessageTooBig", refusals)


def test_verdicts_are_bounded() -> None:
    verdicts = Verdicts()
    for entry in range(MAX_VERDICTS + 5):
        verdicts.give(Position(7, entry, -1), Verdict("no"))
    assert len(verdicts.given) == MAX_VERDICTS
    assert Position(7, MAX_VERDICTS + 4, -1) in verdicts.given


class Producer:
    """Refuses what is larger than it takes, as the client does: within the call."""

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.sent: list[tuple[bytes, dict[str, str]]] = []

    def send_async(self, content: bytes, callback: Any, *, properties: dict[str, str], **_: Any) -> None:
        if len(content) > self.takes:
            callback(pulsar.Result.MessageTooBig, None)
            return
        self.sent.append((content, properties))
        callback(pulsar.Result.Ok, len(self.sent))


@pytest.mark.parametrize(("attempt", "takes", "parts"), [(1, PART_BYTES, 3), (2, PART_BYTES // 4, 11), (9, 4_000, 676)])
def test_a_letter_in_parts_loses_nothing(attempt: int, takes: int, parts: int) -> None:
    payload, outcomes, producer = bytes(2_700_001), [], Producer(takes)
    properties = {"tw-id": "t", "tw-timer": "x" * 300, "city": "Köln"}
    own = {"tw-dead-reason": "no"}
    message = client_message(content=payload, key=b"\xffk", ordering_key="o", event_ms=77)
    in_parts(producer, message, properties, own, "part", attempt, lambda *told: outcomes.append(told))
    *found, rest = producer.sent
    assert [of["part"] for _, of in found] == [f"payload {number}/{parts}" for number in range(1, parts + 1)]
    assert b"".join(content for content, _ in found) == payload
    assert all(of.items() >= {"tw-id": "t", "tw-dead-reason": "no"}.items() and "tw-timer" not in of for _, of in found)
    assert rest[1]["part"] == "rest 1/1"
    assert json.loads(rest[0]) == {
        "properties": properties,
        "key": {"hex": "ff6b"},
        "ordering_key": "o",
        "event_ms": 77,
        "null_payload": False,
    }
    assert outcomes == [(pulsar.Result.Ok, len(producer.sent))], "one outcome for all parts"


def test_parts_of_which_one_is_refused_are_refused() -> None:
    outcomes: list[Any] = []
    in_parts(
        Producer(1_000), client_message(content=bytes(5_000)), {}, {}, "part", 1, lambda *told: outcomes.append(told[0])
    )
    assert outcomes == [pulsar.Result.MessageTooBig]


class DeadLetters:
    """Stores each letter, but for those that it fails at."""

    def __init__(self, *fails: int) -> None:
        self.fails = fails
        self.asked = 0
        self.sent: list[dict[str, str]] = []

    def to_dead_letters(self, _topic: str) -> Any:
        return self

    def send(self, content: bytes, *, properties: dict[str, str], **_: Any) -> None:
        self.asked += 1
        if self.asked in self.fails:
            raise pulsar.Timeout
        assert content == b""
        self.sent.append(properties)


AFTER, FOUND, BEFORE = Spot(Position(7, 3, -1), 0), Position(7, 6, -1), Position(7, 9, -1)


class GapHistory:
    """What looks find, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dead_letters: DeadLetters, *found: Seen | int) -> None:
        self.found = list(found)
        self.raised: list[Any] = []
        self.waited: list[int] = []
        tools: Any = SimpleNamespace(client=None, names=Names(PLAN), alarms=SimpleNamespace(raised=self.raised.append))
        self.handle = Handle(ManualClock())
        hops: Any = dead_letters
        confirmations: Any = None
        self.dead_letter_writer = DeadLetterWriter(
            SOURCE_PARTITION, tools, hops, confirmations, Verdicts(), self.handle
        )
        monkeypatch.setattr(buryings, "inspect", self._look)

    def _look(self, *asked: Any) -> Seen:
        waits_on, found = asked[-1], self.found.pop(0)
        if isinstance(found, Seen):
            return found
        self.waited.append(next(silences for silences in range(1, found + 1) if not waits_on(silences)))
        raise pulsar.Timeout


def test_thousands_of_hidden_entries_are_one_letter_that_is_stored_before_anything_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = Position(7, 9_999, -1)
    dead_letters = DeadLetters(1)
    it = GapHistory(monkeypatch, dead_letters, *[Seen(far, is_hidden=True)] * 4)
    with pytest.raises(pulsar.Timeout):
        it.dead_letter_writer.inspect(AFTER, far)
    assert it.raised == []
    for _ in range(3):  # met again by later subscriptions, whose acknowledgement was lost
        assert it.dead_letter_writer.inspect(AFTER, far) == far
    assert [dead_letter["tw-dead-at"] for dead_letter in dead_letters.sent] == ["7:3..7:9999"]
    assert "hidden by the client" in dead_letters.sent[0]["tw-dead-reason"]
    assert [(alarm.name, alarm.position) for alarm in it.raised] == [("relay_dead_letter", "7:3..7:9999")]
    assert it.handle.counts.dead == 1


@pytest.mark.parametrize("is_hidden", [False, True])
def test_what_the_broker_leaves_out_again_and_again_is_named_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, *, is_hidden: bool
) -> None:
    """A message that somebody has acknowledged by itself can be read, and never comes."""
    dead_letters = DeadLetters()
    it = GapHistory(monkeypatch, dead_letters, *[Seen(FOUND, is_hidden=is_hidden)] * (MAX_JUMPS + 1)).dead_letter_writer
    assert [it.inspect(AFTER, BEFORE) for _ in range(MAX_JUMPS)] == [FOUND] * MAX_JUMPS, "begins anew each time"
    assert len(dead_letters.sent) == is_hidden
    assert it.inspect(AFTER, BEFORE) == BEFORE
    assert dead_letters.sent[-1]["tw-dead-at"] == "7:3..7:9"
    assert "left out by the broker" in dead_letters.sent[-1]["tw-dead-reason"]


def test_nothing_is_named_that_another_subscription_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    dead_letters = DeadLetters()
    it = GapHistory(monkeypatch, dead_letters, *[Seen(FOUND, is_hidden=False)] * 3 * MAX_JUMPS)
    for number in range(3 * MAX_JUMPS):
        assert it.dead_letter_writer.inspect(AFTER, BEFORE._replace(entry=9 + number)) == FOUND
    assert dead_letters.sent == it.raised == []
    assert it.handle.counts.dead == 0


def test_a_look_that_hears_nothing_waits_longer_the_next_time_and_names_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that passes over a million entries is silent for as long as a broker that was killed."""
    dead_letters = DeadLetters()
    it = GapHistory(monkeypatch, dead_letters, 999, 999, 999, Seen(BEFORE, is_hidden=True), 999, 999)

    def inspect() -> None:
        with pytest.raises(pulsar.Timeout):
            it.dead_letter_writer.inspect(AFTER, BEFORE)

    for _ in range(3):
        inspect()
    assert dead_letters.sent == []
    assert it.dead_letter_writer.inspect(AFTER, BEFORE) == BEFORE
    inspect()
    it.handle.stop(0)
    inspect()
    assert it.waited == [1, 2, 4, 1, 1], "and not while it is to stop"
