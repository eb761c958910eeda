"""Reading a message that no Python client can send: one whose properties or key are no text."""

from __future__ import annotations

from tests.support.client_messages import NO_TEXT, client_message
from timewheel.client.positions import Position
from timewheel.consumers.message import arrival_of, key_of


def test_properties_that_are_no_text_are_an_envelope_error_and_stop_nothing() -> None:
    arrival = arrival_of(client_message(NO_TEXT), None)
    assert arrival.envelope is None
    assert arrival.envelope_error is not None
    assert "utf-8" in arrival.envelope_error
    assert arrival.position == Position(1, 2, -1)


def test_a_key_that_is_no_text_goes_to_any_worker() -> None:
    assert key_of(client_message(key=NO_TEXT)) == ""
