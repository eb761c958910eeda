"""A token that is read at every connect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.tokens import token_for
from timewheel.events import TokenExpired, TokenUnreadable
from timewheel.hooks import Event
from timewheel.tokens import TokenReader

NOW_S = 1_700_000_000


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S * 1000)


def test_what_the_file_holds_now_is_what_the_client_gets(tmp_path: Path, told: list[Event]) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    read = TokenReader(file, hooks=(told.append,))
    assert read() == "one"
    file.write_text(" two ")
    assert read() == "two"
    assert told == []


@pytest.mark.parametrize("lost", ["gone", "empty", "no text"])
def test_a_file_that_cannot_be_read_leaves_the_token_as_it_was_and_is_told(
    lost: str, tmp_path: Path, told: list[Event]
) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    read = TokenReader(file, hooks=(told.append,))
    match lost:
        case "gone":
            file.unlink()
        case "empty":
            file.write_text("\n")
        case _:
            file.write_bytes(b"\xff\xfe\xff")
    assert read() == "one"
    (event,) = told
    assert isinstance(event, TokenUnreadable)
    assert event.source == str(file)
    assert event.reason
    file.write_text("two")
    assert read() == "two"
    assert len(told) == 1


def test_what_a_function_raises_stays_off_the_clients_thread(told: list[Event]) -> None:
    def read_once() -> str:
        if reads:
            raise KeyError("vault")
        reads.append(1)
        return "one"

    reads: list[int] = []
    read = TokenReader(read_once, hooks=(told.append,))
    assert [read(), read()] == ["one", "one"]
    assert [event.fields for event in told] == [{"source": "a function", "reason": "'vault'"}] * 2


def test_an_expired_token_is_shown_and_told_once(clock: ManualClock, told: list[Event]) -> None:
    tokens = [token_for("ops", expires_s=NOW_S + 10)]
    read = TokenReader(lambda: tokens[-1], name="--token", clock=clock, hooks=(told.append,))
    read()
    clock.advance(9_999)
    read()
    assert told == []
    clock.advance(1)
    assert [read(), read()] == [tokens[0]] * 2
    assert told == [TokenExpired(source="--token", expired_at_ms=(NOW_S + 10) * 1000)]

    tokens.append(token_for("ops", expires_s=NOW_S + 11))
    read()
    clock.advance(1_000)
    read()
    read()
    assert [event.fields["expired_at_ms"] for event in told] == [(NOW_S + 10) * 1000, (NOW_S + 11) * 1000]


def test_a_token_that_is_no_json_web_token_never_expires(clock: ManualClock, told: list[Event]) -> None:
    read = TokenReader(lambda: "opaque", clock=clock, hooks=(told.append,))
    clock.advance(10**12)
    assert read() == "opaque"
    assert told == []


def test_a_token_that_cannot_be_read_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TokenReader(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="empty"):
        TokenReader(tmp_path / "empty")
