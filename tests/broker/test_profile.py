"""A real broker's profile, by its own settings."""

from __future__ import annotations

import json
import tomllib
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from tests.support.command_line import timewheel
from timewheel.broker.admin.client import AdminClient
from timewheel.cli.planning import ProfileOptions
from timewheel.core.broker_profile import BrokerProfile
from timewheel.inspect.profile import profile_of

if TYPE_CHECKING:
    from pathlib import Path

    from timewheel.testing import LocalPulsar


def asked(sampled: BrokerProfile | None = None, **options: Any) -> BrokerProfile:
    return ProfileOptions(**options).broker_profile(sampled)[0]


def test_a_profile_has_the_limits_that_the_broker_was_given(tuned: LocalPulsar, tmp_path: Path) -> None:
    with AdminClient(tuned.admin_url) as admin:
        profile = profile_of(admin)

    assert profile.name == tuned.version
    assert profile.gap_limit_ranges == 777
    assert profile.ack_format == "bitmap"
    assert profile.ledger_max_entries == 1_234
    assert profile.ledger_min_age_ms == 3 * 60_000
    assert profile.tick_ms == 250
    assert profile.write_quorum == 1, "as LocalPulsar sets it"
    assert profile.metadata_store_limit_ranges == 1_000, "the broker's own default"

    # The command writes what the planner's --profile takes.
    out = tmp_path / "broker.toml"
    done = timewheel("profile", "--admin-url", tuned.admin_url, "-o", out, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert BrokerProfile.from_mapping(json.loads(done.stdout)) == profile
    assert BrokerProfile.from_mapping(tomllib.loads(out.read_text())) == profile


def test_a_planners_command_asks_the_broker_that_the_variables_name(
    tuned: LocalPulsar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PULSAR_ADMIN_URL", raising=False)
    assert asked() == BrokerProfile.named("4.0")

    file = tmp_path / "connection.toml"
    file.write_text(f'[connection]\nadmin_url = "{tuned.admin_url}"\n')
    assert asked(connection=file).gap_limit_ranges == 777
    monkeypatch.setenv("PULSAR_ADMIN_URL", tuned.admin_url)
    assert asked().gap_limit_ranges == 777
    assert asked(profile="4.2") == BrokerProfile.named("4.2"), "what is said counts for more"
    sampled = BrokerProfile(name="sampled", gap_limit_ranges=5)
    assert asked(sampled) == sampled, "a sample knows its own broker"
    assert asked(sampled, admin_url=tuned.admin_url).gap_limit_ranges == 777


def test_an_answer_says_whose_limit_it_goes_by(
    tuned: LocalPulsar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PULSAR_ADMIN_URL", raising=False)
    file = tmp_path / "connection.toml"
    file.write_text(f'[connection]\nadmin_url = "{tuned.admin_url}"\n')
    console = Console(file=StringIO(), width=200)
    ProfileOptions().shown(console)
    ProfileOptions(profile="4.2").shown(console)
    ProfileOptions().shown(console, BrokerProfile(name="sampled", gap_limit_ranges=5))
    ProfileOptions(connection=file).shown(console)
    ProfileOptions(admin_url=tuned.admin_url).shown(console)
    monkeypatch.setenv("PULSAR_ADMIN_URL", tuned.admin_url)
    ProfileOptions(connection=file).shown(console)
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined] # a StringIO
        "LIMIT  10,000 gaps in a partition: the default of Pulsar 4.0 (--profile or --broker names yours)",
        "LIMIT  10,000 gaps in a partition: of --profile 4.2",
        "LIMIT  5 gaps in a partition: of the broker that the sample is from",
        f"LIMIT  777 gaps in a partition: read from {tuned.admin_url} (admin_url in {file})",
        f"LIMIT  777 gaps in a partition: read from {tuned.admin_url} (--broker)",
        f"LIMIT  777 gaps in a partition: read from {tuned.admin_url} (PULSAR_ADMIN_URL)",
    ]
