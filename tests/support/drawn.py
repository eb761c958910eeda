"""Pages with a generated part, between a begin line and an end line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

END = "<!-- end -->\n"


def between(page: str, begin: str) -> str:
    """Return the generated part."""
    return _parts(page, begin)[1]


def drawn(page: str, begin: str, content: str) -> str:
    """Return the page with this generated part."""
    before, _, after = _parts(page, begin)
    return before + begin + content + END + after


def draw(page: Path, contents: Mapping[str, str]) -> None:
    """Write these generated parts, by their begin lines, into the page."""
    text = page.read_text(encoding="utf-8")
    for begin, content in contents.items():
        text = drawn(text, begin, content)
    page.write_text(text, encoding="utf-8")


def outline(outcomes: Mapping[tuple[str, str], Mapping[str, set[str]]], order: Sequence[str]) -> list[str]:
    """Return the lines of a state machine: each state, and below it the next states and commands of its events.

    Events with the same outcomes share a line.

    Args:
        outcomes: By state and event: next states, each with its commands.
    """
    lines: list[str] = []
    for state in [one for one in order if any(one == of for of, _ in outcomes)]:
        events: dict[str, list[str]] = {}
        for event in sorted(event for of, event in outcomes if of == state):
            then = outcomes[state, event]
            said = "; ".join(f"**{one}** {', '.join(sorted(then[one]))}" for one in sorted(then, key=order.index))
            events.setdefault(said, []).append(event)
        lines += ["\n"] * bool(lines) + [f"*{state}*\n", "\n"]
        lines += [f"- {' / '.join(same)}: {said}\n" for said, same in events.items()]
    return lines


def _parts(page: str, begin: str) -> tuple[str, str, str]:
    before, found, rest = page.partition(begin)
    content, ended, after = rest.partition(END)
    assert found, f"the page has no line {begin!r}"
    assert ended, f"the page has no line {END!r} after {begin!r}"
    return before, content, after
