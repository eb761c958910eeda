"""A text that must not be shown: not in a log, a traceback, a test's report or an error."""

from __future__ import annotations

__all__ = ["HIDDEN", "Secret"]

HIDDEN = "***"
"""What stands for a secret wherever one would be shown."""


class Secret:
    """Holds a secret; only `reveal` gives it, so that every place that shows it can be found.

    Args:
        text: The secret.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The secret itself, for whoever sends it to where it belongs."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))
