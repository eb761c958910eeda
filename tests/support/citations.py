"""Finds citations in a text: entries of docs/broker-facts.md, tests, modules and pages, whether or not they exist.

The functions take and return strings, so that a fault can be seeded without a file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

_NAME = "broker" + "-facts"  # in two parts, so that this line is no citation
_SLUG = r"[a-z0-9]+(?:-[a-z0-9]+)+"
_GAP = r"[\s#]*"  # a citation may continue in the next line of a comment
_CITATION = re.compile(rf"{_NAME}:{_GAP}({_SLUG}(?:,{_GAP}{_SLUG}(?=[,)]))*)")
_MENTION = re.compile(rf"{_NAME}(?!\.md\b)")
_HEADING = re.compile(r"^(#+) +(.+?) *$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_NODE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PAGE = re.compile(r"(?<![\w*}/.-])[\w.][\w./-]*\.md\b")


class Entry(NamedTuple):
    """An entry of the page."""

    slug: str
    text: str


class NamedTest(NamedTuple):
    """A test that a text names."""

    name: str
    file: str  # path from the root


def slug_of(heading: str) -> str:
    """Return the anchor that GitHub generates for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: str) -> set[str]:
    """Return the anchors of all headings of a Markdown text."""
    return {slug_of(heading) for _, heading in _HEADING.findall(_FENCE.sub("", page))}


def entries(page: str) -> list[Entry]:
    """Return the headings of the third level, in order, each with its text up to the next heading."""
    found = []
    headings = list(_HEADING.finditer(page))
    for number, heading in enumerate(headings):
        end = headings[number + 1].start() if number + 1 < len(headings) else len(page)
        if heading[1] == "###":
            found.append(Entry(slug_of(heading[2]), page[heading.end() : end]))
    return found


def citations(text: str) -> list[str]:
    """Return the slugs of all citations in a text: the page's name, a colon, and slugs separated by commas."""
    return [slug for match in _CITATION.finditer(text) for slug in re.findall(_SLUG, match[1])]


def unreadable_citations(text: str) -> list[str]:
    """Return mentions of the page that are neither its file's name nor a citation: no check would cover them."""
    told = {match.start() for match in _CITATION.finditer(text)}
    return [text[match.start() :][:40] for match in _MENTION.finditer(text) if match.start() not in told]


def named_tests(text: str) -> list[NamedTest]:
    """Return tests in pytest's form, "`tests/...py::test_one`"."""
    return [NamedTest(name, file) for file, name in _NODE.findall(text)]


def loose_tests(text: str) -> list[str]:
    """Return names of tests without a file."""
    return re.findall(r"`(test_\w+)`", text)


def modules(text: str) -> list[str]:
    """Return modules of timewheel, in backticks."""
    return re.findall(r"`(timewheel(?:\.\w+)+)`", text)


def missing_pages(text: str, tracked: Collection[str]) -> list[str]:
    """Return words that name a Markdown page, in any folder, if no tracked path ends with them."""
    named = (re.sub(r"^(?:\.\.?/)+", "", word) for word in _PAGE.findall(text))
    return [word for word in named if not any(path == word or path.endswith(f"/{word}") for path in tracked)]


def dangling_links(page: str, pages: Mapping[str, str]) -> list[str]:
    """Return links of a Markdown page to anchors that do not exist.

    Args:
        page: Path of the page, from the root.
    """
    found = []
    for link in _LINK.findall(_FENCE.sub("", pages[page])):
        file, has_anchor, anchor = link.partition("#")
        if not has_anchor or "://" in file:
            continue
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), file)) if file else page
        if target not in pages or anchor not in anchors(pages[target]):
            found.append(f"{page}: {link}")
    return found
