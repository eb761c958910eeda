"""What a broker forgets and pins: the numbers of one broker version or installation by which a plan is judged.

Kept pure, so that a profile can come from a name, a file or the runtime configuration of a live broker alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from timewheel.core.digits import whole_number
from timewheel.core.durations import HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.errors import ProfileError

__all__ = ["BROKER_SETTINGS", "DEFAULT_PROFILE", "PROFILE_NAMES", "AckFormat", "BrokerProfile"]

AckFormat = Literal["ranges", "bitmap"]

MIB_BYTES = 1024 * 1024

DEFAULT_PROFILE = "4.0"
"""Where nobody says which broker it is: the line with long-term support, whose limit on gaps is the lowest."""

BROKER_SETTINGS: Mapping[str, tuple[str, int]] = {
    "managedLedgerMaxUnackedRangesToPersist": ("gap_limit_ranges", 1),
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": ("metadata_store_limit_ranges", 1),
    "managedLedgerMaxEntriesPerLedger": ("ledger_max_entries", 1),
    "managedLedgerMaxSizePerLedgerMbytes": ("ledger_max_bytes", MIB_BYTES),
    "managedLedgerMinLedgerRolloverTimeMinutes": ("ledger_min_age_ms", MINUTE_MS),
    "managedLedgerMaxLedgerRolloverTimeMinutes": ("ledger_max_age_ms", MINUTE_MS),
    "delayedDeliveryTickTimeMillis": ("tick_ms", 1),
    "nettyMaxFrameSizeBytes": ("frame_limit_bytes", 1),
    "managedLedgerDefaultWriteQuorum": ("write_quorum", 1),
}
"""Settings of ``GET /admin/v2/brokers/configuration/runtime`` -> (our field, what one of theirs is in our unit)."""

METADATA_STORE_LIMIT_BEFORE = "managedLedgerMaxUnackedRangesToPersistInZooKeeper"
"""The name of that setting up to 2.10. Newer brokers know it, too, and go by it where it is above 0."""
PERSIST_AS_BITMAP = "managedLedgerPersistIndividualAckAsLongArray"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProfile:
    """One broker's limits and costs, per partition topic and subscription unless said otherwise.

    Args:
        name: What to call it in a report.
        gap_limit_ranges: ``managedLedgerMaxUnackedRangesToPersist``: what is past it is forgotten by an unload.
            10,000 through 4.2, 200,000 in 5.0 (apache/pulsar#25992).
        ack_format: How a cursor's individual acks are persisted: ``managedLedgerPersistIndividualAckAsLongArray``, off
            in 4.0, on since 4.1.
        keeps_crossing_ledger: bitmap: whether the ledger whose acknowledged entries cross the limit is still kept.
            4.x compares the sum **before** a ledger with the limit (``getAndAdd`` in
            ``OpenLongPairRangeSet.toRanges``, and so on brokers of 4.0.7 and 4.2.4); the code towards 5.0 the sum
            with it (``addAndGet``), and falls back to ranges if that leaves nothing.
        metadata_store_limit_ranges: A closing cursor with at most this many ranges writes them to the metadata store
            as ranges, whatever the format (``shouldPersistUnackRangesToLedger``).
        ledger_max_entries: A ledger of the topic is full with this many entries, if it is at least
            ``ledger_min_age_ms`` old.
        ledger_max_bytes: The same by size.
        ledger_min_age_ms: Full ledgers younger than this are written on.
        ledger_max_age_ms: Older ledgers are closed by the next entry.
        tick_ms: ``delayedDeliveryTickTimeMillis``.
        silence_us_per_pending: Microseconds of silence after an unload for each entry pending in a due partition
            (79-97 measured on 4.0.7 and 4.2.4, broker-facts: silence-after-unload).
        bytes_per_range: Of the persisted cursor in range format: 200,000 of them are taken to fill its 5 MB
            (apache/pulsar#25992). Encoded (``MLDataFormats.MessageRange``) one takes 10 bytes and twice the varints of
            ledger and entry: 26 where ledger ids are beyond 2^28 and entries beyond 2^14, 18 on a young broker.
        frame_limit_bytes: A persisted cursor beyond it cannot be written at all (apache/pulsar#25985).
        index_bytes_per_pending: Broker memory of the delayed index for each pending entry; a least value.
        ghost_bytes: Broker memory for each message that a shadow has acknowledged before it is due: the index keeps it
            until then, or until an unload (27 measured on 4.0.7; on 4.2.4, which keeps a bitmap for each half-second
            and ledger, 560 where hardly two are due in the same half-second, and 5 where fifty are).
        relay_hops_per_second: Unbatched hops of one relay process (13,000-20,000 measured on one machine).
        write_quorum: Copies of each entry.
        entry_overhead_bytes: Metadata, envelope and checksum of an entry besides its payload; an estimate.

    Raises:
        ProfileError: A number is out of its range; names the field.
    """

    name: str
    gap_limit_ranges: int = 10_000
    ack_format: AckFormat = "ranges"
    keeps_crossing_ledger: bool = True
    metadata_store_limit_ranges: int = 1_000
    ledger_max_entries: int = 50_000
    ledger_max_bytes: int = 2_048 * MIB_BYTES
    ledger_min_age_ms: int = 10 * MINUTE_MS
    ledger_max_age_ms: int = 4 * HOUR_MS
    tick_ms: int = SECOND_MS
    silence_us_per_pending: float = 90.0
    bytes_per_range: int = 26
    frame_limit_bytes: int = 5 * MIB_BYTES
    index_bytes_per_pending: int = 24
    ghost_bytes: int = 27
    relay_hops_per_second: int = 13_000
    write_quorum: int = 2
    entry_overhead_bytes: int = 150

    def __post_init__(self) -> None:
        if self.ack_format not in ("ranges", "bitmap"):
            raise ProfileError("ack_format", self.ack_format, "ranges or bitmap")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("name", "ack_format", "keeps_crossing_ledger"):
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if not is_number or not value >= least or value == float("inf"):
                raise ProfileError(field.name, value, f"a number from {least} up")
            if field.name != "silence_us_per_pending" and not isinstance(value, int):
                raise ProfileError(field.name, value, "a whole number")
        if not self.name:
            raise ProfileError("name", self.name, "a text that is not empty")
        if not isinstance(self.keeps_crossing_ledger, bool):
            raise ProfileError("keeps_crossing_ledger", self.keeps_crossing_ledger, "true or false")

    @classmethod
    def named(cls, name: str) -> BrokerProfile:
        """The defaults of a version: one of `PROFILE_NAMES`.

        Raises:
            ProfileError: There is no such name.
        """
        match name:
            case "4.0":
                return cls(name=name)
            case "4.2":
                return cls(name=name, ack_format="bitmap", ghost_bytes=560)
            case "5.0":
                return cls(
                    name=name,
                    ack_format="bitmap",
                    keeps_crossing_ledger=False,
                    gap_limit_ranges=200_000,
                    ghost_bytes=560,
                )
        raise ProfileError("name", name, "one of " + ", ".join(PROFILE_NAMES))

    @classmethod
    def from_mapping(cls, facts: Mapping[str, object]) -> BrokerProfile:
        """From the fields of this class by name, as a file holds them.

        Args:
            facts: Any of the fields; ``base`` names the version whose defaults fill the others (`DEFAULT_PROFILE` if
                absent).

        Raises:
            ProfileError: A field is unknown or out of its range.
        """
        base = cls.named(str(facts.get("base", DEFAULT_PROFILE)))
        known = {field.name for field in fields(cls)}
        values: dict[str, object] = {name: getattr(base, name) for name in known}
        for key, value in facts.items():
            if key != "base" and key not in known:
                raise ProfileError(key, value, "no such field of a broker profile")
        values |= {key: value for key, value in facts.items() if key != "base"}
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks each value's type and range

    @classmethod
    def from_broker_settings(cls, settings: Mapping[str, object], version: str = "") -> BrokerProfile:
        """From a live broker's runtime configuration.

        Args:
            settings: The answer of ``GET /admin/v2/brokers/configuration/runtime``: texts by setting. Settings that
                are absent keep the version's default.
            version: The broker's version, as ``4.2.4``; empty: unknown, taken as the 4.2 line.

        Raises:
            ProfileError: A setting that decides is not a number.
        """
        base = cls.named(_line(version))
        facts: dict[str, object] = {field.name: getattr(base, field.name) for field in fields(cls)}
        facts["name"] = version or "live broker"
        for setting, (field_name, unit) in BROKER_SETTINGS.items():
            if setting in settings:
                facts[field_name] = _whole(setting, settings[setting]) * unit
        if METADATA_STORE_LIMIT_BEFORE in settings:
            limit = _whole(METADATA_STORE_LIMIT_BEFORE, settings[METADATA_STORE_LIMIT_BEFORE])
            if limit > 0:
                facts["metadata_store_limit_ranges"] = limit
        if PERSIST_AS_BITMAP in settings:
            facts["ack_format"] = "bitmap" if str(settings[PERSIST_AS_BITMAP]).lower() == "true" else "ranges"
        return cls(**facts)  # type: ignore[arg-type]  # as above


PROFILE_NAMES = ("4.0", "4.2", "5.0")
"""Versions whose defaults are known."""

_MAY_BE_ZERO = frozenset(
    {"gap_limit_ranges", "metadata_store_limit_ranges", "ledger_min_age_ms", "entry_overhead_bytes"}
)


def _whole(setting: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ProfileError(setting, value, "a whole number") from None


def _line(version: str) -> str:
    major, _, rest = version.partition(".")
    number = whole_number(major)
    if number is None:
        return "4.2"
    if number >= 5:
        return "5.0"
    return "4.0" if number < 4 or rest.partition(".")[0] == "0" else "4.2"
