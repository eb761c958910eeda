"""Tokens that are renewed during a client's lifetime."""

from __future__ import annotations

from timewheel.client.credentials import TokenReader

__all__ = ["TokenReader"]
