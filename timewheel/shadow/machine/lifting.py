"""Which entries of a due topic are lifted, and which stay where they are, with the reason."""

from __future__ import annotations

from enum import Enum, unique

from timewheel.binary_protocol.entries import Compression, Entry
from timewheel.binary_protocol.fields import text_of
from timewheel.core.digits import whole_number
from timewheel.core.durations import SECOND_MS
from timewheel.core.envelope import DUE_PROPERTY, FOR_PROPERTY, FROM_PROPERTY, STIR_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.errors import EnvelopeError
from timewheel.core.ids import native_id
from timewheel.core.plan import Plan
from timewheel.core.steps import far_ms
from timewheel.wire.positions import EntryPosition

__all__ = ["LARGEST_BYTES", "Fate", "Lifting", "fence_number", "lifted_from", "native_id"]

LARGEST_BYTES = 5 * 1024 * 1024 - 64 * 1024
"""Of a payload: with what a copy has more than its original, a broker takes no larger one."""
EARLIER_TICKS = 5
"""A timer of ours is asked for by so much before it is due at the most: the lead, and 2.5 ticks now and then."""
_OUR_PREFIX = "tw-"
_ROOM = 1 << 30
"""Sequence ids from one fence to the next: more than a second of any lifter needs."""
_OPENED = frozenset(Compression)


@unique
class Fate(Enum):
    """What becomes of an entry. All but `LIFT` and `STIR` stay, and the broker delivers them in their time."""

    LIFT = "lifted"
    STIR = "stir"
    """The shadow's own, to be acknowledged."""
    UNDELAYED = "undelayed"
    NEAR = "near"
    """It is due so soon that lifting it would gain nothing."""
    BEYOND = "beyond_max_delay"
    """It is due later than the plan allows."""
    BATCH = "batch"
    """A batch under one delay, of which any part may be acknowledged already."""
    ENCRYPTED = "encrypted"
    CHUNK = "chunk"
    """A part of a larger message."""
    KEY_BYTES = "key_of_bytes"
    """Its key is no text, and pulsar-client would send the key on as one."""
    NO_TEXT = "no_text"
    """A key of it or a property is no UTF-8, and pulsar-client takes none such."""
    TRANSACTION = "transaction"
    COMPRESSION = "unknown_compression"
    SCHEMA = "schema_refused"
    """Its schema version does not exist, or the journal's registry does not take its schema, or it is one too many."""
    MARKER = "marker"
    """The broker's own."""
    LARGE = "large"
    """With the properties of a copy it would be larger than a broker takes."""
    DAMAGED = "damaged"
    """Its payload does not open as its metadata say."""
    DEFECT = "unreadable_metadata"
    """What stands beside its payload cannot be read."""
    UNREADABLE = "unreadable_envelope"
    """It has the properties of a timer, garbled or of a later version."""


