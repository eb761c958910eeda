"""Secrets: texts that must not appear in a log, a traceback, a test's report or an error."""

from __future__ import annotations

HIDDEN = "***"
"""Placeholder that is shown instead of a secret."""


class Secret:
    """Holds a secret. Only `reveal` returns it, so that every use can be found in the code.

    Args:
        text: The secret.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret itself, to send it to its server."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))
