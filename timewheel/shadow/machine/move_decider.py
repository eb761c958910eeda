"""Decides which entries of a due topic are moved, and which stay, with the reason."""

from __future__ import annotations

from enum import Enum, unique

from timewheel.broker.protocol.entries import Compression, Entry
from timewheel.broker.protocol.wire import text_of
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import SECOND_MS, whole_number
from timewheel.core.envelope import DUE_PROPERTY, FOR_PROPERTY, FROM_PROPERTY, NUDGE_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.errors import EnvelopeError
from timewheel.core.ids import native_id
from timewheel.core.plan import Plan
from timewheel.core.steps import far_ms

LARGEST_BYTES = 5 * 1024 * 1024 - 64 * 1024
"""Limit of a payload: a broker accepts no larger copy, which has more properties than its original."""
EARLIER_TICKS = 5  # most ticks by which timewheel requests a timer before it is due: the lead, and sometimes 2.5 ticks
_OUR_PREFIX = "tw-"
_ROOM = 1 << 30  # sequence ids between two fences: more than any mover uses in a second
_OPENED = frozenset(Compression)


@unique
class MoveDecision(Enum):
    """The decision about an entry. All but `MOVE` and `NUDGE` stay, and the broker delivers them at their time."""

    MOVE = "moved"
    NUDGE = "nudge"  # the shadow's own message, to be acknowledged
    UNDELAYED = "undelayed"
    NEAR = "near"  # due so soon that moving would gain nothing
    BEYOND = "beyond_max_delay"  # due later than the plan allows
    BATCH = "batch"  # a batch under a single delay, any part of which may be acknowledged already
    ENCRYPTED = "encrypted"
    CHUNK = "chunk"  # a chunk of a larger message
    KEY_BYTES = "key_of_bytes"  # the key is bytes, and pulsar-client would send the key on as a text
    NO_TEXT = "no_text"  # the key or a property is not UTF-8, which pulsar-client does not accept
    TRANSACTION = "transaction"
    COMPRESSION = "unknown_compression"
    SCHEMA = "schema_refused"
    """The schema version does not exist, the journal's registry refuses the schema, or there are too many versions."""
    MARKER = "marker"  # the broker's own entry
    LARGE = "large"  # with the properties of a copy the message would exceed the broker's limit
    DAMAGED = "damaged"  # the payload does not decompress as the metadata declare
    DEFECT = "unreadable_metadata"  # the metadata beside the payload cannot be read
    UNREADABLE = "unreadable_envelope"  # the message has the properties of a timer, but malformed or of a later version


TIMELESS = frozenset({MoveDecision.DEFECT, MoveDecision.MARKER, MoveDecision.UNDELAYED, MoveDecision.NUDGE})
"""Decisions that no time changes."""


