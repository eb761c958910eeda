"""Logs with a line of JSON for each look or check, from which growth over time is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

FORMAT = 1

T = TypeVar("T")
Refusal = Callable[[str, int, str], Exception]  # makes the error: path, line number (0 for the file itself), problem


def read_lines(path: Path, parse: Callable[[Mapping[str, Any]], T], noun: str, refusal: Refusal) -> Iterator[T]:
    """Yield what was parsed of each line; nothing if the file does not exist.

    Args:
        path: The file.
        parse: Converts a line; KeyError, TypeError and ValueError mean that timewheel did not write it.
        noun: What a line stands for.
        refusal: Makes the error to raise if the file cannot be read, or contains something else.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield _parsed(text, parse, noun, partial(refusal, str(path), number))
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(str(path), 0, str(error)) from error


def _parsed(text: str, parse: Callable[[Mapping[str, Any]], T], noun: str, refusal: Callable[[str], Exception]) -> T:
    try:
        found = json.loads(text)
        version = found["format"]
        if version == FORMAT:
            return parse(found)
    except (KeyError, TypeError, ValueError) as error:
        raise refusal(f"not a {noun} that timewheel wrote ({error!r})") from error
    raise refusal(f"it is of format {version}, not {FORMAT}")


def append_lines(path: Path, lines: Iterable[Mapping[str, Any]], refusal: Refusal) -> None:
    """Append lines; creates the file, but no folder."""
    text = "".join(json.dumps({"format": FORMAT, **line}) + "\n" for line in lines)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise refusal(str(path), 0, str(error)) from error
