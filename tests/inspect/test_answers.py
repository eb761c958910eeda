from __future__ import annotations

import httpx
import pytest

from tests.core.test_tokens import token_of
from timewheel.broker.admin.answers import MAX_REASON_CHARACTERS, error_of
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing

TOPIC_CALL = "POST /admin/v2/persistent/acme/crm/reminders/messageTTL"


@pytest.mark.parametrize(
    ("status", "kind", "builtin"),
    [(401, AdminDenied, PermissionError), (403, AdminDenied, PermissionError), (404, AdminMissing, LookupError)],
)
def test_the_error_says_whose_fault_by_its_type(status: int, kind: type, builtin: type) -> None:
    error = error_of(httpx.Response(status, json={"reason": "because"}), TOPIC_CALL, None)

    assert isinstance(error, kind)
    assert isinstance(error, builtin)
    assert (error.status, error.endpoint) == (status, TOPIC_CALL)


def test_a_denial_names_endpoint_role_and_what_would_be_needed() -> None:
    text = str(
        error_of(httpx.Response(403, json={"reason": "Don't have permission"}), TOPIC_CALL, token_of({"sub": "bob"}))
    )

    assert TOPIC_CALL in text
    assert "Don't have permission" in text
    assert "the token's role is 'bob'" in text
    assert "an admin of tenant 'acme'" in text


def test_a_denial_on_the_brokers_themselves_asks_for_a_superuser() -> None:
    error = error_of(httpx.Response(401, text=""), "GET /admin/v2/brokers/configuration/runtime", None)

    assert "no token was sent" in error.reason
    assert "superuser" in error.reason


def test_a_denial_says_how_long_the_token_is_valid() -> None:
    expired = token_of({"sub": "bob", "exp": 1_700_000_000})

    error = error_of(httpx.Response(401, text=""), TOPIC_CALL, expired)

    assert "the token's role is 'bob', valid until 2023-11-14 22:13:20Z" in error.reason


def test_of_a_stack_trace_only_the_message_remains() -> None:
    # As 4.0.7 and 4.2.4 answer when an entry is asked for that is not written yet.
    trace = (
        "\n --- An unexpected error occurred in the server ---\n\n"
        "Message: LastConfirmedEntry is 97:1 when reading entry 2\n\n"
        "Stacktrace:\n\norg.apache.bookkeeper.mledger.ManagedLedgerException: LastConfirmedEntry is 97:1\n\tat x.y(Z)"
    )

    error = error_of(httpx.Response(500, json={"reason": trace}), TOPIC_CALL, None)

    assert type(error) is AdminError
    assert error.reason == "LastConfirmedEntry is 97:1 when reading entry 2"


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (httpx.Response(405, html="<html><h2>HTTP ERROR 405</h2></html>"), "Method Not Allowed"),
        (httpx.Response(503, text="try later"), "try later"),
        (httpx.Response(503, json=["odd"]), '["odd"]'),
        (httpx.Response(503), "Service Unavailable"),
        (httpx.Response(500, json={"reason": "x" * 5_000}), "x" * MAX_REASON_CHARACTERS + "..."),
    ],
)
def test_every_answer_yields_a_short_reason(response: httpx.Response, reason: str) -> None:
    assert error_of(response, TOPIC_CALL, None).reason == reason
