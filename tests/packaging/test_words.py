"""Doc strings and comments name their nouns, so that a reader can search for them.

A sentence whose subject is "what", "one" or "nobody" has no noun to search for; a program that "tells" or "says" logs,
returns, reports or raises.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator

import pytest

from tests.support.checkout import ROOT, package_modules

MAX_PER_1000 = {
    r"what|whatever": 2.0,
    r"nobody|whoever|somebody|anybody|everybody": 0.3,
    r"tells?|told|telling|says?|said|saying": 1.0,
    r"ones?": 4.0,
}
"""Words as a pattern; the most of them in 1,000 words. "One" is a number, too."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def prose(source: str) -> Iterator[str]:
    """Doc strings and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def per_1000(texts: Iterable[str], pattern: str) -> float:
    """Words that match, in 1,000 words."""
    words = re.findall(r"[a-z]+", " ".join(texts).lower())
    return 1_000 * sum(re.fullmatch(pattern, word) is not None for word in words) / len(words)


@pytest.mark.parametrize("pattern", MAX_PER_1000)
def test_few_sentences_have_no_noun(pattern: str) -> None:
    texts = [text for path in package_modules() for text in prose((ROOT / path).read_text(encoding="utf-8"))]
    assert per_1000(texts, pattern) <= MAX_PER_1000[pattern]


def test_they_are_counted_in_doc_strings_and_comments_alone() -> None:
    source = '"""What is one?"""\nwhat = "what"  # whatever it says\n\ndef f():\n    """Nobody."""\n'
    texts = list(prose(source))
    assert [round(per_1000(texts, pattern)) for pattern in MAX_PER_1000] == [286, 143, 143, 143]
