"""The connection as a machine: what may be said when, what answers what, and that no bytes whatever break it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.pulsar_messages import command_frame, connected, entry_frame, message, read_request
from timewheel.broker.protocol.commands import (
    MAX_COMMAND_BYTES,
    Acknowledged,
    Broken,
    CommandType,
    Connected,
    ConsumerClosed,
    CredentialsAsked,
    Done,
    Event,
    LastPosition,
    LookedUp,
    Refused,
    SubscriptionType,
)
from timewheel.broker.protocol.connection import KEEP_ALIVE_MS, MAX_PENDING, MAX_POSITIONS, Connection, Phase
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.errors import (
    BinaryProtocolError,
    BrokerRefused,
    BrokerSilent,
    BrokerTooOld,
    FrameTooLarge,
    ProtocolViolation,
    TooManyRequests,
)
from timewheel.broker.protocol.wire import DEFAULT_FRAME_BYTES, FRAME_PADDING_BYTES, MAX_FRAME_BYTES
from timewheel.client.positions import EntryPosition

TOPIC = "persistent://public/default/t"
NO_REQUEST = (1 << 64) - 1  # what a broker answers for: -1, as the number of a request that it knows nothing of
MB = 1024 * 1024


def connecting() -> Connection:
    connection = Connection()
    connection.connect(0, method="none", data=b"")
    connection.to_send()
    return connection


def ready(**told: Any) -> Connection:
    connection = connecting()
    (event,) = connection.receive(connected(**told), 0)
    assert isinstance(event, Connected)
    return connection


def reading() -> Connection:
    """With consumer 1, whose request was 1."""
    connection = ready()
    connection.subscribe(TOPIC, "look", SubscriptionType.EXCLUSIVE, name="look", start=EntryPosition(-1, -1))
    assert connection.receive(command_frame("SUCCESS", request_id=1), 0) == [Done(request_id=1)]
    connection.to_send()
    return connection


def broken(events: list[Event]) -> BinaryProtocolError:
    assert isinstance(events[-1], Broken), events
    return events[-1].error


# What is said.


def test_connect_says_who_we_are_what_we_speak_and_whom_a_proxy_shall_reach() -> None:
    connection = Connection()
    connection.connect(0, method="token", data=b"secret", broker="broker-3:6650")
    ((name, said),) = read_request(connection.to_send())
    assert (name, said.auth_method_name, said.auth_data) == ("CONNECT", "token", b"secret")
    assert (said.protocol_version, said.proxy_to_broker_url) == (21, "broker-3:6650")
    assert said.feature_flags.supports_auth_refresh
    assert not said.feature_flags.supports_broker_entry_metadata
    assert connection.to_send() == b"", "it is said once"


def test_a_reader_begins_behind_a_position_and_leaves_nothing_behind_on_the_broker() -> None:
    connection = ready()
    connection.subscribe(TOPIC, "look", SubscriptionType.EXCLUSIVE, name="me", start=EntryPosition(7, -1))
    ((name, said),) = read_request(connection.to_send())
    assert (name, said.topic, said.subscription, said.consumer_name) == ("SUBSCRIBE", TOPIC, "look", "me")
    assert (said.subType, said.durable, said.force_topic_creation, said.initialPosition) == (0, False, False, 1)
    assert (said.start_message_id.ledgerId, said.start_message_id.entryId) == (7, (1 << 64) - 1)
    assert not said.HasField("keySharedMeta")


@pytest.mark.parametrize(("kind", "number"), [(SubscriptionType.SHARED, 1), (SubscriptionType.KEY_SHARED, 3)])
def test_a_consumer_joins_the_subscription_that_is_there(kind: SubscriptionType, number: int) -> None:
    connection = ready()
    connection.subscribe(TOPIC, "billing", kind, name="me")
    ((_, said),) = read_request(connection.to_send())
    assert (said.subType, said.durable, said.HasField("start_message_id")) == (number, True, False)
    assert said.HasField("keySharedMeta") is (kind is SubscriptionType.KEY_SHARED)


def test_positions_are_acknowledged_one_by_one_in_one_command_that_is_answered() -> None:
    connection = reading()
    request_id = connection.acknowledge(1, [EntryPosition(5, 1), EntryPosition(6, 0)])
    ((name, said),) = read_request(connection.to_send())
    assert (name, said.consumer_id, said.ack_type, said.request_id) == ("ACK", 1, 0, request_id)
    assert [(one.ledgerId, one.entryId) for one in said.message_id] == [(5, 1), (6, 0)]


def test_permits_are_granted_and_lookups_made_as_asked() -> None:
    connection = reading()
    connection.grant(1, 500)
    connection.look_up(TOPIC, is_authoritative=True)
    connection.ask_last_position(1)
    connection.close_consumer(1)
    (_, flow), (_, lookup), (_, last), (_, close) = read_request(connection.to_send())

    assert (flow.consumer_id, flow.messagePermits) == (1, 500)
    assert (lookup.topic, lookup.request_id, lookup.authoritative) == (TOPIC, 2, True)
    assert (last.consumer_id, last.request_id, close.consumer_id, close.request_id) == (1, 3, 1, 4)


# What is answered.


def test_answers_belong_to_their_requests() -> None:
    connection = reading()
    acknowledging = connection.acknowledge(1, [EntryPosition(5, 1)])
    looking = connection.look_up(TOPIC)
    asking = connection.ask_last_position(1)
    told = connection.receive(
        command_frame("GET_LAST_MESSAGE_ID_RESPONSE", request_id=asking, last_message_id=_id(9, -1))
        + command_frame("LOOKUP_RESPONSE", request_id=looking, response=1, brokerServiceUrl="pulsar://a:1")
        + command_frame("ACK_RESPONSE", request_id=acknowledging, consumer_id=1),
        0,
    )

    assert told == [
        LastPosition(request_id=asking, position=EntryPosition(9, -1)),
        LookedUp(
            request_id=looking,
            is_redirect=False,
            url="pulsar://a:1",
            tls_url=None,
            is_authoritative=False,
            through_service=False,
        ),
        Acknowledged(request_id=acknowledging, consumer_id=1),
    ]


@pytest.mark.parametrize(
    ("command", "ask", "facts", "name", "is_passing"),
    [
        (
            *("ERROR", lambda one: one.subscribe(TOPIC, "s", SubscriptionType.SHARED, name="n")[0]),
            *({"error": 5}, "ConsumerBusy", False),
        ),
        ("LOOKUP_RESPONSE", lambda one: one.look_up(TOPIC), {"response": 2, "error": 6}, "ServiceNotReady", True),
        (
            *("ACK_RESPONSE", lambda one: one.acknowledge(1, [EntryPosition(1, 1)])),
            *({"consumer_id": 1, "error": 22}, "NotAllowedError", False),
        ),
    ],
    ids=["ERROR", "LOOKUP_RESPONSE", "ACK_RESPONSE"],
)
def test_a_refusal_says_what_was_asked_in_whose_words_it_failed_and_whether_it_passes(
    command: str, ask: Callable[[Connection], int], facts: dict[str, Any], name: str, is_passing: bool
) -> None:
    connection = reading()
    request_id = ask(connection)
    (told,) = connection.receive(command_frame(command, request_id=request_id, message="busy", **facts), 0)
    assert isinstance(told, Refused)
    assert (told.request_id, told.error.name, told.error.is_passing) == (request_id, name, is_passing)
    assert told.error.reason in str(told.error)
    assert connection.phase is Phase.READY, "only the request failed"


def test_an_error_that_is_not_known_here_has_a_number_and_the_brokers_words() -> None:
    connection = reading()
    request_id = connection.look_up(TOPIC)
    (told,) = connection.receive(command_frame("ERROR", request_id=request_id, error=99, message="new" * 1_000), 0)
    assert isinstance(told, Refused)
    assert (told.error.code, told.error.name) == (99, "error 99")
    assert len(str(told.error)) < 500, "a stranger's words are cut"


@pytest.mark.parametrize("made", [connecting, reading])
def test_an_error_about_no_request_ends_the_connection_and_says_why(made: Callable[[], Connection]) -> None:
    """At the beginning, or when a token that was asked for again is not taken."""
    connection = made()
    error = broken(connection.receive(command_frame("ERROR", request_id=NO_REQUEST, error=3, message="bad token"), 0))
    assert isinstance(error, BrokerRefused)
    assert (error.name, error.reason) == ("AuthenticationError", "bad token")
    assert connection.phase is Phase.ENDED


def test_credentials_are_shown_again_when_they_are_asked_for() -> None:
    connection = ready()
    assert connection.receive(command_frame("AUTH_CHALLENGE", server_version="s"), 0) == [CredentialsAsked()]
    connection.show_credentials(method="token", data=b"newer")
    ((name, said),) = read_request(connection.to_send())
    assert (name, said.response.auth_method_name, said.response.auth_data) == ("AUTH_RESPONSE", "token", b"newer")


@pytest.mark.parametrize("version", [0, 17, 18])
def test_a_broker_that_is_too_old_is_named_with_its_version(version: int) -> None:
    error = broken(connecting().receive(connected(version=version), 0))
    assert isinstance(error, BrokerTooOld)
    assert (error.version, error.needed) == (version, 19)
    assert "use a broker of Pulsar 2.10 or later" in str(error)
    assert all(ready(version=later).phase is Phase.READY for later in (19, 20, 21, 22, 99))


@pytest.mark.parametrize(
    ("told", "limit"),
    [
        (None, DEFAULT_FRAME_BYTES),
        (0, DEFAULT_FRAME_BYTES),
        (-1, DEFAULT_FRAME_BYTES),
        (MB, MB + FRAME_PADDING_BYTES),
        (20 * MB, 20 * MB + FRAME_PADDING_BYTES),
        ((1 << 31) - 1, MAX_FRAME_BYTES),
    ],
)
def test_frames_are_as_large_as_the_broker_says_but_never_larger_than_our_limit(told: int | None, limit: int) -> None:
    said = {} if told is None else {"max_message_size": told}
    assert ready(**said).receive(struct.pack(">I", limit), 0) == []
    error = broken(ready(**said).receive(struct.pack(">I", limit + 1), 0))
    assert isinstance(error, FrameTooLarge)
    assert (error.size_bytes, error.limit_bytes) == (limit + 1, limit)


# Consumers.


def test_entries_of_a_consumer_are_told_and_those_of_a_closed_one_are_not() -> None:
    connection = reading()
    (entry,) = connection.receive(entry_frame((1, 2)), 0)
    assert isinstance(entry, Entry)
    connection.close_consumer(1)
    assert connection.receive(entry_frame((1, 3)), 0) == [], "it was under way"


def test_a_closed_consumer_takes_its_requests_with_it_and_late_answers_mean_nothing() -> None:
    connection = reading()
    request_id = connection.acknowledge(1, [EntryPosition(1, 1)])
    closed = connection.receive(command_frame("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST), 0)
    late = connection.receive(
        command_frame("ACK_RESPONSE", request_id=request_id, consumer_id=1) + entry_frame((1, 2)), 0
    )
    assert closed == [ConsumerClosed(consumer_id=1, reason="the broker closed the consumer")]
    assert (late, connection.phase) == ([], Phase.READY)


def test_a_consumer_that_is_closed_while_it_is_opened_is_told_as_closed() -> None:
    connection = ready()
    connection.subscribe(TOPIC, "s", SubscriptionType.SHARED, name="n")
    told = connection.receive(command_frame("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST), 0)
    assert [type(event) for event in told] == [ConsumerClosed]


def test_a_topic_that_has_migrated_closes_its_consumer_and_says_where_to() -> None:
    moved = command_frame("TOPIC_MIGRATED", resource_id=1, resource_type=1, brokerServiceUrl="pulsar://green:6650")
    (told,) = reading().receive(moved, 0)
    assert told == ConsumerClosed(consumer_id=1, reason="the topic has migrated to pulsar://green:6650")
    of_producer = command_frame("TOPIC_MIGRATED", resource_id=1, resource_type=0)
    assert reading().receive(of_producer, 0) == [], "it does not concern us"


@pytest.mark.parametrize(
    "frame",
    [
        entry_frame((1, 2), consumer_id=2),
        command_frame("CLOSE_CONSUMER", consumer_id=0, request_id=1),
        command_frame("SUCCESS", request_id=77),
        command_frame("SUCCESS", request_id=0),
        command_frame("ACK_RESPONSE", request_id=NO_REQUEST, consumer_id=1),
        command_frame("SUCCESS"),
        command_frame("MESSAGE", consumer_id=1),
    ],
)
def test_what_is_for_nobody_here_ends_the_connection(frame: bytes) -> None:
    assert isinstance(broken(reading().receive(frame, 0)), ProtocolViolation)


def test_an_answer_of_another_kind_than_was_asked_for_ends_the_connection() -> None:
    connection = reading()
    request_id = connection.look_up(TOPIC)
    error = broken(connection.receive(command_frame("SUCCESS", request_id=request_id), 0))
    assert f"another answer than awaited to: look up {TOPIC}" in str(error)


# Limits.


def test_more_positions_or_requests_than_the_limits_are_refused_and_nothing_is_sent() -> None:
    connection = reading()
    with pytest.raises(TooManyRequests, match="1001 positions in one acknowledgement at once, the limit is 1000"):
        connection.acknowledge(1, [EntryPosition(1, at) for at in range(MAX_POSITIONS + 1)])
    assert connection.to_send() == b""
    for _ in range(MAX_PENDING):
        connection.look_up(TOPIC)
    with pytest.raises(TooManyRequests, match="1001 requests at once"):
        connection.look_up(TOPIC)


def test_a_command_beyond_its_limit_is_refused_though_a_frame_may_be_larger() -> None:
    error = broken(reading().receive(command_frame("ERROR", request_id=1, error=1, message="x" * MAX_COMMAND_BYTES), 0))
    assert f"the limit is {MAX_COMMAND_BYTES}" in str(error)


def test_after_its_end_a_connection_says_and_hears_nothing_and_requests_raise_why() -> None:
    connection = reading()
    connection.look_up(TOPIC)
    broken(connection.receive(b"HTTP", 0))
    assert (connection.to_send(), connection.receive(entry_frame((1, 2)), 0)) == (b"", [])
    with pytest.raises(FrameTooLarge, match="use the service URL"):
        connection.look_up(TOPIC)


# Time.


def test_silence_is_asked_about_once_and_then_ends_the_connection() -> None:
    connection = reading()
    connection.receive(command_frame("PONG"), 1_000)
    assert connection.wake_ms() == 1_000 + KEEP_ALIVE_MS
    assert (connection.on_time(1_000 + KEEP_ALIVE_MS - 1), connection.to_send()) == ([], b"")

    assert connection.on_time(1_000 + KEEP_ALIVE_MS) == []
    assert [name for name, _ in read_request(connection.to_send())] == ["PING"]
    assert (connection.on_time(1_000 + 2 * KEEP_ALIVE_MS - 1), connection.to_send()) == ([], b"")
    error = broken(connection.on_time(1_000 + 2 * KEEP_ALIVE_MS))
    assert isinstance(error, BrokerSilent)
    assert error.waited_ms == KEEP_ALIVE_MS


def test_anything_that_comes_ends_the_silence() -> None:
    connection = reading()
    connection.on_time(KEEP_ALIVE_MS)
    connection.receive(command_frame("PONG"), KEEP_ALIVE_MS + 100)
    assert connection.on_time(2 * KEEP_ALIVE_MS) == []
    assert connection.wake_ms() == 2 * KEEP_ALIVE_MS + 100
    assert connection.on_time(100 * KEEP_ALIVE_MS) == [], "whoever looks after a long time asks first"
    assert connection.phase is Phase.READY


# What may come when: the whole product of phases and commands.

NEVER = {"CONNECT", "SUBSCRIBE", "ACK", "FLOW", "LOOKUP", "GET_LAST_MESSAGE_ID", "AUTH_RESPONSE"}
"""What only clients say."""
LAST = message("MessageIdData", ledgerId=1, entryId=1)
ANY_BODY: dict[str, dict[str, Any]] = {
    **{name: {} for name in (*NEVER, "PING", "PONG", "AUTH_CHALLENGE")},
    "CONNECTED": {"server_version": "s", "protocol_version": 21},
    "SUCCESS": {"request_id": 1},
    "ERROR": {"request_id": 1, "error": 1},
    "CLOSE_CONSUMER": {"consumer_id": 1},
    "LOOKUP_RESPONSE": {"request_id": 1, "response": 1},
    "GET_LAST_MESSAGE_ID_RESPONSE": {"request_id": 1, "last_message_id": LAST},
    "ACK_RESPONSE": {"request_id": 1, "consumer_id": 1},
    "TOPIC_MIGRATED": {"resource_id": 1, "resource_type": 1},
}
WHILE_CONNECTING = {"CONNECTED", "ERROR", "AUTH_CHALLENGE", "PING", "PONG"}


@pytest.mark.parametrize("command", sorted(command.name for command in CommandType))
@pytest.mark.parametrize("phase", ["new", "connecting", "ready"])
def test_what_is_not_in_the_table_is_a_violation(phase: str, command: str) -> None:
    connection = {"new": Connection, "connecting": connecting, "ready": reading}[phase]()
    frame = entry_frame((1, 2)) if command == "MESSAGE" else command_frame(command, **ANY_BODY[command])
    allowed = {
        "new": set[str](),
        "connecting": WHILE_CONNECTING,
        "ready": set(ANY_BODY) - NEVER - {"CONNECTED"} | {"MESSAGE"},
    }[phase]
    events = connection.receive(frame, 0)
    said = f"{command} while {phase}" in str(events[-1].error) if events and isinstance(events[-1], Broken) else False

    assert said is (command not in allowed), events


def test_commands_that_are_not_known_are_passed_over() -> None:
    unknown = b"\x08\xc8\x01" + b"\xc2\x0c\x02hi"  # type 200, with its body
    frame = struct.pack(">II", 4 + len(unknown), len(unknown)) + unknown
    connection = reading()
    others = [command_frame(name, consumer_id=1) for name in ("ACTIVE_CONSUMER_CHANGE", "REACHED_END_OF_TOPIC")]
    assert connection.receive(frame + b"".join(others), 0) == []
    assert connection.phase is Phase.READY


# Any bytes.

RECORDED = {path.stem: path for path in sorted((Path(__file__).parent / "recorded").glob("*.hex"))}
"""What brokers of these versions sent, a line for each connection: lookup, reader, lookup, acknowledger."""


def looking() -> Connection:
    connection = ready()
    connection.look_up(TOPIC)
    return connection


def reading_and_asking() -> Connection:
    connection = ready()
    connection.subscribe(TOPIC, "look", SubscriptionType.EXCLUSIVE, name="look", start=EntryPosition(-1, -1))
    connection.ask_last_position(1)
    return connection


def acknowledging() -> Connection:
    connection = ready()
    connection.subscribe(TOPIC, "billing", SubscriptionType.SHARED, name="n")
    connection.acknowledge(1, [EntryPosition(1, 1)])
    connection.close_consumer(1)
    return connection


ASKED = (looking, reading_and_asking, looking, acknowledging)


def recorded(version: str) -> list[tuple[Callable[[], Connection], bytes]]:
    """Whoever had asked, and what it was sent behind CONNECTED."""
    found = []
    for make, line in zip(ASKED, RECORDED[version].read_text().split(), strict=True):
        stream = bytes.fromhex(line)
        (first,) = connecting().receive(stream[: 4 + int.from_bytes(stream[:4], "big")], 0)
        assert isinstance(first, Connected)
        assert version in first.server
        found.append((make, stream[4 + int.from_bytes(stream[:4], "big") :]))
    return found


STREAMS = [one for version in RECORDED for one in recorded(version)]


def pieces_of(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def fed(connection: Connection, pieces: list[bytes]) -> list[str]:
    """All events as texts: errors are equal only to themselves."""
    return [repr(event) for piece in pieces for event in connection.receive(piece, 0)]


@pytest.mark.parametrize("version", sorted(RECORDED))
def test_recorded_brokers_are_understood(version: str) -> None:
    events = [event for make, stream in recorded(version) for event in make().receive(stream, 0)]
    delayed, later, packed, batched = (event for event in events if isinstance(event, Entry))

    assert [type(event).__name__ for event in events] == [
        *("LookedUp", "Done", "LastPosition"),
        *("Entry", "Entry", "Entry", "Entry", "ConsumerClosed"),
        *("LookedUp", "Done", "Acknowledged", "Done"),
    ]
    assert delayed.deliver_at_ms is not None
    assert later.deliver_at_ms == delayed.deliver_at_ms + 1
    assert (delayed.properties, delayed.partition_key) == ({"name": "value", "é": "ü"}, "key")
    assert (delayed.ordering_key, delayed.event_ms) == (b"order", 1234)
    assert (packed.batch_size, packed.compression, packed.deliver_at_ms) == (3, 2, None)
    assert (batched.batch_size, batched.compression) == (3, 0)


@given(recording=st.sampled_from(STREAMS), places=st.lists(st.integers(0, 2_000), max_size=20))
def test_any_cut_of_a_recorded_stream_gives_the_same_events(
    recording: tuple[Callable[[], Connection], bytes], places: list[int]
) -> None:
    make, stream = recording
    bytewise = [stream[at : at + 1] for at in range(len(stream))]
    assert fed(make(), pieces_of(stream, places)) == fed(make(), [stream]) == fed(make(), bytewise)


@given(recording=st.sampled_from(STREAMS), end=st.integers(0, 10_000))
def test_a_stream_that_ends_early_is_waited_for_and_never_misread(
    recording: tuple[Callable[[], Connection], bytes], end: int
) -> None:
    make, stream = recording
    connection = make()
    events = fed(connection, [stream[: end % len(stream)]])
    assert events == fed(make(), [stream])[: len(events)]
    assert connection.phase is Phase.READY


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A recorded stream with bytes changed, removed, doubled or put in."""
    data = bytearray(draw(st.sampled_from(STREAMS))[1])
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(("change", "remove", "insert", "double", "cut"))):
            case "change":
                data[at : at + 1] = bytes((draw(st.integers(0, 255)),))
            case "remove":
                del data[at : at + draw(st.integers(1, 20))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "double":
                data[at:at] = data[at : at + draw(st.integers(1, 200))]
            case _:
                del data[at:]
    return bytes(data)


@given(data=st.one_of(st.binary(max_size=300), mutated()), places=st.lists(st.integers(0, 2_000), max_size=8))
@example(data=b"HTTP/1.1 400 Bad Request\r\n\r\n", places=[])
def test_no_bytes_raise_anything_and_their_cut_does_not_matter(data: bytes, places: list[int]) -> None:
    for make in (Connection, connecting, reading, *ASKED[1:]):
        whole, cut = make(), make()
        events = fed(whole, [data])
        assert fed(cut, pieces_of(data, places)) == events
        assert (cut.phase, cut.to_send()) == (whole.phase, whole.to_send())
        assert sum(text.startswith("Broken") for text in events) == (whole.phase is Phase.ENDED)


@given(metadata=st.one_of(st.binary(max_size=80), mutated()), payload=st.binary(max_size=8))
def test_any_metadata_with_its_right_checksum_is_an_entry(metadata: bytes, payload: bytes) -> None:
    """Behind a checksum that is wrong, nothing would be looked at."""
    body = struct.pack(">I", len(metadata)) + metadata + payload
    rest = b"\x0e\x01" + struct.pack(">I", google_crc32c.value(body)) + body
    (event,) = reading().receive(command_frame("MESSAGE", rest, consumer_id=1, message_id=_id(1, 2)), 0)
    assert isinstance(event, Entry)
    assert event.defect is None or not event.properties


def _id(ledger: int, entry: int) -> Any:
    return message("MessageIdData", ledgerId=ledger % (1 << 64), entryId=entry % (1 << 64))
