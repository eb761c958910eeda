"""Preparation of a send: validate its arguments, route it, build its message. Pure; shared by both producers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple
from zlib import crc32

from timewheel.core.early_delivery import OutOfOrder
from timewheel.core.envelope import (
    FIRST_LIFE,
    MAX_GROUP_CHARS,
    MAX_TIME_MS,
    MAX_TIMER_ID_CHARS,
    MIN_DUE_MS,
    PREFIX,
    Envelope,
    Life,
    unit_mistake,
)
from timewheel.core.errors import BadArgument, BadDueTime, BadTimerId, PayloadTooLarge, ReservedProperty
from timewheel.core.names import partition_for_key
from timewheel.core.plan import DelayTooLong, Plan
from timewheel.core.routing import Due, Route, Router

Place = Literal["due", "broker", "relay", "cancellations"]
"""Place in which a message waits: a due topic, a tier under the broker's delay, or a topic that a relay holds. A
cancellation goes to the log of cancellations and does not wait."""


class Outgoing(NamedTuple):
    """All data of a send; nothing is looked up or computed after its creation."""

    topic: str  # topic, without a partition suffix
    partition: int  # partition to write to; chosen by us, never by the client (broker-facts: keys-and-partitions)
    place: Place  # place in which the message waits; decides batching and compression
    payload: bytes | None  # encoded content; None: a null value
    properties: dict[str, str]  # properties of the user and the envelope
    partition_key: str | None  # partition key; None: no key
    ordering_key: str | None  # ordering key; None: no key
    event_timestamp_ms: int | None  # event time; None: no event time
    deliver_at_ms: int  # delivery time to request from the broker, UTC milliseconds; 0: at once
    timer_id: str  # timer id, the same through all hops
    due_ms: int  # time at which the timer must reach its handler, UTC milliseconds
    release_at_ms: int  # time at which the slot of a ring is swept, UTC milliseconds; 0 for every other topic
    generation: int = 0  # 0, or the stamp of a send that replaces earlier timers of the same id

    def size_bytes(self) -> int:
        """Return the bytes of payload, keys and properties."""
        texts = (*self.properties, *self.properties.values(), self.partition_key or "", self.ordering_key or "")
        return len(self.payload or b"") + sum(len(text.encode()) for text in texts)

    def in_its_turn(self, out_of_order: OutOfOrder) -> Outgoing:
        """Return the message to send, perhaps with an earlier delivery; call this once per message.

        Only delayed messages of due topics count: in a broker-held tier fixed-delay detection is wanted.
        """
        if self.place != "due":
            return self
        asked_ms = out_of_order.asked(self.deliver_at_ms)
        return self if asked_ms == self.deliver_at_ms else self._replace(deliver_at_ms=asked_ms)

    def sent_to(self, route: Route, at_ms: int, revision: int) -> Outgoing:
        """Return the same timer on another route, decided for ``at_ms``: topic, delay, entry and revision change."""
        place, release_at_ms = place_of(route)
        written = Envelope.read(self.properties)
        assert written is not None, "whatever is sent has an envelope"
        envelope = written._replace(entered_ms=at_ms, revision=revision)
        return self._replace(
            topic=route.topic,
            place=place,
            deliver_at_ms=route.deliver_at_ms,
            release_at_ms=release_at_ms,
            properties={**self.properties, **envelope.properties()},
        )


def place_of(route: Route) -> tuple[Place, int]:
    """Return the place in which a route's messages wait, and the time at which a slot is swept (0 for other topics)."""
    if isinstance(route, Due):
        return "due", 0
    if route.deliver_at_ms:
        return "broker", 0
    return "relay", 0 if route.stay_ms else route.release_at_ms


DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024  # default of the broker's `maxMessageSize`
METADATA_ROOM_BYTES = 1_024
"""Room for the envelope's line of numbers, and for data that client and broker add: names, times, sequence id,
compression."""
FRAMING_BYTES = 16  # overhead of a property or key
MAX_UTF8_BYTES = 4  # largest size of a character in UTF-8

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


