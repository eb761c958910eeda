"""A connection to a broker as a pure state machine: bytes in, events out; commands in, bytes out.

It has no socket, clock or thread. Its driver passes in received bytes with their time, sends the bytes that `to_send`
returns, and calls `on_time` from time to time. `receive` never raises, for any bytes: its last event is `Broken` then.

A table lists the commands that each phase accepts; any other command ends the connection. Commands of unknown types
are skipped, and so are answers that are no longer awaited because the broker closed the consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from timewheel.broker.protocol.commands import (
    LOWEST_VERSION,
    SPOKEN_VERSION,
    Acknowledged,
    Broken,
    CommandType,
    Connected,
    ConsumerClosed,
    Done,
    Event,
    LastPosition,
    LookedUp,
    Refused,
    Reported,
    SubscriptionType,
    command_in,
    entry_in,
    reported_by,
)
from timewheel.broker.protocol.errors import (
    BinaryProtocolError,
    BrokerSilent,
    BrokerTooOld,
    ProtocolViolation,
    TooManyRequests,
)
from timewheel.broker.protocol.wire import (
    FRAME_PADDING_BYTES,
    MAX_FRAME_BYTES,
    Frames,
    data_field,
    frame_of,
    number_field,
)
from timewheel.client.positions import EntryPosition

CLIENT_VERSION = "timewheel"
_EARLIEST = 1  # ``InitialPosition``: the start of a new subscription, and of a reader whose position no longer exists
_AUTO_SPLIT = 0  # ``KeySharedMode`` that clients use by default
_INDIVIDUAL, _CUMULATIVE = 0, 1  # ``AckType``
KEEP_ALIVE_MS = 30_000
"""After this much silence the client sends a PING, and after as much again it gives the broker up. A broker does the
same by its setting ``keepAliveIntervalSeconds``, which is 30 by default."""
MAX_PENDING = 1_000  # requests under way on a connection
MAX_POSITIONS = 1_000  # limit of an acknowledgement, a command of about 15 kB
MAX_PERMITS = (1 << 31) - 1  # the largest number of permits that a broker can count


class Phase(Enum):
    """Phases of a connection."""

    NEW = auto()
    CONNECTING = auto()
    READY = auto()
    ENDED = auto()


_ALWAYS = frozenset({CommandType.PING, CommandType.PONG})
_TAKEN = {
    Phase.NEW: frozenset[CommandType](),
    Phase.CONNECTING: _ALWAYS | {CommandType.CONNECTED, CommandType.ERROR, CommandType.AUTH_CHALLENGE},
    Phase.READY: _ALWAYS
    | {
        CommandType.ACK_RESPONSE,
        CommandType.AUTH_CHALLENGE,
        CommandType.CLOSE_CONSUMER,
        CommandType.ERROR,
        CommandType.GET_LAST_MESSAGE_ID_RESPONSE,
        CommandType.LOOKUP_RESPONSE,
        CommandType.MESSAGE,
        CommandType.SUCCESS,
        CommandType.TOPIC_MIGRATED,
    },
}
"""Commands that a broker may send, by phase; an ended connection ignores all input."""


class _Pending(NamedTuple):
    """A request without an answer yet."""

    answer: type[Acknowledged | Done | LastPosition | LookedUp]
    consumer_id: int | None
    words: str


class Connection:
    """A connection to a broker, without its socket, in a phase."""

    def __init__(self, *, keep_payload: bool = False) -> None:
        self.phase = Phase.NEW
        self._keep_payload = keep_payload
        self._frames = Frames()
        self._outgoing: list[bytes] = []
        self._pending: dict[int, _Pending] = {}
        self._consumers: set[int] = set()
        self._last_request = 0
        self._last_consumer = 0
        self._heard_ms = 0
        self._pinged_ms: int | None = None
        self._ended_by: BinaryProtocolError | None = None

    # Requests to the broker.

    def connect(self, now_ms: int, *, method: str, data: bytes, broker: str | None = None) -> None:
        """Authenticate with the broker, or by a proxy with broker ``HOST:PORT``. Ends in `Connected` or `Broken`."""
        assert self.phase is Phase.NEW, "a connection connects once"
        self.phase = Phase.CONNECTING
        self._heard_ms = now_ms
        # The feature flags: no broker metadata of entries; the broker may ask for a token again.
        flags = number_field(1, 1) + number_field(2, 0)
        self._put(
            CommandType.CONNECT,
            data_field(1, CLIENT_VERSION)
            + data_field(3, data)
            + number_field(4, SPOKEN_VERSION)
            + data_field(5, method)
            + (b"" if broker is None else data_field(6, broker))
            + data_field(10, flags),
        )

    def show_credentials(self, *, method: str, data: bytes) -> None:
        """Answer `CredentialsAsked`."""
        shown = data_field(1, method) + data_field(2, data)
        body = data_field(1, CLIENT_VERSION) + data_field(2, shown) + number_field(3, SPOKEN_VERSION)
        self._put(CommandType.AUTH_RESPONSE, body)

    def look_up(self, topic: str, *, is_authoritative: bool = False) -> int:
        """Ask which broker serves a topic. Ends in `LookedUp` or `Refused` with the returned request id."""
        request_id = self._begin(LookedUp, None, f"look up {topic}")
        body = data_field(1, topic) + number_field(2, request_id) + number_field(3, is_authoritative)
        self._put(CommandType.LOOKUP, body)
        return request_id

    def subscribe(
        self, topic: str, subscription: str, kind: SubscriptionType, *, name: str, start: EntryPosition | None = None
    ) -> tuple[int, int]:
        """Open a consumer. Ends in `Done`, `Refused` or `ConsumerClosed`.

        A missing topic is not created, a missing subscription is. With a start it is a reader, about which the broker
        stores nothing: it begins with that entry, or else with the next existing entry. Without one the subscription is
        durable.

        Returns:
            The ids of the request and of the consumer.
        """
        self._last_consumer += 1
        consumer_id = self._last_consumer
        request_id = self._begin(Done, consumer_id, f"open a consumer of {subscription!r} on {topic}")
        self._consumers.add(consumer_id)
        self._put(
            CommandType.SUBSCRIBE,
            data_field(1, topic)
            + data_field(2, subscription)
            + number_field(3, kind)
            + number_field(4, consumer_id)
            + number_field(5, request_id)
            + data_field(6, name)
            + number_field(8, start is None)
            + (b"" if start is None else data_field(9, _message_id(start)))
            + number_field(13, _EARLIEST)
            + number_field(15, 0)
            + (data_field(17, number_field(1, _AUTO_SPLIT)) if kind is SubscriptionType.KEY_SHARED else b""),
        )
        return request_id, consumer_id

    def grant(self, consumer_id: int, permits: int) -> None:
        """Allow the broker to deliver this many more messages; each arrives in an entry."""
        assert permits > 0, "permits are given, not taken"
        self._put(CommandType.FLOW, number_field(1, consumer_id) + number_field(2, min(permits, MAX_PERMITS)))

    def acknowledge(self, consumer_id: int, positions: Sequence[EntryPosition]) -> int:
        """Acknowledge entries individually, delivered to any consumer. Ends in `Acknowledged`, `Refused` or
        `ConsumerClosed`.

        Raises:
            TooManyRequests: There are too many positions, or too many requests under way.
        """
        if len(positions) > MAX_POSITIONS:
            raise TooManyRequests("positions in one acknowledgement", len(positions), MAX_POSITIONS)
        assert positions, "an acknowledgement of nothing is never answered"
        request_id = self._begin(Acknowledged, consumer_id, f"acknowledge {len(positions)} entries")
        ids = b"".join(data_field(3, _message_id(position)) for position in positions)
        body = number_field(1, consumer_id) + number_field(2, _INDIVIDUAL) + ids + number_field(8, request_id)
        self._put(CommandType.ACK, body)
        return request_id

    def acknowledge_up_to(self, consumer_id: int, position: EntryPosition) -> None:
        """Acknowledge an entry and all before it, as a reader does for itself: no answer comes."""
        body = number_field(1, consumer_id) + number_field(2, _CUMULATIVE) + data_field(3, _message_id(position))
        self._put(CommandType.ACK, body)

    def ask_last_position(self, consumer_id: int) -> int:
        """Ask for the last entry of the topic. Ends in `LastPosition`, `Refused` or `ConsumerClosed`."""
        request_id = self._begin(LastPosition, consumer_id, "tell the last position")
        self._put(CommandType.GET_LAST_MESSAGE_ID, number_field(1, consumer_id) + number_field(2, request_id))
        return request_id

    def close_consumer(self, consumer_id: int) -> int:
        """Close a consumer. Ends in `Done`, `Refused` or `ConsumerClosed`; its entries are skipped from now on."""
        request_id = self._begin(Done, consumer_id, "close a consumer")
        self._consumers.discard(consumer_id)
        self._put(CommandType.CLOSE_CONSUMER, number_field(1, consumer_id) + number_field(2, request_id))
        return request_id

    def _begin(
        self, answer: type[Acknowledged | Done | LastPosition | LookedUp], consumer_id: int | None, words: str
    ) -> int:
        if self._ended_by is not None:
            raise self._ended_by
        assert self.phase is Phase.READY, "requests follow the handshake"
        if len(self._pending) >= MAX_PENDING:
            raise TooManyRequests("requests", len(self._pending) + 1, MAX_PENDING)
        self._last_request += 1
        self._pending[self._last_request] = _Pending(answer, consumer_id, words)
        return self._last_request

    def _put(self, kind: CommandType, body: bytes = b"") -> None:
        self._outgoing.append(frame_of(number_field(1, kind) + data_field(kind, body)))

    # Output and time.

    def to_send(self) -> bytes:
        """Return the bytes to send now, and forget them."""
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def wake_ms(self) -> int:
        """Return the time at which `on_time` must be called if no bytes arrive before."""
        return (self._heard_ms if self._pinged_ms is None else self._pinged_ms) + KEEP_ALIVE_MS

    def on_time(self, now_ms: int) -> list[Event]:
        """Keep the connection alive, and check that the broker answers; to be called after `receive`."""
        if self.phase is not Phase.READY or now_ms < self.wake_ms():
            return []
        if self._pinged_ms is None:
            self._pinged_ms = now_ms
            self._put(CommandType.PING)
            return []
        return [self._break(BrokerSilent("answer to a PING", now_ms - self._pinged_ms))]

    # Input.

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """Parse received bytes and return their events: the same events, however the bytes are split."""
        events: list[Event] = []
        if self._ended_by is not None:
            return events
        self._heard_ms, self._pinged_ms = now_ms, None
        self._frames.feed(data)
        try:
            while self.phase is not Phase.ENDED and (cut := self._frames.next()) is not None:
                event = self._take(*cut)
                if event is not None:
                    events.append(event)
        except BinaryProtocolError as error:
            events.append(self._break(error))
        return events

    def _take(self, frame: bytes, end: int) -> Event | None:
        kind, body = command_in(frame, end)
        if kind == CommandType.MESSAGE and self.phase is Phase.READY:
            entry = entry_in(body, frame, end, keep_payload=self._keep_payload)
            if entry.consumer_id in self._consumers:
                return entry
            self._see_consumer(entry.consumer_id)
            return None
        if kind not in _KNOWN:
            return None
        command = CommandType(kind)
        if command not in _TAKEN[self.phase]:
            raise ProtocolViolation(f"{command.name} while {self.phase.name.lower()}", "nothing expects it then")
        if command is CommandType.PING:
            self._put(CommandType.PONG)
        return self._judge(reported_by(command, body, self._words_of))

    def _judge(self, told: Reported) -> Event | None:
        match told:
            case Connected():
                return self._connected(told)
            case Refused():
                if told.request_id not in self._pending and not 0 < told.request_id <= self._last_request:
                    return self._break(told.error)  # concerns the connection as a whole: authentication
                return told if self._pending.pop(told.request_id, None) else None
            case Done() | Acknowledged() | LookedUp() | LastPosition():
                return told if self._was_awaited(told) else None
            case ConsumerClosed():
                return self._consumer_closed(told)
            case _:
                return told

    def _connected(self, told: Connected) -> Event:
        if told.version < LOWEST_VERSION:
            raise BrokerTooOld(told.server, told.version, LOWEST_VERSION)
        self.phase = Phase.READY
        if told.max_message_bytes is not None and told.max_message_bytes > 0:
            self._frames.limit_bytes = min(told.max_message_bytes + FRAME_PADDING_BYTES, MAX_FRAME_BYTES)
        return told

    def _was_awaited(self, told: Done | Acknowledged | LookedUp | LastPosition) -> bool:
        request_id = told.request_id
        pending = self._pending.get(request_id)
        if pending is None:
            if not 0 < request_id <= self._last_request:
                raise ProtocolViolation(f"an answer to request {request_id}", "only requests are answered")
            return False
        if type(told) is not pending.answer:
            raise ProtocolViolation(f"another answer than awaited to: {pending.words}", "each request has its answer")
        del self._pending[request_id]
        return True

    def _consumer_closed(self, told: ConsumerClosed) -> Event | None:
        # The broker answers no request about this consumer any more (broker-facts: acknowledging-for-others).
        self._see_consumer(told.consumer_id)
        unanswered = [one for one, pending in self._pending.items() if pending.consumer_id == told.consumer_id]
        for request_id in unanswered:
            del self._pending[request_id]
        was_open = told.consumer_id in self._consumers
        self._consumers.discard(told.consumer_id)
        return told if was_open or unanswered else None

    def _see_consumer(self, consumer_id: int) -> None:
        if not 0 < consumer_id <= self._last_consumer:
            raise ProtocolViolation(f"something for consumer {consumer_id}", "there is no such consumer here")

    def _words_of(self, request_id: int) -> str:
        pending = self._pending.get(request_id)
        return "take the connection" if pending is None else pending.words

    def end(self, error: BinaryProtocolError) -> None:
        """End the connection for a reason of the driver; requests are refused with this error from now on."""
        self.phase = Phase.ENDED
        self._ended_by = error
        self._pending.clear()
        self._consumers.clear()
        self._outgoing.clear()

    def _break(self, error: BinaryProtocolError) -> Broken:
        self.end(error)
        return Broken(error=error)


def _message_id(position: EntryPosition) -> bytes:
    return number_field(1, position.ledger) + number_field(2, position.entry)


_KNOWN = frozenset(CommandType)
