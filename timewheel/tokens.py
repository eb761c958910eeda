"""Tokens that are renewed while a client lives."""

from __future__ import annotations

from timewheel.wire.token_reader import TokenReader

__all__ = ["TokenReader"]
