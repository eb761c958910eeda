"""Which entries of a due topic are lifted, and which stay where they are, with the reason."""

from __future__ import annotations

from enum import Enum, unique

from timewheel.binary_protocol.entries import Compression, Entry
from timewheel.core.envelope import FOR_PROPERTY, STIR_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.errors import EnvelopeError
from timewheel.core.ids import native_id
from timewheel.core.plan import Plan
from timewheel.core.steps import far_ms
from timewheel.wire.positions import EntryPosition

__all__ = ["LARGEST_BYTES", "NO_NUMBER", "Fate", "Lifting", "lift_number", "lifted_from", "native_id", "timer_of"]

LARGEST_BYTES = 5 * 1024 * 1024 - 64 * 1024
"""Of a payload: with what a copy has more than its original, a broker takes no larger one."""
NO_NUMBER = 0
"""Of `lift_number`; the client itself takes 0 for "none"."""
_MAX_LEDGER = 1 << 31
_MAX_ENTRY = 1 << 32
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
    TRANSACTION = "transaction"
    COMPRESSION = "unknown_compression"
    MARKER = "marker"
    """The broker's own."""
    POSITION = "position_too_high"
    """Its ledger or entry has no number by which the broker could drop a second copy."""
    LARGE = "large"
    """With the properties of a copy it would be larger than a broker takes."""
    DAMAGED = "damaged"
    """Its payload does not open as its metadata say."""
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

    __slots__ = ("_max_delay_ms", "far_ms")

    def __init__(self, plan: Plan) -> None:
        self.far_ms = far_ms(plan)
        self._max_delay_ms = plan.max_delay_ms

    def fate(self, entry: Entry, now_ms: int) -> Fate:
        """What becomes of an entry that is pending on every subscription.

        Args:
            entry: As it is stored.
            now_ms: UTC milliseconds.
        """
        deliver_at_ms = entry.deliver_at_ms
        if entry.marker is not None:
            return Fate.MARKER
        if not deliver_at_ms:
            return Fate.UNDELAYED
        if STIR_PROPERTY in entry.properties:
            return Fate.STIR
        remaining_ms = deliver_at_ms - now_ms
        if remaining_ms < self.far_ms:
            return Fate.NEAR
        if (obstacle := _obstacle(entry)) is not None:
            return obstacle
        if remaining_ms > self._max_delay_ms:
            return Fate.BEYOND
        return Fate.LARGE if max(entry.payload_bytes, entry.uncompressed_bytes) > LARGEST_BYTES else Fate.LIFT


def _obstacle(entry: Entry) -> Fate | None:
    """Why an entry that is far from due stays all the same."""
    for fate, is_so in (
        (Fate.ENCRYPTED, entry.is_encrypted),
        (Fate.CHUNK, entry.is_chunked),
        (Fate.BATCH, entry.batch_size > 0),
        (Fate.TRANSACTION, entry.transaction is not None),
        (Fate.KEY_BYTES, entry.key_is_base64),
        (Fate.COMPRESSION, entry.compression not in _OPENED),
        (Fate.POSITION, lift_number(entry.position) == NO_NUMBER),
    ):
        if is_so:
            return fate
    try:
        known = Envelope.read(entry.properties)
    except EnvelopeError:
        return Fate.UNREADABLE
    # What is for one subscription alone waits in that one's own topic; here only a stranger can have put it.
    return Fate.UNREADABLE if known is not None and FOR_PROPERTY in entry.properties else None


def lift_number(place: EntryPosition) -> int:
    """The sequence id of a copy: it ascends with the originals' positions, so that a broker drops a second one.

    Only what is no batch is lifted, so an entry is one message, and its number may be as high as they get: a ledger
    lives for ten minutes at least, and a topic that takes more than 1,700 messages a second then has a million in one.

    Returns:
        ``ledger << 32 | entry``; `NO_NUMBER`: a part is out of its range.
    """
    if not (0 <= place.ledger < _MAX_LEDGER and 0 <= place.entry < _MAX_ENTRY):
        return NO_NUMBER
    return place.ledger << 32 | place.entry


def timer_of(entry: Entry, part: str, now_ms: int, revision: int) -> Envelope:
    """The envelope of a copy.

    A timer that an SDK has sent keeps its own, as one that was put back into the topic does.

    Args:
        entry: Its fate is to be lifted.
        part: As of `timewheel.core.ids.native_id`.
        now_ms: When it is lifted, UTC milliseconds.
        revision: The plan's.
    """
    known = Envelope.read(entry.properties) if TIMER_PROPERTY in entry.properties else None
    due_ms = entry.deliver_at_ms or 0
    if known is None:
        return Envelope(native_id(part, entry.position), due_ms, now_ms, revision=revision)
    return known.hopped(now_ms)


def lifted_from(text: str) -> tuple[EntryPosition, int] | None:
    """Read the value of ``tw-from``: where the original stands, and when it was published, UTC milliseconds.

    Returns:
        None: it is none that a shadow writes.
    """
    place, _, published = text.partition(" ")
    ledger, _, entry = place.partition(":")
    if not (ledger.isdecimal() and entry.isdecimal() and published.isdecimal()):
        return None
    return EntryPosition(int(ledger), int(entry)), int(published)
