"""Objects of the client with somebody in between."""

from __future__ import annotations

from typing import Any

__all__ = ["Through"]


class Through:
    """Hands everything on to the client's own object; subclasses look on, or do something else."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
