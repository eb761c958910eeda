"""A token that is read at every connect; TLS settings that are read again when their files have changed."""

from __future__ import annotations

import ssl
import threading
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.tokens import token_for
from timewheel.client.credentials import PAUSE_MS, TlsReader
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


class Reading:
    """Makes settings, or fails while the file says that it is half written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def __call__(self) -> ssl.SSLContext:
        self.count += 1
        if self.path.read_text() == "half":
            raise ssl.SSLError("no PEM")
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def renew(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    path = tmp_path / "tls.crt"
    path.write_text("one")
    return Reading(path)


def test_files_that_have_not_changed_are_read_once(reading: Reading) -> None:
    reader = TlsReader(reading, [reading.path], clock=ManualClock())

    assert reader() is reader()
    assert reading.count == 1


def test_files_that_cannot_be_read_at_first_are_an_error(reading: Reading) -> None:
    reading.path.write_text("half")

    with pytest.raises(ssl.SSLError, match="no PEM"):
        TlsReader(reading, [reading.path])


def test_what_does_not_fit_is_tried_again_when_it_changes_and_else_after_a_pause(reading: Reading) -> None:
    clock = ManualClock()
    reader = TlsReader(reading, [reading.path], clock=clock)
    first = reader()
    renew(reading.path, "half")

    assert [reader() is first for _ in range(3)] == [True, True, True]
    assert reading.count == 2, "the first time, and once in vain"
    clock.advance(PAUSE_MS)
    assert (reader() is first, reading.count) == (True, 3)
    renew(reading.path, "two")
    assert (reader() is first, reading.count) == (False, 4)


def test_what_was_read_while_it_was_written_is_read_again_though_no_mark_says_so(reading: Reading) -> None:
    """A clock of files that is too coarse: the rest was written in the same tick, and has the same length."""
    clock = ManualClock()
    reader = TlsReader(reading, [reading.path], clock=clock)
    first = reader()
    renew(reading.path, "half")
    assert reader() is first

    reading.path = reading.path.with_name("whole")  # what is read changes, and the mark of what is looked at does not
    reading.path.write_text("two")
    clock.advance(PAUSE_MS - 1)
    assert reader() is first
    clock.advance(1)
    assert reader() is not first


def test_a_file_that_changed_while_it_was_read_is_read_once_more(reading: Reading) -> None:
    def changing() -> ssl.SSLContext:
        settings = reading()
        if reading.count == 2:
            renew(reading.path, "three")
        return settings

    reader = TlsReader(changing, [reading.path], clock=ManualClock())
    renew(reading.path, "two")
    second = reader()
    assert reader() is not second
    reader()
    assert reading.count == 3


def test_a_secret_of_kubernetes_changes_by_a_link(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tls.crt").write_text(name)
    data, path = tmp_path / "..data", tmp_path / "tls.crt"
    data.symlink_to("one")
    path.symlink_to("..data/tls.crt")
    reading = Reading(path)
    reader = TlsReader(reading, [path], clock=ManualClock())
    first = reader()

    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").replace(data)
    assert reader() is not first


def test_threads_that_connect_at_once_read_it_once(reading: Reading) -> None:
    reader = TlsReader(reading, [reading.path], clock=ManualClock())
    renew(reading.path, "two")
    together = threading.Barrier(8)
    seen: list[ssl.SSLContext] = []

    def connect() -> None:
        together.wait(20)
        seen.append(reader())

    threads = [threading.Thread(target=connect) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(seen), len(set(map(id, seen))), reading.count) == (8, 1, 2)
