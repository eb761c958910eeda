"""Claims of JSON web tokens, unverified: for messages to people, never for a decision."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from timewheel.core.envelope import MAX_TIME_MS


def role_of(token: str | None) -> str | None:
    """Return the role that a token claims; None if it claims no role, or is not a JSON web token."""
    role = _claims_of(token).get("sub")
    return role if isinstance(role, str) else None


def expires_ms_of(token: str | None) -> int | None:
    """Return when a token expires, UTC milliseconds; None if it never does, not before the year 9999, or is not a JSON
    web token.
    """
    expires_s = _claims_of(token).get("exp")
    if isinstance(expires_s, bool) or not isinstance(expires_s, int | float):
        return None
    return int(expires_s * 1000) if 0 <= expires_s <= MAX_TIME_MS / 1000 else None


def _claims_of(token: str | None) -> dict[str, Any]:
    parts = (token or "").split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
