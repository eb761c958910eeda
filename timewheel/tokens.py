"""Tokens that are renewed during a client's lifetime."""

from __future__ import annotations

from timewheel.client.token_reader import TokenReader

__all__ = ["TokenReader"]
