"""What a token says of itself."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core.connection import expires_ms_of, role_of


def token_of(claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJIUzI1NiJ9.{payload}.c2lnbmF0dXJl"


NO_TOKENS = [None, "", "opaque", "a.b.c", "a.!!.c", "a.b", token_of([1]), token_of("x"), token_of({})]


@pytest.mark.parametrize("token", [*NO_TOKENS, token_of({"sub": 7})])
def test_a_token_without_a_readable_role_has_none(token: str | None) -> None:
    assert role_of(token) is None


@pytest.mark.parametrize(
    "token",
    [
        *NO_TOKENS,
        *(token_of({"exp": exp}) for exp in ("1", None, True, -1, 1e300, float("nan"), float("inf"), 253_402_300_800)),
    ],
)
def test_a_token_without_a_readable_end_has_none(token: str | None) -> None:
    assert expires_ms_of(token) is None


@pytest.mark.parametrize(("exp", "expires_ms"), [(1_700_000_000, 1_700_000_000_000), (0, 0), (1.5, 1_500)])
def test_role_and_end_are_read_from_a_token(exp: float, expires_ms: int) -> None:
    token = token_of({"sub": "ops@acme", "exp": exp})

    assert (role_of(token), expires_ms_of(token)) == ("ops@acme", expires_ms)


@given(st.text(), st.binary())
def test_nothing_that_claims_to_be_a_token_makes_it_fail(text: str, claims: bytes) -> None:
    payload = base64.urlsafe_b64encode(claims).decode().rstrip("=")
    for token in (text, f"a.{payload}.c"):
        role_of(token)
        expires_ms_of(token)
