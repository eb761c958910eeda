"""Pages as a reader uses them: files to write, commands to type, and their expected output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from markdown_it import MarkdownIt

END = "^C"  # Ctrl-C as a terminal shows it: the command before it ran until then


class Block(NamedTuple):
    """A fenced block."""

    named: str  # the last `name` in the text before it: the name of the file, if the reader writes the block to a file
    language: str
    content: str


class Command(NamedTuple):
    """A line to type."""

    line: str  # without the prompt and without a comment
    shown: tuple[str, ...]  # the output on the page; ``...`` stands for any text, and a number for any number
    until_reported: bool
    status: int = 0  # its exit status, from a comment behind it, as in ``# exit status 4``


def blocks(page: str, *languages: str) -> Iterator[Block]:
    """Yield the fenced blocks of these languages, in order; all blocks, if no language is named."""
    named = ""
    for token in MarkdownIt().parse(page):
        if token.type == "inline":
            names = re.findall(r"`([\w.]+)`", token.content)
            named = names[-1] if names else named
        if token.type == "fence" and (not languages or token.info in languages):
            yield Block(named, token.info, token.content)


def commands(content: str) -> list[Command]:
    """Return the commands of a console block."""
    found: list[Command] = []
    for line in re.sub(r"\\\n *", "", content).splitlines():  # a backslash continues in the next line
        if line.startswith("$ "):
            words, _, comment = line.removeprefix("$ ").partition("  #")
            status = re.search(r"exit status (\d+)", comment)
            found.append(Command(words.strip(), (), until_reported=False, status=int(status[1]) if status else 0))
        elif line == END:
            found[-1] = found[-1]._replace(until_reported=True)
        elif found and not line.startswith("  "):  # an indented line continues a comment
            found[-1] = found[-1]._replace(shown=(*found[-1].shown, line))
    return found


def typed(page: str) -> list[str]:
    """Return the lines of all commands of a page."""
    return [command.line for block in blocks(page, "console") for command in commands(block.content)]


def pattern(shown: tuple[str, ...]) -> re.Pattern[str]:
    """Match equivalent output: numbers and times may differ, and ``...`` stands for any text."""
    text = "\n".join(shown)
    parts = (
        ".*" if part == "..." else r"\d+" if part.isdigit() else re.escape(part)
        for part in re.split(r"(\.\.\.|\d+)", text)
    )
    return re.compile("".join(parts), re.DOTALL)
