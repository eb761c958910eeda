"""Names, ids, keys and reasons that others chose, for terminals, shells and spreadsheets: shown, never executed.

Brokers and clients take nearly any character in a name. So each way out of the process has its escapes here, and
nowhere else.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

__all__ = [
    "admin_options",
    "pulsar_admin",
    "shell_line",
    "spreadsheet_cell",
    "timewheel_command",
    "visible",
    "visible_lines",
]

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet computes."""
_SURROGATEESCAPE: Final = ("\udc80", "\udcff")
"""In Python's text, bytes of a file's name that are no UTF-8."""


def visible(text: str) -> str:
    r"""Escape, as ``\x1b`` or ``\u202e``, all that has no picture of its own: control characters, line ends, terminals'
    escapes, characters that turn the direction of writing or have no width, and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def visible_lines(text: str) -> str:
    """As `visible`, but line ends stay; a further line is indented, so that it cannot pass for a message of its own."""
    return "\n  ".join(map(visible, text.split("\n")))


def timewheel_command(*words: str) -> str:
    """A command of timewheel's, as a shell takes it."""
    return shell_line("timewheel", *words)


def admin_options(reached_by: Sequence[str]) -> tuple[str, ...]:
    """Of the options by which a command reaches the cluster, with their values, those of the admin API alone."""
    pairs = zip(reached_by[::2], reached_by[1::2], strict=True)
    return tuple(word for pair in pairs if pair[0] != "--service-url" for word in pair)


def pulsar_admin(*words: object) -> str:
    """A command of Pulsar's own tool, as a shell takes it."""
    return shell_line("pulsar-admin", *map(str, words))


def shell_line(*words: str) -> str:
    """One line that a shell splits into just these words, and runs nothing else.

    What cannot be seen is written as ``$'...'`` with octal escapes: bash, zsh and ksh take that.
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(letter if _is_plain(letter) else _octal(letter) for letter in word) + "'"


def _is_plain(letter: str) -> bool:
    return letter.isprintable() and letter not in "'\\"


def _octal(letter: str) -> str:
    first, last = _SURROGATEESCAPE
    as_bytes = letter.encode("utf-8", "surrogateescape" if first <= letter <= last else "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in as_bytes)


def spreadsheet_cell(value: object) -> object:
    """A value for a CSV file; text that a spreadsheet would compute gets an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
