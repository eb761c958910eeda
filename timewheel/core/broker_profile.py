"""Broker profiles: limits and costs of one broker version or installation, by which a plan is judged.

The module is pure, so that a profile can come from a name, a file or the runtime configuration of a live broker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from timewheel.core.durations import HOUR_MS, MINUTE_MS, SECOND_MS, whole_number
from timewheel.core.errors import ProfileError, did_you_mean

AckFormat = Literal["ranges", "bitmap"]

MIB_BYTES = 1024 * 1024

DEFAULT_PROFILE = "4.0"
"""Used if no broker is named: the line with long-term support, whose limit on gaps is the lowest."""

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
"""Settings of ``GET /admin/v2/brokers/configuration/runtime`` -> (profile field, factor from Pulsar's unit to ours)."""

METADATA_STORE_LIMIT_BEFORE = "managedLedgerMaxUnackedRangesToPersistInZooKeeper"
"""Name of ``managedLedgerMaxUnackedRangesToPersistInMetadataStore`` up to 2.10. Newer brokers still read the old name,
and prefer it if its value is above 0."""
PERSIST_AS_BITMAP = "managedLedgerPersistIndividualAckAsLongArray"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProfile:
    """Limits and costs of one broker, per partition topic and subscription unless another scope is named.

    Args:
        name: Name of the profile in reports.
        gap_limit_ranges: ``managedLedgerMaxUnackedRangesToPersist``: an unload forgets all ranges beyond this limit.
            10,000 through 4.2, 200,000 in 5.0 (apache/pulsar#25992).
        ack_format: Format in which a cursor persists individual acks, by
            ``managedLedgerPersistIndividualAckAsLongArray``: ranges (off) in 4.0, bitmap (on) since 4.1.
        keeps_crossing_ledger: bitmap: True if the ledger whose acknowledged entries cross the limit is still kept.
            4.x compares the limit with the sum **before** a ledger (``getAndAdd`` in
            ``OpenLongPairRangeSet.toRanges``, observed on 4.0.7 and 4.2.4); the code towards 5.0 compares it with
            the sum that includes the ledger (``addAndGet``), and falls back to ranges if no ledger is left.
        metadata_store_limit_ranges: A closing cursor with at most this many ranges writes them to the metadata store
            as ranges, whatever the format (``shouldPersistUnackRangesToLedger``).
        ledger_max_entries: Entries with which a ledger of the topic is full, if it is at least
            ``ledger_min_age_ms`` old.
        ledger_max_bytes: Bytes with which a ledger is full, under the same condition.
        ledger_min_age_ms: The broker goes on writing to full ledgers that are younger than this.
        ledger_max_age_ms: The next entry closes a ledger that is older than this.
        tick_ms: ``delayedDeliveryTickTimeMillis``.
        silence_us_per_pending: Microseconds of silence after an unload for each entry pending in a due partition
            (79-97 measured on 4.0.7 and 4.2.4, broker-facts: silence-after-unload).
        bytes_per_range: Size of one range in a cursor persisted as ranges: 200,000 ranges are taken to fill its 5 MB
            (apache/pulsar#25992). An encoded range (``MLDataFormats.MessageRange``) takes 10 bytes and twice the
            varints of ledger and entry: 26 bytes if ledger ids are beyond 2^28 and entries beyond 2^14, 18 on a
            young broker.
        frame_limit_bytes: A persisted cursor beyond this size cannot be written at all (apache/pulsar#25985).
        index_bytes_per_pending: Broker memory of the delayed index for each pending entry; a lower bound.
        stale_index_bytes: Broker memory for each message that a shadow has acknowledged before its due time: the index
            keeps the entry until then, or until an unload (27 measured on 4.0.7; 4.2.4 keeps a bitmap for each
            half-second and ledger: 560 if hardly two messages are due in the same half-second, 5 if fifty are).
        relay_hops_per_second: Unbatched hops of one relay process (13,000-20,000 measured on one machine).
        write_quorum: Copies of each entry.
        entry_overhead_bytes: Metadata, envelope and checksum of an entry in addition to its payload; an estimate.

    Raises:
        ProfileError: A number is out of its range. The error names the field.
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
    stale_index_bytes: int = 27
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

    def full_ledger_entries(self, entry_bytes: float) -> int:
        """Return the entries with which a ledger is full, by number or by size."""
        return max(min(self.ledger_max_entries, math.ceil(self.ledger_max_bytes / max(entry_bytes, 1.0))), 1)

    def compared_entries(self, before: Any, own: Any) -> Any:
        """bitmap: return the entries that the broker compares with `gap_limit_ranges` to decide whether a ledger's
        acknowledgements are persisted, from the acknowledged entries of all ledgers before it and its own: numbers, or
        arrays of numbers.
        """
        return before if self.keeps_crossing_ledger else before + own

    @classmethod
    def named(cls, name: str) -> BrokerProfile:
        """Return the defaults of a version.

        Args:
            name: A name in `PROFILE_NAMES`.

        Raises:
            ProfileError: No version has this name.
        """
        if name not in _VERSIONS:
            raise ProfileError("name", name, "one of " + ", ".join(PROFILE_NAMES))
        return cls(name=name, **_VERSIONS[name])

    @classmethod
    def from_mapping(cls, facts: Mapping[str, object]) -> BrokerProfile:
        """Build a profile from the fields of this class by name, as a file holds them.

        Args:
            facts: Any of the fields. ``base`` names the version whose defaults fill the other fields (`DEFAULT_PROFILE`
                if absent).

        Raises:
            ProfileError: A field is unknown or out of its range.
        """
        base = cls.named(str(facts.get("base", DEFAULT_PROFILE)))
        given: dict[str, Any] = {key: value for key, value in facts.items() if key != "base"}
        known = {field.name for field in fields(cls)}
        for key, value in given.items():
            if key not in known:
                raise ProfileError(key, value, f"no such field of a broker profile{did_you_mean(key, known)}")
        return replace(base, **given)

    @classmethod
    def from_broker_settings(cls, settings: Mapping[str, object], version: str = "") -> BrokerProfile:
        """Build a profile from a live broker's runtime configuration.

        Args:
            settings: The answer of ``GET /admin/v2/brokers/configuration/runtime``: texts by setting. An absent setting
                keeps the version's default.
            version: The broker's version, such as ``4.2.4``. An empty text means an unknown version, treated as 4.2.

        Raises:
            ProfileError: A setting that a profile uses is not a number.
        """
        facts: dict[str, Any] = {"name": version or "live broker"}
        for setting, (field_name, unit) in BROKER_SETTINGS.items():
            if setting in settings:
                facts[field_name] = _whole(setting, settings[setting]) * unit
        if METADATA_STORE_LIMIT_BEFORE in settings:
            limit = _whole(METADATA_STORE_LIMIT_BEFORE, settings[METADATA_STORE_LIMIT_BEFORE])
            if limit > 0:
                facts["metadata_store_limit_ranges"] = limit
        if PERSIST_AS_BITMAP in settings:
            facts["ack_format"] = "bitmap" if str(settings[PERSIST_AS_BITMAP]).lower() == "true" else "ranges"
        return replace(cls.named(_line(version)), **facts)


_VERSIONS: Mapping[str, Mapping[str, Any]] = {
    "4.0": {},
    "4.2": {"ack_format": "bitmap", "stale_index_bytes": 560},
    "5.0": {
        "ack_format": "bitmap",
        "keeps_crossing_ledger": False,
        "gap_limit_ranges": 200_000,
        "stale_index_bytes": 560,
    },
}
PROFILE_NAMES = tuple(_VERSIONS)  # versions with known defaults

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
