"""Dead letters of a source partition, for messages that can go nowhere else.

A message that a client or a broker refuses for good would stand at the head of its topic for ever, and hide all
messages behind it. So it gets a verdict, which outlives its subscription: the next subscription writes a dead letter in
its place. A dead letter that is refused itself is written in parts. A message that the client hides cannot be written:
its letter names its position.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pulsar

from timewheel.client.dead_letters import (
    DEAD_AT,
    DEAD_ENCRYPTION,
    DEAD_FROM,
    DEAD_PART,
    DEAD_REASON,
    DEAD_SCHEMA,
    in_parts,
    without_notes,
)
from timewheel.client.native import (
    NO_SCHEMA,
    carry,
    decryption_failed,
    encryption_of,
    first_chunk_of,
    schema_version_of,
)
from timewheel.client.positions import Position
from timewheel.core.envelope import ID_PROPERTY
from timewheel.events import RelayDeadLetter
from timewheel.relay.driver.hop_producers import Confirmations, HopProducers
from timewheel.relay.driver.source import Handle, Source, Tools
from timewheel.relay.machine.order import Spot, begins_ledger, follows, is_hidden

READ_TIMEOUT_MS = 5_000
READ_AHEAD = 10  # entries; with 1 the client's reader discards its start message, requests no other, and waits for ever


class Seen(NamedTuple):
    """The first readable message behind a position, acknowledged or not; and whether the client hides one before it."""

    position: Position
    is_hidden: bool


def inspect(client: Any, topic: str, after: Spot, before: Position, waits_on: Callable[[int], bool]) -> Seen:
    """Return the first readable message behind a position. Later positions are met later, or were acknowledged.

    A relay meets a jump over processed positions when it was frozen and resumes, or when an operator has skipped its
    topic forward; and a broker may deliver out of order when consumers change (see `Beginning`). All these messages can
    be read, and a new subscription that makes sure of its beginning continues correctly. Messages that cannot be read
    are those that the client hides (broker-facts: holes-in-positions).

    A message must be there, since the caller has received a later position. So silence is no answer: it means a broker
    that was killed or is slow, or a client that passes over very many entries, and must not count as a hole. After each
    `READ_TIMEOUT_MS` of silence ``waits_on`` decides by their number whether to wait longer; else `pulsar.Timeout`.
    """
    with closing(_read_from(client, topic, after.position, waits_on)) as places:
        first, found = next((first, found) for first, found in places if found > after.position)
    is_gone = (
        not follows(after, first)
        and begins_ledger(after, first)
        and _is_trimmed(client, topic, after.position, waits_on)
    )
    return Seen(found, is_hidden(after, before, first, found, is_gone=is_gone))


def _is_trimmed(client: Any, topic: str, position: Position, waits_on: Callable[[int], bool]) -> bool:
    """True if the ledger of a position is gone: then all its messages are acknowledged, or were skipped or expired."""
    entry = position._replace(batch_index=-1)
    with closing(_read_from(client, topic, entry, waits_on, inclusive=True)) as places:
        return next(places)[1].ledger > position.ledger


def _read_from(
    client: Any, topic: str, start: Position, waits_on: Callable[[int], bool], *, inclusive: bool = False
) -> Generator[tuple[Position, Position]]:
    """Yield the position at which each message begins, and its own position; the two differ for a chunked message."""
    ledger, entry, index = start
    reader = client.create_reader(
        topic,
        pulsar.MessageId(-1, ledger, entry, index),
        receiver_queue_size=READ_AHEAD,
        start_message_id_inclusive=inclusive,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    silences = 0
    try:
        while True:
            try:
                message_id = reader.read_next(READ_TIMEOUT_MS).message_id()
            except pulsar.Timeout:
                silences += 1
                if waits_on(silences):
                    continue
                raise
            position = Position.of(message_id)
            yield first_chunk_of(message_id) or position, position
    finally:
        reader.close()


HIDDEN = (
    "hidden by the client: a payload that does not open, a part of a message whose other parts are missing, or a "
    "broker's own marker stands between these positions, and no client hands it out"
)
LEFT_OUT = (
    "left out by the broker again and again: another client has acknowledged the messages between these positions"
)
"""Reasons of a dead letter that names positions which the broker did not deliver to the relay."""
_NONE = "none"

MAX_VERDICTS = 10_000  # more than can be under way; beyond it the oldest are forgotten, and met again
MAX_SILENT_LOOKS = 8  # the longest look waits for 21 minutes, in which a client passes over millions of entries
MAX_REASON_CHARS = 500
MAX_JUMPS = 10  # jumps in a row, each met by a new subscription that was sure of its beginning


def refusal(failure: str) -> str:
    """Return why a message that was refused for good is a dead letter, by the client's result."""
    if failure == "MessageTooBig":
        return (
            f"{failure}: compressed, and with the properties that a relay adds, it is larger than the broker's "
            "maxMessageSize; "
            "send less, or raise that"
        )
    return f"it cannot be sent on: {failure}"


