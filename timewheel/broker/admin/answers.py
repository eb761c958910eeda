"""The meaning of a broker's error answers: the kind of error, the broker's reason, and the role that was used."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import httpx

from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable
from timewheel.core.tokens import expires_ms_of, role_of

MAX_REASON_CHARACTERS = 400
"""Limit of a reason in an error: brokers put whole Java stack traces into it."""


T = TypeVar("T")


def asked(call: Callable[[], T], refused: Callable[[AdminError], object]) -> T | None:
    """Return the result of a call; None if its subject does not exist, or if the broker refuses.

    Args:
        call: Reads from the broker.
        refused: Called with a refusal.

    Raises:
        AdminUnreachable: No broker answers.
    """
    try:
        return call()
    except AdminMissing:
        return None
    except AdminUnreachable:
        raise
    except AdminError as error:
        refused(error)
        return None


def error_of(response: httpx.Response, endpoint: str, token: str | None) -> AdminError:
    """Return the error that a refusing answer stands for.

    Args:
        response: An answer that is no success.
        endpoint: Method and path, as shown in the error.
        token: The token that was sent. Its role and expiry are shown, the token itself is not.
    """
    reason = _reason(response)
    match response.status_code:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return AdminDenied(response.status_code, endpoint, f"{reason}; {_who(token)}; {_needed(endpoint)}")
        case HTTPStatus.NOT_FOUND:
            return AdminMissing(response.status_code, endpoint, reason)
        case _:
            return AdminError(response.status_code, endpoint, reason)


def _reason(response: httpx.Response) -> str:
    """Extract the broker's reason; of a stack trace only its message, of an HTML page nothing."""
    text = response.text.strip()
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("reason"), str):
        text = said["reason"].strip()
    elif text.startswith("<"):
        text = ""
    _, _, message = text.partition("\nMessage: ")
    words = " ".join((message.partition("\n\nStacktrace")[0] or text).split())
    if not words:
        words = response.reason_phrase or "no reason was given"
    return words if len(words) <= MAX_REASON_CHARACTERS else f"{words[:MAX_REASON_CHARACTERS]}..."


def _who(token: str | None) -> str:
    if token is None:
        return "no token was sent"
    role, expires_ms = role_of(token), expires_ms_of(token)
    who = "the token names no role" if role is None else f"the token's role is {role!r}"
    if expires_ms is None:
        return who
    return f"{who}, valid until {dt.datetime.fromtimestamp(expires_ms / 1000, dt.UTC):%Y-%m-%d %H:%M:%SZ}"


def _needed(endpoint: str) -> str:
    path = endpoint.partition("/admin/v2/")[2]
    if path.startswith(("brokers", "clusters", "tenants")):
        return "this call needs a superuser (superUserRoles of the broker)"
    parts = path.split("/")
    tenant = parts[1] if len(parts) > 1 else "?"
    return f"this call needs an admin of tenant {tenant!r} or a superuser"
