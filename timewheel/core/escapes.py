"""Escapes for names, ids, keys and reasons from other parties, so that no terminal, shell or spreadsheet executes them.

Brokers and clients accept nearly any character in a name. So every output of the process has its escapes here, and in
no other place.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # first characters of a cell that a spreadsheet computes
_SURROGATEESCAPE: Final = ("\udc80", "\udcff")
"""Range of the characters by which Python's text represents bytes of a file's name that are not UTF-8."""

_FOR_PLAN: Final = re.compile(r"(\btimewheel(?: [a-z][a-z-]*)+ )PLAN\b")


def visible(text: str) -> str:
    r"""Escape, as ``\x1b`` or ``\u202e``, all characters without a glyph of their own: control characters, line ends,
    terminal escapes, characters that change the direction of writing or have no width, and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def visible_lines(text: str) -> str:
    """Escape like `visible`, but keep line ends. Further lines are indented, so that none looks like a new message."""
    return "\n  ".join(map(visible, text.split("\n")))


def timewheel_command(*words: str) -> str:
    """Render a ``timewheel`` command for a shell."""
    return shell_line("timewheel", *words)


def with_plan_file(text: str, file: str) -> str:
    """Name a plan's file in each ``timewheel`` command of a text that has the placeholder ``PLAN``."""
    return _FOR_PLAN.sub(lambda found: found[1] + _shell_word(file), text) if file else text


def admin_options(reached_by: Sequence[str]) -> tuple[str, ...]:
    """Of the options by which a command reaches the cluster, with their values, those of the admin API alone."""
    pairs = zip(reached_by[::2], reached_by[1::2], strict=True)
    return tuple(word for pair in pairs if pair[0] != "--service-url" for word in pair)


def pulsar_admin(*words: object) -> str:
    """Render a ``pulsar-admin`` command for a shell."""
    return shell_line("pulsar-admin", *map(str, words))


def shell_line(*words: str) -> str:
    """Render a line that a shell splits into exactly these words, without running anything else.

    Unprintable characters are written as ``$'...'`` with octal escapes, as bash, zsh and ksh read them.
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_in_quotes, word)) + "'"


def _in_quotes(character: str) -> str:
    if character.isprintable() and character not in "'\\":
        return character
    first, last = _SURROGATEESCAPE
    as_bytes = character.encode("utf-8", "surrogateescape" if first <= character <= last else "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in as_bytes)


def spreadsheet_cell(value: object) -> object:
    """Convert a value for a CSV file: text that a spreadsheet would compute gets an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