class Verdict(NamedTuple):
    """The reason why a message is a dead letter, and the number of times that its letter was refused."""

    reason: str
    refusals: int = 0


class Verdicts:
    """The verdicts of a partition; for one thread at a time."""

    def __init__(self) -> None:
        self._suspect: Position | None = None
        self._hidden: dict[Position, Position] = {}
        self._jump: tuple[Position, Position] | None = None
        self._jumps = 0
        self.silent_looks = 0  # silent requests in a row; each waits twice as long as the request before
        self.given: dict[Position, Verdict] = {}  # verdicts by position; removed once the dead letter is stored

    def give(self, position: Position, verdict: Verdict) -> None:
        """Record that this message is refused for good."""
        self.given[position] = verdict
        if len(self.given) > MAX_VERDICTS:
            del self.given[next(iter(self.given))]

    def crashed(self, position: Position | None, reason: str) -> None:
        """Record an unexpected exception that ended a session at this message; two in a row are the message's fault."""
        if position is None or position != self._suspect:
            self._suspect = position
            return
        self._suspect = None
        before = self.given.get(position)
        self.give(position, Verdict(f"its relay failed twice: {reason}") if before is None else _next(before))

    def is_named(self, after: Position, before: Position) -> bool:
        """True if a dead letter names the hidden messages between the two positions."""
        return self._hidden.get(after) == before

    def named(self, after: Position, before: Position) -> None:
        """Record that a dead letter is stored that names the hidden messages between the two positions."""
        self._hidden[after] = before
        if len(self._hidden) > MAX_VERDICTS:
            del self._hidden[next(iter(self._hidden))]

    def jumps_again(self, after: Position, before: Position) -> bool:
        """Record that the broker left out readable messages between the two positions.

        Return whether this happened too often in a row to try again: another client has acknowledged exactly those
        messages.
        """
        self._jumps = self._jumps + 1 if self._jump == (after, before) else 1
        self._jump = after, before
        return self._jumps > MAX_JUMPS

    def refused(self, position: Position, reason: str, dead_letter: Verdict | None) -> None:
        """Record that the broker or the client refused a hop, or this letter."""
        self.give(position, Verdict(reason) if dead_letter is None else _next(dead_letter))


def _next(verdict: Verdict) -> Verdict:
    return verdict._replace(refusals=verdict.refusals + 1)


class _DeadLetter(NamedTuple):
    position: Position
    timer_id: str | None
    verdict: Verdict