class MoveDecider:
    """The decision for the entries of a plan's due topic.

    `far_ms` is the least remaining time with which an entry is moved: the longest time that the plan leaves a timer in
    the due topic, and the guard. For this long the shadow may be down after it has published a copy, before the copy
    and the original can both be delivered.
    """

    def __init__(self, plan: Plan) -> None:
        self.far_ms = far_ms(plan)
        self._max_delay_ms = plan.max_delay_ms
        self._earlier_ms = EARLIER_TICKS * plan.tick_ms
        self._revision = plan.revision

    def decision(self, entry: Entry, now_ms: int, far_ms: int | None = None) -> MoveDecision:
        """Decide about an entry that is pending on every subscription; `far_ms` replaces the plan's value."""
        if (timeless := _timeless(entry)) is not None:
            return timeless
        remaining_ms = (entry.deliver_at_ms or 0) - now_ms
        if remaining_ms < (self.far_ms if far_ms is None else far_ms):
            return MoveDecision.NEAR  # first: of most entries no obstacle need be looked for
        return self.at(self.far_decision(entry), remaining_ms, far_ms)

    def far_decision(self, entry: Entry) -> MoveDecision:
        """Decide about an entry as if it was far from due, by any plan."""
        if (decision := _timeless(entry) or self._obstacle(entry)) is not None:
            return decision
        is_large = max(entry.payload_bytes, entry.uncompressed_bytes) > LARGEST_BYTES
        return MoveDecision.LARGE if is_large else MoveDecision.MOVE

    def at(self, far_decision: MoveDecision, remaining_ms: int, far_ms: int | None = None) -> MoveDecision:
        """Decide about an entry by the answer of `far_decision` and the time until it is due."""
        if far_decision in TIMELESS:
            return far_decision
        if remaining_ms < (self.far_ms if far_ms is None else far_ms):
            return MoveDecision.NEAR
        is_beyond = far_decision in (MoveDecision.MOVE, MoveDecision.LARGE) and remaining_ms > self._max_delay_ms
        return MoveDecision.BEYOND if is_beyond else far_decision

    def copy(self, entry: Entry, part: str, now_ms: int) -> dict[str, str]:
        """Return the properties of a copy, its envelope included.

        A timer that an SDK has sent keeps its own envelope, and so does a timer that was put back into the topic. But a
        plain client may send a received message on with a new delay, properties and all: that is another timer.
        """
        properties = dict(entry.properties)
        properties.pop(DUE_PROPERTY, None)  # of the intake only
        if (known := self._own(entry)) is not None:
            timer = known.hopped(now_ms)
        else:
            if TIMER_PROPERTY in properties:
                properties = {name: text for name, text in properties.items() if not name.startswith(_OUR_PREFIX)}
            due_ms = entry.deliver_at_ms or 0
            timer = Envelope(native_id(part, entry.position), due_ms, now_ms, revision=self._revision)
        return {**properties, **timer.properties(), FROM_PROPERTY: f"{entry.position.text} {entry.publish_ms}"}

    def _own(self, entry: Entry) -> Envelope | None:
        """Return the envelope of this very message; raises EnvelopeError if it is malformed or of a later version."""
        known = Envelope.read(entry.properties)
        if known is None or 0 <= known.due_ms - (entry.deliver_at_ms or 0) <= self._earlier_ms:
            return known
        return None

    def _obstacle(self, entry: Entry) -> MoveDecision | None:
        """Return why an entry that is far from due stays all the same."""
        for decision, is_so in (
            (MoveDecision.ENCRYPTED, entry.is_encrypted),
            (MoveDecision.CHUNK, entry.is_chunked),
            (MoveDecision.BATCH, entry.batch_size > 0),
            (MoveDecision.TRANSACTION, entry.transaction is not None),
            (MoveDecision.KEY_BYTES, entry.key_is_base64),
            (MoveDecision.COMPRESSION, entry.compression not in _OPENED),
            (MoveDecision.NO_TEXT, not _is_text(entry)),
            (MoveDecision.SCHEMA, not _is_version(entry.schema_version)),
        ):
            if is_so:
                return decision
        try:
            known = self._own(entry)
        except EnvelopeError:
            return MoveDecision.UNREADABLE
        # A timer for a single subscription waits in that subscription's own topic; here only another program can have
        # put it.
        return MoveDecision.UNREADABLE if known is not None and FOR_PROPERTY in entry.properties else None


def _timeless(entry: Entry) -> MoveDecision | None:
    """Return the decision of an entry that no time changes."""
    if entry.defect is not None:
        return MoveDecision.DEFECT
    if entry.marker is not None:
        return MoveDecision.MARKER
    if not entry.deliver_at_ms:
        return MoveDecision.UNDELAYED
    return MoveDecision.NUDGE if NUDGE_PROPERTY in entry.properties else None


def _is_text(entry: Entry) -> bool:
    """Return whether all texts that pulsar-client is to send on are UTF-8: C++ and Go clients may write any bytes."""
    texts = [entry.partition_key or "", *entry.properties, *entry.properties.values()]
    if entry.ordering_key:
        texts.append(text_of(entry.ordering_key))
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_version(written: bytes | None) -> bool:
    """Return whether a registry can have a schema version, a signed number of 64 bits; a producer may write others."""
    return written is None or (len(written) == 8 and written[0] < 0x80)


def fence_number(mark: int, now_ms: int) -> int:
    """Return the sequence id of a session's fence; those of its copies follow. Once a broker has stored it, it accepts
    no more copies of earlier sessions: each has stored its own fence before its first copy, and has sent less than
    `_ROOM` copies a second since. `mark` is the highest id that the broker has stored under the name, -1: none; as the
    number also grows with the clock, a broker that has forgotten the name does no harm either.
    """
    return max(now_ms // SECOND_MS, mark // _ROOM + 1) * _ROOM


def moved_from(text: str) -> tuple[EntryPosition, int] | None:
    """Read ``tw-from``: the original's position and publish time, UTC milliseconds. None: no shadow writes such."""
    place, _, published = text.partition(" ")
    position, published_ms = position_in(place), whole_number(published)
    return None if position is None or published_ms is None else (position, published_ms)


def position_in(text: str) -> EntryPosition | None:
    """Read a position as ``<ledger>:<entry>``; None: it is none."""
    ledger, _, entry = text.partition(":")
    at, number = whole_number(ledger), whole_number(entry)
    return None if at is None or number is None else EntryPosition(at, number)
