"""The line of a text that is no TOML, and the same line as it was probably meant."""

from __future__ import annotations

import json
import re
import tomllib

QUOTING = "text and durations are quoted, true and false are lower case"
"""The rule that a mended line keeps."""
LONGEST_LINE_CHARS = 200
"""A longer line is not repeated in an error."""

_WORD = re.compile(r""""[^"]*"|'[^']*'|\#.*|[^\s,\[\]{}="'\#]++(?!\s*=)""")
"""A text in quotes, a comment, or a word that is no key."""
_TYPED_QUOTES = "\u201c\u201d\u201e\u2018\u2019\u201a"
"""Quotes of word processors, which TOML does not know."""


def line_of(error: Exception) -> int:
    """Return the number of the line that TOML's reader complains about; 0: the end of the text, or none."""
    found = re.search(r"\(at line (\d+), column \d+\)$", str(error))
    return int(found[1]) if found else 0


def lines_of(text: str) -> list[str]:
    """Return the lines of a text as TOML counts them."""
    return text.replace("\r\n", "\n").split("\n")


def mended_line(text: str, error: Exception) -> str:
    """Return the line of the complaint with quotes around its words; empty: it would be no better.

    Args:
        text: The text that is no TOML.
        error: The complaint of TOML's reader.
    """
    at, lines = line_of(error), lines_of(text)
    if not at:
        return ""
    line = lines[at - 1].strip()
    mended = _WORD.sub(lambda found: _as_toml(found[0]), line)
    if mended == line or len(mended) > LONGEST_LINE_CHARS:
        return ""
    try:
        tomllib.loads("\n".join((*lines[: at - 1], mended, *lines[at:])))
    except (ValueError, RecursionError) as next_error:
        return "" if 0 < line_of(next_error) <= at else mended
    return mended


def _as_toml(word: str) -> str:
    if word[0] in "\"'#":
        return word
    if word.lower() in {"true", "false"}:
        return word.lower()
    try:
        tomllib.loads(f"value = {word}")
    except ValueError:
        return json.dumps(word.strip(_TYPED_QUOTES), ensure_ascii=False)
    return word