def prepare(
    router: Router,
    now_ms: int,
    turn: int,
    new_id: Callable[[int], str],
    content: Any,
    encode: Callable[[Any], bytes],
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    new_stamp: Callable[[int], int] | None = None,
    *,
    deliver_at: int | dt.datetime | None = None,
    deliver_after: dt.timedelta | None = None,
    timer_id: str | None = None,
    properties: Mapping[str, str] | None = None,
    partition_key: str | None = None,
    ordering_key: str | None = None,
    event_timestamp: int | None = None,
    group: str | None = None,
    replace: bool | None = None,
) -> Outgoing:
    """Turn the arguments of a send into a message for one partition topic."""
    plan = router.plan
    due_ms = _due_ms(now_ms, deliver_at, deliver_after)
    if due_ms - now_ms > plan.max_delay_ms:
        raise DelayTooLong(due_ms - now_ms, plan)

    given_id = timer_id
    if timer_id is None:
        timer_id = new_id(now_ms)
    else:
        _check_timer_id(timer_id)
    if partition_key is not None:
        partition_key = _key("partition_key", partition_key)
    if ordering_key is not None:
        ordering_key = _key("ordering_key", ordering_key)
    if event_timestamp is not None:
        _check_event_timestamp(event_timestamp)

    if plan.jitter_ms and due_ms > now_ms:
        due_ms = _spread(due_ms, timer_id, plan.jitter_ms, now_ms + plan.max_delay_ms)
    route = router.route_of_send(due_ms, now_ms)
    place, release_at_ms = place_of(route)
    generation = 0
    characters = len(timer_id) + len(partition_key or "") + len(ordering_key or "")
    if replace or group is not None:
        assert new_stamp is not None, "whoever takes these options has stamps"
        _check_cancellable(plan, given_id, group, replace)
        generation = new_stamp(now_ms) if replace else 0
        life = FIRST_LIFE if group is None else Life(group=group, group_stamp=new_stamp(now_ms))
        all_properties = Envelope(timer_id, due_ms, now_ms, generation, 0, plan.revision, life).properties()
        characters += len(life.group)
    else:
        all_properties = Envelope.first_properties(timer_id, due_ms, now_ms, plan.revision)
    if properties:
        characters += _check_properties(properties)
        all_properties = {**properties, **all_properties}
    payload = None if content is None else encode(content)
    outgoing = Outgoing(
        route.topic,
        partition_for_key(partition_key, plan.own_partitions) if partition_key else turn % plan.own_partitions,
        place,
        payload,
        all_properties,
        partition_key,
        ordering_key,
        event_timestamp,
        route.deliver_at_ms,
        timer_id,
        due_ms,
        release_at_ms,
        generation,
    )
    # Most messages are far below the limit by a bound that needs no encoding; only the others are measured.
    bound_bytes = MAX_UTF8_BYTES * characters + FRAMING_BYTES * len(all_properties) + METADATA_ROOM_BYTES
    if len(payload or b"") + bound_bytes > max_message_bytes:
        _check_size(outgoing, max_message_bytes)
    return outgoing


def _check_cancellable(plan: Plan, timer_id: object, group: object, replace: object) -> None:
    if plan.cancel is None:
        name, value = ("replace", replace) if group is None else ("group", group)
        raise BadArgument(name, value, "the plan has no [cancel], so consumers would not ask for cancellations")
    if replace and timer_id is None:
        raise BadArgument("replace", replace, "give the timer_id that it replaces")
    if group is None:
        return
    if not isinstance(group, str) or not group:
        raise BadArgument("group", group, "must be text, and not empty")
    if len(group) > MAX_GROUP_CHARS:
        raise BadArgument("group", group, f"{len(group)} characters, at most {MAX_GROUP_CHARS}")
    if not _is_encodable(group):
        raise BadArgument("group", group, "half of a surrogate pair cannot be sent")


