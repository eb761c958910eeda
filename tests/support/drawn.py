"""Pages of which a part is drawn by a program: between a line that begins it and one that ends it."""

from __future__ import annotations

END = "<!-- end -->\n"


def between(page: str, begin: str) -> str:
    """What stands there."""
    return _parts(page, begin)[1]


def drawn(page: str, begin: str, content: str) -> str:
    """The page with this content there."""
    before, _, after = _parts(page, begin)
    return before + begin + content + END + after


def _parts(page: str, begin: str) -> tuple[str, str, str]:
    before, found, rest = page.partition(begin)
    content, ended, after = rest.partition(END)
    assert found, f"the page has no line {begin!r}"
    assert ended, f"the page has no line {END!r} after {begin!r}"
    return before, content, after
