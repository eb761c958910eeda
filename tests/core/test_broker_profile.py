"""Broker profiles: by name, from a mapping, from a live broker's settings."""

from __future__ import annotations

import pytest

from timewheel.core.broker_profile import DEFAULT_PROFILE, PROFILE_NAMES, BrokerProfile
from timewheel.core.errors import ProfileError


def test_names_give_the_defaults_of_their_versions() -> None:
    found = {name: BrokerProfile.named(name) for name in PROFILE_NAMES}
    assert {name: profile.gap_limit_ranges for name, profile in found.items()} == {
        "4.0": 10_000,
        "4.2": 10_000,
        "5.0": 200_000,
    }
    assert [found[name].ack_format for name in PROFILE_NAMES] == ["ranges", "bitmap", "bitmap"]
    assert [found[name].keeps_crossing_ledger for name in ("4.2", "5.0")] == [True, False]


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ProfileError, match=r"one of 4\.0, 4\.2, 5\.0"):
        BrokerProfile.named("3.0")


def test_a_mapping_changes_some_fields_of_a_version() -> None:
    profile = BrokerProfile.from_mapping({"base": "4.0", "name": "ours", "gap_limit_ranges": 500})
    assert (profile.name, profile.gap_limit_ranges, profile.ack_format) == ("ours", 500, "ranges")


def test_a_mapping_without_a_version_is_the_default_one_of_the_commands() -> None:
    assert BrokerProfile.from_mapping({"name": DEFAULT_PROFILE}) == BrokerProfile.named(DEFAULT_PROFILE)


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"gaps": 5}, "gaps"),
        ({"gap_limit_ranges": -1}, "gap_limit_ranges"),
        ({"gap_limit_ranges": 1.5}, "gap_limit_ranges"),
        ({"gap_limit_ranges": True}, "gap_limit_ranges"),
        ({"write_quorum": 0}, "write_quorum"),
        ({"silence_us_per_pending": float("nan")}, "silence_us_per_pending"),
        ({"ack_format": "roaring"}, "ack_format"),
        ({"keeps_crossing_ledger": 1}, "keeps_crossing_ledger"),
        ({"name": ""}, "name"),
    ],
)
def test_what_no_broker_could_have_is_refused_by_its_field(facts: dict[str, object], field: str) -> None:
    with pytest.raises(ProfileError) as refused:
        BrokerProfile.from_mapping(facts)
    assert refused.value.field == field


def test_a_live_brokers_settings_are_texts_in_its_own_units() -> None:
    profile = BrokerProfile.from_broker_settings(
        {
            "managedLedgerMaxUnackedRangesToPersist": "1000",
            "managedLedgerPersistIndividualAckAsLongArray": "false",
            "managedLedgerMaxSizePerLedgerMbytes": "2",
            "managedLedgerMinLedgerRolloverTimeMinutes": "0",
            "managedLedgerMaxLedgerRolloverTimeMinutes": "240",
            "delayedDeliveryTickTimeMillis": "250",
            "somethingElse": "yes",
        },
        version="4.2.4",
    )
    assert profile.name == "4.2.4"
    assert profile.ack_format == "ranges"
    assert profile.gap_limit_ranges == 1_000
    assert profile.ledger_max_bytes == 2 * 1024 * 1024
    assert (profile.ledger_min_age_ms, profile.ledger_max_age_ms) == (0, 240 * 60_000)
    assert profile.tick_ms == 250
    assert profile.ledger_max_entries == 50_000  # not among the settings: the version's default


@pytest.mark.parametrize(
    ("version", "ack_format", "limit"),
    [
        ("4.0.7", "ranges", 10_000),
        ("3.0.9", "ranges", 10_000),
        ("4.1.0", "bitmap", 10_000),
        ("5.0.1", "bitmap", 200_000),
        ("", "bitmap", 10_000),
    ],
)
def test_a_version_fills_what_the_settings_leave_out(version: str, ack_format: str, limit: int) -> None:
    profile = BrokerProfile.from_broker_settings({}, version)
    assert (profile.ack_format, profile.gap_limit_ranges) == (ack_format, limit)


def test_a_setting_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(ProfileError, match="managedLedgerMaxEntriesPerLedger"):
        BrokerProfile.from_broker_settings({"managedLedgerMaxEntriesPerLedger": "many"})
