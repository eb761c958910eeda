"""The page of the docs that holds what benchmarks found: a section for each, replaced alone when it is asked again.

A run may ask one question only, and at another time than the others: so every section says when, on what and by which
command it was measured, and a run replaces its own sections and leaves the rest as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

from benchmarks.result import Result, table

__all__ = ["HEAD", "merged", "section", "sections", "title"]

HEAD = """# Benchmarks

```console
$ make bench                          # all questions
$ make bench ARGS="routing producer"  # some of them
$ make bench ARGS="--write"           # and write the answers into this page
```

Each row of ours stands beside what it is compared with, measured in turn within one run on one machine: the ratios
travel to other machines, the figures do not."""

_MARK = "## "


def title(module: ModuleType) -> str:
    """A benchmark's question: the first line of what its module says."""
    return (module.__doc__ or "").strip().partition("\n")[0]


def section(module: ModuleType, results: Sequence[Result], *, measured: str) -> str:
    """What one benchmark found.

    Args:
        module: It says what is asked, how, and what has to be reached.
        results: Its rows.
        measured: When, on what and by which command, as Markdown.
    """
    said = (module.__doc__ or "").strip().partition("\n")[2].strip()
    by_question: dict[str, list[Result]] = {}
    for result in results:
        by_question.setdefault(result.question, []).append(result)
    # Of several questions each has figures of its own, and so a table of its own.
    tables = [
        table(found) if len(by_question) == 1 else f"### {question[:1].upper()}{question[1:]}\n\n{table(found)}"
        for question, found in by_question.items()
    ]
    return "\n\n".join(part for part in (_MARK + title(module), said, measured, *tables) if part)


def sections(page: str) -> dict[str, str]:
    """The sections of a page by their titles, in order."""
    found: dict[str, str] = {}
    for part in ("\n" + page).split("\n" + _MARK)[1:]:
        found[part.partition("\n")[0].strip()] = (_MARK + part).strip()
    return found


def merged(page: str, new: Mapping[str, str], order: Sequence[str]) -> str:
    """A page with these sections in place of those of the same title.

    Args:
        page: As it is; empty: there is none.
        new: Sections by title.
        order: Titles in the order that they should stand in; sections of other titles come after them, as they are.
    """
    found = {**sections(page), **new}
    titles = [*(name for name in order if name in found), *(name for name in found if name not in order)]
    return "\n\n".join([HEAD, *(found[name] for name in titles)]) + "\n"
