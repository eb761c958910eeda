"""The reference has a row for every key of a plan file, and an item for every public error."""

from __future__ import annotations

import re

from tests.support.checkout import ROOT
from timewheel import errors
from timewheel.core import planfile

PAGE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^- ((?:`[^`]*`(?:, )?| )+)", PAGE.partition("## Plan file")[2].partition("\n## ")[0], re.MULTILINE)


def test_every_key_of_a_plan_has_a_row_and_every_row_is_of_a_key() -> None:
    file = planfile._File.model_fields
    tables = {name: getattr(planfile, f"_{name.title()}").model_fields for name in ("tiered", "calendar", "cancel")}
    tables |= {"native": {}, "wheel": {"rings": None, **planfile._Ring.model_fields}}
    keys = {key for key in file if key not in tables}
    keys |= {f"[{table}] {key}" for table, fields in tables.items() for key in fields} | {"[native]"}
    keys = {key.removesuffix("_ms") for key in keys}

    said: set[str] = set()
    for row in ROWS:
        table = re.match(r"`\[(\w+)\]`", row)
        words = re.findall(r"\w+", row.replace(table[0], "", 1)) if table else re.findall(r"\w+", row)
        said |= {f"[{table[1]}] {word}" for word in words} or {table[0].strip("`")} if table else {*words}
    assert said == keys


def test_every_public_error_has_an_item() -> None:
    assert [name for name in errors.__all__ if not re.search(rf"^- `{name}`[: ]", PAGE, re.MULTILINE)] == []
