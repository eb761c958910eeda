"""Pages with a generated part, between a begin line and an end line."""

from __future__ import annotations

END = "<!-- end -->\n"


def between(page: str, begin: str) -> str:
    """Return the generated part."""
    return _parts(page, begin)[1]


def drawn(page: str, begin: str, content: str) -> str:
    """Return the page with this generated part."""
    before, _, after = _parts(page, begin)
    return before + begin + content + END + after


def _parts(page: str, begin: str) -> tuple[str, str, str]:
    before, found, rest = page.partition(begin)
    content, ended, after = rest.partition(END)
    assert found, f"the page has no line {begin!r}"
    assert ended, f"the page has no line {END!r} after {begin!r}"
    return before, content, after
