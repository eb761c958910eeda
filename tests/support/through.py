"""Proxies around objects of the client."""

from __future__ import annotations

from typing import Any


class Through:
    """Delegates all attributes to the client's own object; subclasses observe calls, or replace them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