@dataclass
class DeadLetterWriter:
    """The dead letters of a subscription."""

    _source: Source
    _tools: Tools
    _hops: HopProducers
    _confirmations: Confirmations
    _verdicts: Verdicts
    _handle: Handle
    _under_way: dict[int, _DeadLetter] = field(default_factory=dict, init=False)

    def put(
        self, ordinal: int, message: Any, properties: dict[str, str], reason: str, position: Position, *, large: bool
    ) -> None:
        """Publish a dead letter for a message as it was received; a large message is sent alone and compressed."""
        verdict = self._verdicts.given.get(position, Verdict(reason))
        self._under_way[ordinal] = _DeadLetter(position, properties.get(ID_PROPERTY), verdict)
        on_sent = partial(self._confirmations.on_sent, ordinal)
        version = schema_version_of(message)
        own = {
            DEAD_REASON: verdict.reason[:MAX_REASON_CHARS],
            DEAD_FROM: self._source.name,
            DEAD_AT: position.text,
            **({} if version == NO_SCHEMA else {DEAD_SCHEMA: str(version)}),
            **({DEAD_ENCRYPTION: encryption_of(message)} if decryption_failed(message) else {}),
        }
        properties = without_notes(properties)
        topic = self._tools.names.dead_letter
        if not verdict.refusals:
            carry(self._hops.to_dead_letters(topic, large=large), message, on_sent, properties | own)
            return
        producer = self._hops.to_dead_letters(topic, large=True)
        in_parts(producer, message, properties, own, DEAD_PART, verdict.refusals, on_sent)

    def put_entry(self, ordinal: int, reason: str, position: Position) -> None:
        """Publish a dead letter that names the entry of a message, and stands for all messages in it."""
        entry = position._replace(batch_index=-1)
        self._under_way[ordinal] = _DeadLetter(entry, None, Verdict(reason))
        self._hops.to_dead_letters(self._tools.names.dead_letter).send_async(
            b"",
            partial(self._confirmations.on_sent, ordinal),
            properties=self._place(reason, entry.text),
            disable_replication=True,
        )

    def inspect(self, after: Spot, before: Position) -> Position:
        """Look for hidden messages between two positions; store a dead letter that names them before the relay goes on.

        Returns:
            The position up to which no message is missing that no dead letter names.

        Raises:
            PulsarException: The topic could not be read now, or the dead letter is not stored.
        """
        verdicts = self._verdicts
        try:
            found, is_hidden = inspect(self._tools.client, self._source.name, after, before, self._waits_on)
        except pulsar.Timeout:
            verdicts.silent_looks = min(verdicts.silent_looks + 1, MAX_SILENT_LOOKS)
            raise
        verdicts.silent_looks = 0
        reason = HIDDEN
        if found != before and verdicts.jumps_again(after.position, before):
            found, is_hidden, reason = before, True, LEFT_OUT
        if is_hidden and not verdicts.is_named(after.position, found):
            self._name(after.position, found, reason)
        return found

    def _waits_on(self, silences: int) -> bool:
        self._handle.beat()
        return not self._handle.stopping and silences < 1 << self._verdicts.silent_looks

    def _name(self, after: Position, before: Position, reason: str) -> None:
        source, between = self._source.name, f"{after.text}..{before.text}"
        producer = self._hops.to_dead_letters(self._tools.names.dead_letter)
        producer.send(b"", properties=self._place(reason, between), disable_replication=True)
        self._verdicts.named(after, before)
        self._handle.counts.dead += 1
        self._tools.alarms.raised(RelayDeadLetter(topic=source, reason=reason, position=between, timer_id=None))

    def _place(self, reason: str, at: str) -> dict[str, str]:
        return {DEAD_REASON: reason, DEAD_FROM: self._source.name, DEAD_AT: at, DEAD_PART: _NONE}

    def stored(self, ordinals: list[int]) -> None:
        """Record that these commands are confirmed, those of dead letters and others."""
        if not self._under_way:
            return
        for ordinal in ordinals:
            dead_letter = self._under_way.pop(ordinal, None)
            if dead_letter is not None:
                self._verdicts.given.pop(dead_letter.position, None)
                self._tools.alarms.raised(
                    RelayDeadLetter(
                        topic=self._source.name,
                        reason=dead_letter.verdict.reason,
                        position=dead_letter.position.text,
                        timer_id=dead_letter.timer_id,
                    )
                )

    def refused(self, ordinal: int, position: Position, reason: str) -> None:
        """Record that the publish with this ordinal, a dead letter or a hop, is refused for good."""
        dead_letter = self._under_way.pop(ordinal, None)
        self._verdicts.refused(position, reason, None if dead_letter is None else dead_letter.verdict)
