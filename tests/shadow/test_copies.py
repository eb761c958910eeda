"""Copies on their way into the journal: behind a fence that is stored, and never by an answer that tells no place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import _pulsar
import pulsar
import pytest

from tests.support.client_messages import client_message
from tests.support.manual_clock import ManualClock
from tests.support.plans import shadow_of
from timewheel.client.native import NO_SCHEMA
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import PROBE_PROPERTY
from timewheel.core.names import Names
from timewheel.core.plan import Tiered
from timewheel.relay.driver.source import Handle, SessionFailed
from timewheel.shadow.driver.copies import Copies, MoveCounts, Stays
from timewheel.shadow.machine.journal import Journal, UnackedOriginals
from timewheel.shadow.machine.move_decider import MoveDecision, fence_number

NOW_MS = 1_800_000_000_000
PLAN = shadow_of(Tiered(window_ms=60_000, tiers_ms=(60_000,)), guard_ms=1_000, max_delay_ms=600_000)
PART = "persistent://acme/crm/reminders-partition-0"
STORED = pulsar.MessageId(0, 9, 4, 0)
NOWHERE = pulsar.MessageId(0, -1, -1, 0)


class Client:
    """Its producers answer at once."""

    def __init__(self, answer: Any, mark: int = -1, error: Exception | None = None) -> None:
        self.answer, self.mark, self.error = answer, mark, error
        self.sent: list[dict[str, Any]] = []
        self.result = pulsar.Result.Ok

    @property
    def _client(self) -> Any:
        return self

    def get_schema_info(self, _topic: str, _version: int) -> Any:
        if self.error is None:
            return _pulsar.SchemaInfo(_pulsar.SchemaType.KEY_VALUE, "pair", "")
        raise self.error

    def create_producer(self, _topic: str, **_: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self

    def last_sequence_id(self) -> int:
        return self.mark

    def send_async(self, _content: Any, callback: Callable[[Any, Any], None], **options: Any) -> None:
        self.sent.append(options)
        callback(self.result, self.answer)

    def flush(self) -> None: ...

    def topic(self) -> str:
        return "journal"

    def is_connected(self) -> bool:
        return True


def copies_of(client: Client, stays: Stays | None = None) -> tuple[Copies, MoveCounts]:
    clock, counts, stays = ManualClock(NOW_MS), MoveCounts(), {} if stays is None else stays
    copies = Copies(
        client, PART, 0, names=Names(PLAN), handle=Handle(clock), clock=clock, counts=counts, journal=Journal(),
        unacked_originals=UnackedOriginals(), stays=stays,
    )  # fmt: skip
    return copies, counts


@pytest.mark.parametrize("mark", [-1, 77 << 32, (NOW_MS // 1_000 + 9) << 30])
def test_copies_are_numbered_behind_the_fence_which_relays_drop(mark: int) -> None:
    client = Client(STORED, mark)
    copies, counts = copies_of(client)
    assert copies.fence([NO_SCHEMA]) == EntryPosition(9, 4)
    assert copies.is_fenced(NO_SCHEMA)
    fence = client.sent[0]["sequence_id"]
    assert fence == fence_number(mark, NOW_MS) > mark
    assert client.sent[0]["properties"].keys() == {PROBE_PROPERTY}
    message = client_message()
    for number in range(3):
        copies.add(message, NO_SCHEMA, {"tw-from": f"7:{number} 0"})
        copies.send()
        copies.settle()
    assert [one["sequence_id"] - fence for one in client.sent] == [0, 1, 2, 3]
    assert (counts.moved, copies.in_flight) == (3, 0)


def test_a_fence_that_the_broker_drops_ends_the_session() -> None:
    copies, _ = copies_of(Client(NOWHERE))
    with pytest.raises(SessionFailed, match="the fence was not stored"):
        copies.fence([NO_SCHEMA])
    assert not copies.is_fenced(NO_SCHEMA)


def test_a_copy_that_is_stored_nobody_knows_where_ends_the_session() -> None:
    client = Client(STORED)
    copies, counts = copies_of(client)
    copies.fence([NO_SCHEMA])
    client.answer = NOWHERE
    message = client_message()
    copies.add(message, NO_SCHEMA, {"tw-from": "7:1 0"})
    copies.send()
    with pytest.raises(SessionFailed, match="not known where"):
        copies.settle()
    assert (counts.moved, counts.deduplicated) == (0, 1)


@pytest.mark.parametrize(
    ("error", "version"),
    [
        *((pulsar.TopicNotFound(), version) for version in (0, 3, 99, (1 << 63) - 1)),  # anybody may write any number
        (None, 3),  # of keys and values: the client would end the process over it
    ],
)
def test_a_schema_version_that_is_not_there_or_cannot_be_sent_is_learnt_before_anything_is_fenced(
    error: Exception | None, version: int
) -> None:
    client = Client(STORED, error=error)
    copies, _ = copies_of(client)
    assert not copies.can_have(version)
    assert copies.fence([version]) == EntryPosition(-1, -1)
    assert not copies.is_fenced(version)
    assert not client.sent


def test_a_schema_version_that_the_registry_refuses_is_not_fenced_and_a_missing_journal_is_told() -> None:
    copies, _ = copies_of(Client(STORED, error=pulsar.IncompatibleSchema()))
    assert copies.fence([NO_SCHEMA]) == EntryPosition(-1, -1)
    assert (copies.can_have(NO_SCHEMA), copies.is_fenced(NO_SCHEMA)) == (False, False)
    copies, _ = copies_of(Client(STORED, error=pulsar.TopicNotFound()))
    with pytest.raises(pulsar.TopicNotFound):
        copies.fence([NO_SCHEMA])


def test_what_the_client_cannot_make_a_copy_of_stays_with_its_reason() -> None:
    stays: Stays = {}
    copies, _ = copies_of(Client(STORED), stays)
    copies.fence([NO_SCHEMA])
    message = client_message()
    message.data = Mock(side_effect=ValueError("no such content"))
    copies.add(message, NO_SCHEMA, {"tw-from": "7:1 0"})
    with pytest.raises(SessionFailed, match="no such content"):
        copies.send()
    assert stays == {EntryPosition(7, 1): (MoveDecision.DAMAGED, "ValueError('no such content')")}


@pytest.mark.parametrize("result", [pulsar.Result.MessageTooBig, pulsar.Result.InvalidMessage])
def test_what_the_broker_refuses_of_a_message_stays_and_what_it_refuses_of_the_topic_does_not(result: Any) -> None:
    for refusal, expected in ((result, {EntryPosition(7, 1)}), (pulsar.Result.TopicTerminated, set())):
        client, stays = Client(STORED), Stays()
        copies, _ = copies_of(client, stays)
        copies.fence([NO_SCHEMA])
        client.result = refusal
        message = client_message()
        copies.add(message, NO_SCHEMA, {"tw-from": "7:1 0"})
        copies.send()
        with pytest.raises(SessionFailed, match=refusal.name):
            copies.settle()
        assert stays.keys() == expected
