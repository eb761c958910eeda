"""The page on connections: its files are ones, and its table has every key and its variable."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from tests.support.checkout import ROOT
from tests.support.pages import blocks
from timewheel.core.connection import Connection, OAuth2
from timewheel.core.connection_file import parse_connection

PAGE = (ROOT / "docs" / "how-to" / "connect-securely.md").read_text(encoding="utf-8")


def test_the_files_that_it_shows_are_connections() -> None:
    first, second = (parse_connection(block.content, Path("/etc")) for block in blocks(PAGE, "toml"))
    assert first.token_file == Path("/etc/token")
    assert second.oauth2 is not None
    assert second.oauth2.audience == "urn:pulsar"


def test_its_table_has_every_key_and_its_variable() -> None:
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| `") and "PULSAR_" in line]
    told = {key.strip(" `"): variables for key, variables in rows}
    assert list(told) == [field.name for field in fields(Connection) if field.compare]
    plain = {name for name in told if f"PULSAR_{name.upper()}`" in told[name]}
    assert plain == told.keys() - {"oauth2"}
    assert all(f"_{field.name.upper()}`" in told["oauth2"] for field in fields(OAuth2))
