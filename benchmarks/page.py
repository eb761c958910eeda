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

Each row stands beside its comparison, measured in turn within one run on one machine: ratios travel to other machines,
figures do not. The doc string of `benchmarks/NAME.py` describes how NAME measures. A goal is met or MISSED."""

_MARK = "## "


def title(module: ModuleType) -> str:
    """A benchmark's question: the first line of what its module says."""
    return (module.__doc__ or "").strip().partition("\n")[0]


def section(module: ModuleType, results: Sequence[Result], *, measured: str) -> str:
    """Describe the findings of one benchmark: question, date and tables.

    Args:
        module: Its doc string begins with the question. Its ``SHOWN`` names the figures of the page (default: all), its
            ``HIDDEN`` words of rows that the page leaves out.
        results: Its rows.
        measured: When, on what and by which command, as Markdown.
    """
    shown: frozenset[str] = getattr(module, "SHOWN", frozenset())
    hidden: tuple[str, ...] = getattr(module, "HIDDEN", ())
    by_question: dict[str, list[Result]] = {}
    for result in results:
        is_shown = not shown or result.met is not None or shown & result.figures.keys()
        if is_shown and not any(words in result.subject for words in hidden):
            by_question.setdefault(result.question, []).append(result)
    # Of several questions each has figures of its own, and so a table of its own.
    tables = [
        table(found, shown=shown)
        if len(by_question) == 1
        else f"### {question[:1].upper()}{question[1:]}\n\n{table(found, shown=shown)}"
        for question, found in by_question.items()
    ]
    return "\n\n".join([_MARK + title(module), measured, *tables])


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
