"""Reading a message that no Python client can send: one whose properties or key are no text."""

from __future__ import annotations

from typing import Any

from timewheel.client.positions import Position
from timewheel.consumers.message import arrival_of, key_of


class Id:
    def ledger_id(self) -> int:
        return 1

    def entry_id(self) -> int:
        return 2

    def batch_index(self) -> int:
        return -1

    def partition(self) -> int:
        return 0


class NoText:
    """What the client gives for bytes that are no UTF-8: it raises."""

    def message_id(self) -> Id:
        return Id()

    def properties(self) -> dict[str, str]:
        return {"who": b"\xff".decode()}

    def ordering_key(self) -> str:
        return ""

    def partition_key(self) -> str:
        return b"\xff".decode()


def test_properties_that_are_no_text_are_an_envelope_error_and_stop_nothing() -> None:
    message: Any = NoText()
    arrival = arrival_of(message, None)
    assert arrival.envelope is None
    assert arrival.envelope_error is not None
    assert "utf-8" in arrival.envelope_error
    assert arrival.position == Position(1, 2, -1)


def test_a_key_that_is_no_text_goes_to_any_worker() -> None:
    assert key_of(NoText()) == ""
