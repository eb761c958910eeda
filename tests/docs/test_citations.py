"""Every reason that the repository cites can be looked up in the repository; a citation that leads nowhere is found.

The faults below are put together from pieces, so that this file does not find itself.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.support.checkout import ROOT, files, package_folders
from tests.support.citations import (
    NamedTest,
    anchors,
    citations,
    dangling_links,
    entries,
    loose_tests,
    missing_pages,
    modules,
    named_tests,
    slug_of,
    unreadable_citations,
)

PAGE = "docs/broker-facts.md"
CITE = "broker" + "-facts"
OTHER = "plans.m" + "d"
THIS = "page.m" + "d"


@cache
def texts() -> dict[str, str]:
    """Every file of the project that is text, by its path from the root."""
    found = {str(path): (ROOT / path).read_bytes() for path in files() if not (ROOT / path).is_symlink()}
    return {path: data.decode(errors="replace") for path, data in found.items() if b"\0" not in data}


def page() -> str:
    return texts()[PAGE]


def pages() -> dict[str, str]:
    return {path: text for path, text in texts().items() if path.endswith(".md")}


def module_names() -> set[str]:
    """All that can be imported from timewheel, from its files."""
    found = set()
    for package, folder in package_folders().items():
        found.add(package)
        found |= {f"{package}.{path.stem}" for path in files() if path.parent == folder and path.suffix == ".py"}
    return found


# ------------------------------------------------------------------------------------------------------ the repository


def test_every_citation_leads_to_an_entry() -> None:
    known = {entry.slug for entry in entries(page())}
    cited = {(path, slug) for path, text in texts().items() for slug in citations(text)}

    assert len(known) > 30
    assert len(cited) > 50, "almost nothing is cited: the search is broken"
    assert sorted((path, slug) for path, slug in cited if slug not in known) == []


def test_every_mention_of_the_page_can_be_read_as_a_citation() -> None:
    assert {path: found for path, text in texts().items() if (found := unreadable_citations(text))} == {}


def test_every_entry_has_an_anchor_of_its_own() -> None:
    found = entries(page())
    slugs = [slug_of(heading) for heading in re.findall(r"^#+ (.*)$", page(), re.MULTILINE)]

    assert sorted({slug for slug in slugs if slugs.count(slug) > 1}) == []
    assert [entry.slug for entry in found if "-" not in entry.slug] == [], "a citation of one word cannot be found"


def test_every_test_that_the_page_names_exists() -> None:
    named = named_tests(page())

    assert named
    assert loose_tests(page()) == []
    assert [test for test in named if f"def {test.name}(" not in texts().get(test.file, "")] == []


def test_every_module_that_the_page_names_exists() -> None:
    assert sorted(set(modules(page())) - module_names()) == []


def test_no_file_names_a_page_that_the_repository_does_not_carry() -> None:
    assert {path: found for path, text in texts().items() if (found := missing_pages(text, texts()))} == {}


def test_every_link_to_a_heading_meets_one() -> None:
    assert [fault for path in pages() for fault in dangling_links(path, pages())] == []


# --------------------------------------------------------------------------------------------------- seeded faults


@pytest.mark.parametrize(
    ("text", "slugs"),
    [
        (f"# why ({CITE}: late-lane)", ["late-lane"]),
        (f"why ({CITE}: late-lane, slot-sweep) so", ["late-lane", "slot-sweep"]),
        (f"    # why ({CITE}:\n    # late-lane,\n    # no-such-entry)", ["late-lane", "no-such-entry"]),
        (f"# {CITE}: late-lane, well-known words follow", ["late-lane"]),
        (f"see docs/{CITE}.md", []),
    ],
)
def test_the_search_finds_citations_also_across_lines(text: str, slugs: list[str]) -> None:
    assert citations(text) == slugs


@pytest.mark.parametrize("text", [f"({CITE} late-lane)", f"({CITE}#late-lane)", f"({CITE}: Late lane)"])
def test_a_citation_in_another_form_is_found(text: str) -> None:
    assert (citations(text), len(unreadable_citations(text))) == ([], 1)


def test_tests_are_read_with_their_file_and_names_without_one_are_told() -> None:
    x = "tests/core/test_x.py"
    text = f"`{x}::test_a`,\n  `{x}::test_b`; `tests/y.py::test_d`. And `test_e` too."
    assert named_tests(text) == [NamedTest("test_a", x), NamedTest("test_b", x), NamedTest("test_d", "tests/y.py")]
    assert loose_tests(text) == ["test_e"]


def test_a_module_is_looked_for_under_the_name_that_it_is_imported_by() -> None:
    assert {"timewheel.core.plan", "timewheel.relay", "timewheel.producers.base_producer"} <= module_names()
    assert modules("in `timewheel.core.no_such`, not in `plan`") == ["timewheel.core.no_such"]
    assert "timewheel.core.no_such" not in module_names()


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("as rules.m" + "d 8 says", ["rules.m" + "d"]),
        ("# see ../no/such/page.m" + "d.", ["no/such/page.m" + "d"]),
        ("[here](docs/plan.m" + "d#x)", ["docs/plan.m" + "d"]),
        (f"see {OTHER} and docs/{OTHER}, ./{OTHER}, *.md, the .md files", []),
    ],
)
def test_a_page_that_is_not_there_is_found(text: str, missing: list[str]) -> None:
    assert missing_pages(text, [f"docs/{OTHER}"]) == missing


@pytest.mark.parametrize(
    ("link", "is_dangling"),
    [
        (f"{OTHER}#a-heading", False),
        ("../README.md#top", False),
        ("#own-heading", False),
        (f"{OTHER}", False),
        ("https://example.org/#anything", False),
        (f"{OTHER}#no-heading", True),
        (f"{OTHER}#in-a-fence", True),
        (f"../{OTHER}#a-heading", True),
        ("#a-heading", True),
    ],
)
def test_a_link_to_a_heading_that_is_not_there_is_found(link: str, is_dangling: bool) -> None:
    carried = {
        "README.md": "# Top",
        f"docs/{THIS}": f"## Own heading\n\n[x]({link})",
        f"docs/{OTHER}": "## A heading\n\n```\n# In a fence\n```\n",
    }
    assert bool(dangling_links(f"docs/{THIS}", carried)) is is_dangling


def test_an_anchor_is_as_github_makes_it() -> None:
    assert anchors("# What `x` does\n\n## A tick, early or late?\n\n### Callbacks in C++\n") == {
        "what-x-does",
        "a-tick-early-or-late",
        "callbacks-in-c",
    }
