"""TLS settings are read again when their files have changed, and not more often."""

from __future__ import annotations

import ssl
import threading
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from timewheel.client.credentials import PAUSE_MS, TlsReader


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