class Lifting:
    """The decision for the entries of one plan's due topic.

    Args:
        plan: Has an intake.

    Attributes:
        far_ms: The least remaining time with which an entry is lifted, milliseconds: the longest that the plan leaves a
            timer in the due topic, and the guard. For so long the shadow may be down after it has published a copy,
            before that and the original can both be delivered.
    """

    __slots__ = ("_earlier_ms", "_max_delay_ms", "_revision", "far_ms")

    def __init__(self, plan: Plan) -> None:
        self.far_ms = far_ms(plan)
        self._max_delay_ms = plan.max_delay_ms
        self._earlier_ms = EARLIER_TICKS * plan.tick_ms
        self._revision = plan.revision

    def fate(self, entry: Entry, now_ms: int, far_ms: int | None = None) -> Fate:
        """What becomes of an entry that is pending on every subscription.

        Args:
            entry: As it is stored.
            now_ms: UTC milliseconds.
            far_ms: In place of the plan's.
        """
        deliver_at_ms = entry.deliver_at_ms
        if entry.defect is not None:
            return Fate.DEFECT
        if entry.marker is not None:
            return Fate.MARKER
        if not deliver_at_ms:
            return Fate.UNDELAYED
        if STIR_PROPERTY in entry.properties:
            return Fate.STIR
        remaining_ms = deliver_at_ms - now_ms
        if remaining_ms < (self.far_ms if far_ms is None else far_ms):
            return Fate.NEAR
        if (obstacle := self._obstacle(entry)) is not None:
            return obstacle
        if remaining_ms > self._max_delay_ms:
            return Fate.BEYOND
        return Fate.LARGE if max(entry.payload_bytes, entry.uncompressed_bytes) > LARGEST_BYTES else Fate.LIFT

    def copy(self, entry: Entry, part: str, now_ms: int) -> dict[str, str]:
        """The properties of a copy, its envelope among them.

        A timer that an SDK has sent keeps its own envelope, as one that was put back into the topic does. But a plain
        client may send on what it was given, properties and all, to be delivered later: that is another timer.

        Args:
            entry: Its fate is to be lifted.
            part: As of `timewheel.core.ids.native_id`.
            now_ms: When it is lifted, UTC milliseconds.
        """
        properties = dict(entry.properties)
        properties.pop(DUE_PROPERTY, None)  # of the intake alone
        known = self._own(entry)
        if known is None:
            if TIMER_PROPERTY in properties:
                properties = {name: text for name, text in properties.items() if not name.startswith(_OUR_PREFIX)}
            due_ms = entry.deliver_at_ms or 0
            timer = Envelope(native_id(part, entry.position), due_ms, now_ms, revision=self._revision)
        else:
            timer = known.hopped(now_ms)
        properties.update(timer.properties())
        properties[FROM_PROPERTY] = f"{entry.position.text} {entry.publish_ms}"
        return properties

    def _own(self, entry: Entry) -> Envelope | None:
        """The envelope of this very message; raises EnvelopeError if it is garbled or of a later version."""
        known = Envelope.read(entry.properties)
        if known is None or 0 <= known.due_ms - (entry.deliver_at_ms or 0) <= self._earlier_ms:
            return known
        return None

    def _obstacle(self, entry: Entry) -> Fate | None:
        """Why an entry that is far from due stays all the same."""
        for fate, is_so in (
            (Fate.ENCRYPTED, entry.is_encrypted),
            (Fate.CHUNK, entry.is_chunked),
            (Fate.BATCH, entry.batch_size > 0),
            (Fate.TRANSACTION, entry.transaction is not None),
            (Fate.KEY_BYTES, entry.key_is_base64),
            (Fate.COMPRESSION, entry.compression not in _OPENED),
            (Fate.NO_TEXT, not _is_text(entry)),
            (Fate.SCHEMA, not _is_version(entry.schema_version)),
        ):
            if is_so:
                return fate
        try:
            known = self._own(entry)
        except EnvelopeError:
            return Fate.UNREADABLE
        # What is for one subscription alone waits in that one's own topic; here only a stranger can have put it.
        return Fate.UNREADABLE if known is not None and FOR_PROPERTY in entry.properties else None


def _is_text(entry: Entry) -> bool:
    """Whether all that pulsar-client is to send on as text is some: clients in C++ and Go write what they like."""
    texts = [entry.partition_key or "", *entry.properties, *entry.properties.values()]
    if entry.ordering_key:
        texts.append(text_of(entry.ordering_key))
    return all(text.isascii() or _encodes(text) for text in texts)


def _is_version(written: bytes | None) -> bool:
    """Whether a registry can have a schema version: a signed number of 64 bits; a producer may write anything."""
    return written is None or (len(written) == 8 and written[0] < 0x80)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def fence_number(mark: int, now_ms: int) -> int:
    """The sequence id of a session's fence; those of its copies follow. A broker that has stored it takes nothing more
    of any earlier session: each has stored a fence of its own before its first copy, and was sent less than `_ROOM` a
    second since.

    Args:
        mark: The highest sequence id that the broker has stored under the name; -1: none.
        now_ms: UTC milliseconds; so a broker that has forgotten the name does no harm either.
    """
    return max(now_ms // SECOND_MS, mark // _ROOM + 1) * _ROOM


def lifted_from(text: str) -> tuple[EntryPosition, int] | None:
    """Read the value of ``tw-from``: where the original stands, and when it was published, UTC milliseconds.

    Returns:
        None: it is none that a shadow writes.
    """
    place, _, published = text.partition(" ")
    ledger, _, entry = place.partition(":")
    at, number, published_ms = whole_number(ledger), whole_number(entry), whole_number(published)
    if at is None or number is None or published_ms is None:
        return None
    return EntryPosition(at, number), published_ms
