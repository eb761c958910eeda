"""The store in a file: several processes, a file that cannot be used, and a size that stays bounded."""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.manual_clock import ManualClock
from timewheel.consumers.inbox import Answer, SqliteInbox
from timewheel.errors import BadInbox, ClientMisuse, InboxFull, InboxUnavailable

LEASE_MS, KEEP_MS = 60_000, 3_600_000
TIMEOUT_S = 120


def in_child(play: Callable[[], object]) -> str:
    """What a child of this process prints that ends with this call: its result, or its error."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(play()).encode())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the test wants to see
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:  # ends with the child, which has no wait in it but SQLite's
        said = told.read()
    os.waitpid(child, 0)
    return said


RACE = """
import sys
from timewheel.consumers.inbox import Answer, SqliteInbox
path, owner = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
inbox = SqliteInbox(path, synchronous="normal", busy_ms=60_000)
for number in range(200):
    if inbox.claim(f"{number}", owner, 600_000).answer is Answer.MINE:
        print(number)
"""


def test_of_several_processes_that_open_a_new_file_at_once_one_has_each_key(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE, str(tmp_path / "inbox.sqlite3")]
    processes = [
        subprocess.Popen([*command, f"{owner}"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for owner in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=TIMEOUT_S)[0].split() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)

    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(int(number) for won in said for number in won) == list(range(200))


def test_the_path_is_said_and_the_default_is_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(SqliteInbox()) as inbox:
        assert inbox.path == tmp_path / "timewheel-inbox.sqlite3"
        assert inbox.path.exists()


@pytest.mark.parametrize(("synchronous", "number"), [("full", 2), ("normal", 1)])
def test_how_safe_it_is_can_be_chosen(tmp_path: Path, synchronous: str, number: int) -> None:
    with closing(SqliteInbox(tmp_path / "a", synchronous=synchronous)) as inbox:  # type: ignore[arg-type]  # of two
        assert inbox._connection is not None
        assert inbox._connection.execute("PRAGMA synchronous").fetchone() == (number,)
        assert inbox._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with pytest.raises(BadInbox, match="must be 'full' or 'normal'"):
        SqliteInbox(tmp_path / "a", synchronous="off")  # type: ignore[arg-type]  # the point


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "inbox.sqlite3"
    with pytest.raises(InboxUnavailable, match=r"missing/inbox.sqlite3: unable to open.*see that its folder is there"):
        SqliteInbox(path)


def test_a_file_that_is_no_database_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("do not overwrite me " * 100)
    with pytest.raises(InboxUnavailable, match=r"not a database.*name another path"):
        SqliteInbox(path)

    assert path.read_text() == "do not overwrite me " * 100


def test_another_programs_database_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "orders.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id)")
        connection.commit()
    with pytest.raises(InboxUnavailable, match="another program's database; name another path"):
        SqliteInbox(path)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("orders",)]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_file_of_a_later_version_is_told(tmp_path: Path) -> None:
    SqliteInbox(tmp_path / "a").close()
    with closing(sqlite3.connect(tmp_path / "a")) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(InboxUnavailable, match=r"later version of timewheel \(format 7\); upgrade"):
        SqliteInbox(tmp_path / "a")


def test_a_file_that_another_keeps_locked_is_told_and_is_good_again_afterwards(tmp_path: Path) -> None:
    with closing(SqliteInbox(tmp_path / "a", busy_ms=20)) as inbox, closing(sqlite3.connect(tmp_path / "a")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InboxUnavailable, match=r"locked \(SQLITE_BUSY\).*raise busy_ms") as caught:
            inbox.claim("key", "a", LEASE_MS)
        assert caught.value.store == str(tmp_path / "a")
        other.rollback()

        assert inbox.claim("key", "a", LEASE_MS).answer is Answer.MINE


@pytest.mark.parametrize("is_replaced", [False, True], ids=["gone", "replaced"])
def test_a_file_that_is_gone_is_told_though_its_process_could_go_on_writing(tmp_path: Path, is_replaced: bool) -> None:
    path = tmp_path / "a"
    with closing(SqliteInbox(path)) as inbox:
        path.rename(tmp_path / "away")
        if is_replaced:
            path.touch()
        with pytest.raises(InboxUnavailable, match=r"removed or replaced.*restart the processes"):
            inbox.claim("key", "a", LEASE_MS)
        if not is_replaced:
            (tmp_path / "away").rename(path)
            assert inbox.claim("key", "a", LEASE_MS).answer is Answer.MINE


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can get to, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="tw-inbox-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_file_that_may_not_be_written_is_told(open_folder: Path) -> None:
    path = open_folder / "a"
    SqliteInbox(path).close()
    path.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)

    def play() -> object:
        if os.getuid() == 0:  # whom no mode keeps from writing
            os.setuid(65_534)
        return SqliteInbox(path).claim("key", "a", LEASE_MS)

    said = in_child(play)
    assert said.startswith("InboxUnavailable: inbox "), said
    assert "let this user write" in said or "may write in it" in said


def test_a_disk_that_takes_no_more_is_told_and_claims_stay(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with closing(SqliteInbox(path)) as inbox:
        inbox.claim("before", "a", LEASE_MS)

    def play() -> object:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        with closing(SqliteInbox(path, synchronous="normal")) as inbox:
            for number in range(10_000):
                inbox.claim(f"{number}", "a", LEASE_MS)
        return "never told"

    said = in_child(play)
    assert said.startswith(f"InboxUnavailable: inbox {path}: "), said
    with closing(SqliteInbox(path)) as inbox:
        assert inbox.claim("before", "b", LEASE_MS).answer is Answer.TAKEN


def claim_all(inbox: SqliteInbox, tried: list[str], *, is_done: bool = False) -> None:
    """Claim new keys, until there is no room."""
    for number in range(100_000):
        tried.append(f"{number % 7} {number}")
        inbox.claim(tried[-1], "a", LEASE_MS)
        if is_done:
            inbox.done(tried[-1], "a", KEEP_MS)


def test_a_file_of_its_full_size_is_told_and_has_room_again_when_keys_are_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    limit = 128 * 1024
    with closing(SqliteInbox(tmp_path / "a", synchronous="normal", max_bytes=limit, clock=clock)) as inbox:
        tried: list[str] = []
        with pytest.raises(InboxFull, match=f"full, at most {limit} bytes; raise max_bytes") as caught:
            claim_all(inbox, tried, is_done=True)
        assert (caught.value.limit, caught.value.unit) == (limit, "bytes")
        assert len(tried) > 200
        assert inbox.claim(tried[0], "b", LEASE_MS).answer is Answer.DONE, "what is done stays done"

        clock.advance(KEEP_MS)
        for again in range(2 * len(tried)):
            inbox.claim(f"again {again}", "a", 1)
            clock.advance(1)
    assert (tmp_path / "a").stat().st_size <= limit + 64 * 1024


def test_in_a_full_file_what_was_claimed_can_still_be_done(tmp_path: Path) -> None:
    with closing(SqliteInbox(tmp_path / "a", synchronous="normal", max_bytes=128 * 1024)) as inbox:
        tried: list[str] = []
        with pytest.raises(InboxFull):
            claim_all(inbox, tried)

        claimed = tried[:-1]
        assert len(claimed) > 200
        assert all(inbox.done(key, "a", KEEP_MS + place) for place, key in enumerate(claimed))
        assert {inbox.claim(key, "b", LEASE_MS).answer for key in claimed} == {Answer.DONE}


def test_what_is_over_is_removed_in_steps_while_others_claim(tmp_path: Path) -> None:
    clock = ManualClock()
    with closing(SqliteInbox(tmp_path / "a", synchronous="normal", clock=clock)) as inbox:
        sizes = []
        for _ in range(4):
            for number in range(500):
                key = f"{clock.now_ms()}-{number}"
                inbox.claim(key, "a", LEASE_MS)
                inbox.done(key, "a", KEEP_MS)
            assert inbox._connection is not None
            sizes.append(inbox._connection.execute("SELECT count(*) FROM inbox").fetchone()[0])
            clock.advance(KEEP_MS)

        assert sizes == [500] * 4
        assert [inbox.forget() for _ in range(3)] == [256, 244, 0]


def test_a_fork_is_refused_and_its_owner_goes_on(tmp_path: Path) -> None:
    with closing(SqliteInbox(tmp_path / "a")) as inbox:
        said = in_child(lambda: inbox.claim("key", "a", LEASE_MS))

        assert said.startswith("ClientMisuse: ")
        assert "open one in each process" in said
        assert inbox.claim("key", "a", LEASE_MS).answer is Answer.MINE


def test_a_closed_one_is_refused(tmp_path: Path) -> None:
    inbox = SqliteInbox(tmp_path / "a")
    inbox.close()
    with pytest.raises(ClientMisuse, match="closed"):
        inbox.claim("key", "a", LEASE_MS)


@pytest.mark.parametrize("arguments", [{"max_bytes": 1_000}, {"busy_ms": -1}])
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(BadInbox, match="must be at least"):
        SqliteInbox(tmp_path / "a", **arguments)  # type: ignore[arg-type]  # one of two numbers