def _due_ms(now_ms: int, deliver_at: object, deliver_after: object) -> int:
    if deliver_at is None:
        return now_ms if deliver_after is None else now_ms + _delay_ms(deliver_after)
    if deliver_after is not None:
        raise BadDueTime((deliver_at, deliver_after), "give deliver_at or deliver_after, not both")
    if isinstance(deliver_at, int) and not isinstance(deliver_at, bool):
        due_ms = deliver_at
    elif isinstance(deliver_at, dt.datetime):
        if deliver_at.utcoffset() is None:
            raise BadDueTime(deliver_at, "naive: give it a time zone, such as datetime.UTC")
        due_ms = _ceiled_ms(deliver_at - _EPOCH)
    else:
        raise BadDueTime(deliver_at, "deliver_at is whole milliseconds since 1970 (UTC) or an aware datetime")
    if not MIN_DUE_MS <= due_ms <= MAX_TIME_MS:
        raise BadDueTime(deliver_at, f"{unit_mistake(due_ms)}; to deliver now, leave deliver_at out")
    return due_ms


def _spread(due_ms: int, timer_id: str, jitter_ms: int, latest_ms: int) -> int:
    """Postpone the due time by an amount derived from the timer id."""
    return min(due_ms + crc32(timer_id.encode()) % (jitter_ms + 1), latest_ms)


def _delay_ms(deliver_after: object) -> int:
    if not isinstance(deliver_after, dt.timedelta):
        raise BadDueTime(deliver_after, "deliver_after is a timedelta, such as timedelta(seconds=5)")
    delay_ms = _ceiled_ms(deliver_after)
    if delay_ms < 0:
        raise BadDueTime(deliver_after, "negative: use zero, or a deliver_at in the past, to deliver now")
    return delay_ms


def _ceiled_ms(span: dt.timedelta) -> int:
    # Rounded up: dropping a fraction of a millisecond would make the timer early.
    whole_ms, rest = divmod(span, _MILLISECOND)
    return whole_ms + 1 if rest else whole_ms


def _check_timer_id(timer_id: object) -> None:
    if not isinstance(timer_id, str):
        raise BadTimerId(timer_id, "must be text")
    if not timer_id:
        raise BadTimerId(timer_id, "must not be empty; leave it out to have one generated")
    if len(timer_id) > MAX_TIMER_ID_CHARS:
        raise BadTimerId(timer_id, f"{len(timer_id)} characters, at most {MAX_TIMER_ID_CHARS}")
    if not _is_encodable(timer_id):
        raise BadTimerId(timer_id, "half of a surrogate pair cannot be sent")


def _key(name: str, key: object) -> str | None:
    if not isinstance(key, str):
        raise BadArgument(name, key, "must be text")
    if not _is_encodable(key):
        raise BadArgument(name, key, "half of a surrogate pair cannot be sent")
    # pulsar-client drops an empty key, and a receiver cannot distinguish it from no key.
    return key or None


def _check_event_timestamp(event_timestamp: object) -> None:
    if isinstance(event_timestamp, bool) or not isinstance(event_timestamp, int):
        raise BadArgument("event_timestamp", event_timestamp, "must be whole milliseconds since 1970")
    if not 0 <= event_timestamp <= MAX_TIME_MS:
        raise BadArgument("event_timestamp", event_timestamp, "must lie between 1970 and the year 9999")


def _check_properties(properties: object) -> int:
    """Refuse properties that no message can carry, and return their number of characters."""
    characters = 0
    # Almost always a dict, and checking for an abstract class costs as much as the rest of this function.
    if not isinstance(properties, dict) and not isinstance(properties, Mapping):
        raise BadArgument("properties", properties, "must be a mapping of text to text")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadArgument("properties", {name: value}, "names and values must be text")
        if name.startswith(PREFIX):
            raise ReservedProperty(name, PREFIX)
        if not (name.isascii() and value.isascii()) and not (_is_encodable(name) and _is_encodable(value)):
            raise BadArgument("properties", {name: value}, "half of a surrogate pair cannot be sent")
        characters += len(name) + len(value)
    return characters


def _check_size(outgoing: Outgoing, limit_bytes: int) -> None:
    size_bytes = outgoing.size_bytes() + FRAMING_BYTES * len(outgoing.properties) + METADATA_ROOM_BYTES
    if size_bytes > limit_bytes:
        raise PayloadTooLarge(size_bytes, limit_bytes)


def _is_encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
