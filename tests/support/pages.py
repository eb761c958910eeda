"""Pages as a reader uses them: files to write, commands to type, and what is shown to come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from markdown_it import MarkdownIt

END = "^C"
"""As a terminal shows Ctrl-C: the command before it ran until then."""


class Block(NamedTuple):
    """One fenced block.

    Args:
        named: The last `name` in the text before it: of a file that the reader writes, if it is one.
        language: As the fence says.
        content: As it stands.
    """

    named: str
    language: str
    content: str


class Command(NamedTuple):
    """One line to type.

    Args:
        line: Without the prompt and without a comment.
        shown: The lines that the page shows to come back; ``...`` stands for any, and a number for any number.
        until_told: It runs until Ctrl-C.
        status: That it ends with: what a comment behind it says, as in ``# exit status 4``.
    """

    line: str
    shown: tuple[str, ...]
    until_told: bool
    status: int = 0


def blocks(page: str, *languages: str) -> Iterator[Block]:
    """The fenced blocks of these languages, in order; all, if none is named."""
    named = ""
    for token in MarkdownIt().parse(page):
        if token.type == "inline":
            names = re.findall(r"`([\w.]+)`", token.content)
            named = names[-1] if names else named
        if token.type == "fence" and (not languages or token.info in languages):
            yield Block(named, token.info, token.content)


def commands(content: str) -> list[Command]:
    """The commands of one block of a console."""
    found: list[Command] = []
    for line in re.sub(r"\\\n *", "", content).splitlines():  # a backslash goes on in the next line
        if line.startswith("$ "):
            words, _, comment = line.removeprefix("$ ").partition("  #")
            status = re.search(r"exit status (\d+)", comment)
            found.append(Command(words.strip(), (), until_told=False, status=int(status[1]) if status else 0))
        elif line == END:
            found[-1] = found[-1]._replace(until_told=True)
        elif found and not line.startswith("  "):  # what is set in goes on with a comment
            found[-1] = found[-1]._replace(shown=(*found[-1].shown, line))
    return found


def pattern(shown: tuple[str, ...]) -> re.Pattern[str]:
    """What a reader would call the same: numbers and times are his own, and ``...`` stands for anything."""
    text = "\n".join(shown)
    parts = (
        ".*" if part == "..." else r"\d+" if part.isdigit() else re.escape(part)
        for part in re.split(r"(\.\.\.|\d+)", text)
    )
    return re.compile("".join(parts), re.DOTALL)
