"""An inbox in a file, shared by the processes of one host.

Every call is one transaction. SQLite's write-ahead log (WAL) makes a claim outlive any crash of the process that wrote
it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import ClientMisuse

from .protocol import DONE, MINE, BadInbox, Claim, InboxFull, InboxUnavailable, check_least, taken

T = TypeVar("T")

DEFAULT_PATH = Path("timewheel-inbox.sqlite3")  # in the working folder of the process
DEFAULT_MAX_BYTES = 4 * 1024**3  # some eighteen million keys of usual length
DEFAULT_BUSY_MS = 5_000
"""Another process locks the file for a small transaction at a time; a longer wait means that something is wrong."""
FORGET_EVERY = 64
FORGET_AT_ONCE = 256  # rows removed by every `FORGET_EVERY`-th claim: four times the new rows, and a millisecond or two
FORGET_STEPS = 16
"""Steps of a claim while the file is full, which bound how long it delays other processes: some 20 milliseconds."""
RESERVE_PART = 16  # divisor of the size that gives the reserve for updates of stored keys, above all that they are done
SPLIT_PAGES = 12
"""More pages than a new row can need: two for each level of the table and of its index, which have three each."""
OPENINGS = 100  # attempts to open a new file: that many processes may begin with it at once
_LEAST_BYTES = 64 * 1024
_MARK = 0x74776962  # in the file's head (`application_id`, "twib"): the file is an inbox and no other database
_VERSION = 1

# From `ends_ms` on a row is void, whether it was a claim or done: the lease is over, or the key is forgotten.
_CREATE = """
CREATE TABLE inbox (
    key TEXT PRIMARY KEY, owner TEXT NOT NULL, is_done INTEGER NOT NULL, ends_ms INTEGER NOT NULL
) WITHOUT ROWID, STRICT
"""
_CREATE_INDEX = "CREATE INDEX inbox_ends ON inbox (ends_ms)"
_CLAIM = """
INSERT INTO inbox VALUES (:key, :owner, 0, :ends_ms)
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, is_done = 0, ends_ms = excluded.ends_ms
WHERE ends_ms <= :now_ms OR (is_done = 0 AND owner = excluded.owner)
RETURNING 1
"""
_LOOK = "SELECT is_done, ends_ms FROM inbox WHERE key = :key"
_RENEW = """
UPDATE inbox SET ends_ms = :ends_ms
WHERE key = :key AND owner = :owner AND is_done = 0 AND ends_ms > :now_ms RETURNING 1
"""
_DONE = """
INSERT INTO inbox VALUES (:key, :owner, 1, :ends_ms)
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, is_done = 1, ends_ms = excluded.ends_ms
WHERE ends_ms <= :now_ms OR owner = excluded.owner
RETURNING 1
"""
_RELEASE = "DELETE FROM inbox WHERE key = :key AND owner = :owner AND is_done = 0"
_FORGET = """
DELETE FROM inbox WHERE key IN (SELECT key FROM inbox WHERE ends_ms <= :now_ms ORDER BY ends_ms LIMIT :at_most)
RETURNING 1
"""


class SqliteInbox:
    """Claims and done keys in a file, for all processes of one host, on a disk of that host: no network file system.

    Args:
        path: The file; it is created if it is missing, its folder is not. Two more files stand beside it, ``-wal``,
            ``-shm``.
        synchronous: With ``full``, every answered call outlives a power failure. With ``normal``, it outlives any crash
            of processes, but a power failure may lose the last moments, so that effects repeat; several times as fast.
        max_bytes: Maximum size of the file. When it is full, a claim of a new key raises `InboxFull`; no key is
            forgotten early. A sixteenth may come on top, for updates of stored keys.
        busy_ms: Time to wait for another process that writes.
        clock: Its time of day, which a restart does not set back, governs leases and the forgetting of keys.

    Attributes:
        path: The file, absolute.

    Raises:
        InboxUnavailable: The file cannot be opened, or is no inbox.
    """

    def __init__(
        self,
        path: str | Path = DEFAULT_PATH,
        *,
        synchronous: Literal["full", "normal"] = "full",
        max_bytes: int = DEFAULT_MAX_BYTES,
        busy_ms: int = DEFAULT_BUSY_MS,
        clock: Clock | None = None,
    ) -> None:
        if synchronous not in {"full", "normal"}:
            raise BadInbox("synchronous", f"{synchronous!r}, must be 'full' or 'normal'")
        check_least("max_bytes", max_bytes, _LEAST_BYTES)
        check_least("busy_ms", busy_ms, 0)
        self.path = Path(path).absolute()
        self._max_bytes = max_bytes
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._claims = 0
        self._connection: sqlite3.Connection | None = None
        with self._reported():
            self._connection = self._opened(synchronous, busy_ms)
            self._file = _identity(self.path)

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """See `Inbox.claim`."""
        check_least("lease_ms", lease_ms, 1)

        def step(connection: sqlite3.Connection, now_ms: int) -> Claim:
            row = {"key": key, "owner": owner, "now_ms": now_ms, "ends_ms": now_ms + lease_ms}
            self._claims += 1
            if self._claims % FORGET_EVERY == 0:
                _forget(connection, now_ms)
            if connection.execute(_CLAIM, row).fetchall():
                return MINE
            is_done, ends_ms = connection.execute(_LOOK, row).fetchone()
            return DONE if is_done else taken(ends_ms - now_ms)

        return self._write(step, needs_room=True)

    def renew(self, key: str, owner: str, lease_ms: int) -> bool:
        """See `Inbox.renew`."""
        check_least("lease_ms", lease_ms, 1)
        return self._changed(_RENEW, key, owner, lease_ms)

    def done(self, key: str, owner: str, forget_ms: int) -> bool:
        """See `Inbox.done`."""
        check_least("forget_ms", forget_ms, 0)
        return self._changed(_DONE, key, owner, forget_ms)

    def _changed(self, statement: str, key: str, owner: str, for_ms: int) -> bool:
        def step(connection: sqlite3.Connection, now_ms: int) -> bool:
            row = {"key": key, "owner": owner, "now_ms": now_ms, "ends_ms": now_ms + for_ms}
            return bool(connection.execute(statement, row).fetchall())

        return self._write(step)

    def release(self, key: str, owner: str) -> None:
        """See `Inbox.release`."""
        self._write(lambda connection, _: connection.execute(_RELEASE, {"key": key, "owner": owner}))

    def forget(self) -> int:
        """Remove some ended keys, at most 256; claims do it by themselves.

        Returns:
            Number of removed keys.
        """
        return self._write(_forget)

    def close(self) -> None:
        """See `Inbox.close`."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None and os.getpid() == self._pid:
                connection.close()

    def _opened(self, synchronous: str, busy_ms: int) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=busy_ms / 1000, isolation_level=None, check_same_thread=False, cached_statements=16
        )
        try:
            is_new = self._look(connection)
            _begin_log(connection)
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._page_bytes: int = connection.execute("PRAGMA page_size").fetchone()[0]
            self._limit(connection, self._max_bytes)
            if is_new:
                self._make_table(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _look(self, connection: sqlite3.Connection) -> bool:
        """Return whether the file is empty; refuse a file that is no inbox."""
        # In this order: a process that created the table meanwhile wrote the mark with it.
        if not connection.execute("SELECT 1 FROM sqlite_schema").fetchall():
            return True
        mark, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _HEAD)
        if mark != _MARK:
            raise self._unavailable("the file is another program's database", "name another path")
        if version != _VERSION:
            fact = f"the file was written by a later version of timewheel (format {version})"
            raise self._unavailable(fact, "upgrade timewheel, or name another path")
        return False

    def _make_table(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have been first; all of it is one transaction, so that no process sees half of it.
        if not connection.execute("SELECT 1 FROM sqlite_schema").fetchall():
            connection.execute(_CREATE)
            connection.execute(_CREATE_INDEX)
            connection.execute(f"PRAGMA application_id = {_MARK}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")

    def _write(self, step: Callable[[sqlite3.Connection, int], T], *, needs_room: bool = False) -> T:
        """Run a transaction; if there is no room for it, run others first that make room.

        Only a claim needs room: all other calls may use the reserve, since their key is already stored.
        """
        with self._lock, self._reported():
            connection = self._usable()
            for _ in range(FORGET_STEPS):
                try:
                    return self._transaction(connection, step)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                        raise
                # A new row may need a page, and so may the removal of rows, which moves other rows.
                with self._reserve(connection):
                    if not needs_room:
                        return self._transaction(connection, step)
                    if not self._transaction(connection, _forget):
                        break
            raise self._full(connection)

    def _full(self, connection: sqlite3.Connection) -> InboxUnavailable:
        """Distinguish SQLite's two reasons for the same error: the size limit, and a disk without room."""
        pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
        if (pages + SPLIT_PAGES) * self._page_bytes < self._max_bytes:
            return self._unavailable("the disk is full", "make room on it")
        remedy = "raise max_bytes, or remember done keys for a shorter time"
        return InboxFull(str(self.path), self._max_bytes, "bytes", remedy)

    @contextmanager
    def _reserve(self, connection: sqlite3.Connection) -> Iterator[None]:
        self._limit(connection, self._max_bytes + max(self._max_bytes // RESERVE_PART, _LEAST_BYTES))
        try:
            yield
        finally:
            self._limit(connection, self._max_bytes)

    def _limit(self, connection: sqlite3.Connection, size_bytes: int) -> None:
        # A limit below the present size sets it to that size: then the file cannot grow.
        connection.execute(f"PRAGMA max_page_count = {size_bytes // self._page_bytes}")

    def _usable(self) -> sqlite3.Connection:
        if os.getpid() != self._pid:
            raise ClientMisuse("this inbox was opened before a fork: open one in each process")
        if self._connection is None:
            raise ClientMisuse("the inbox is closed")
        if _identity(self.path) != self._file:
            fact = "the file was removed or replaced, and with it what was done"
            remedy = "restart the processes, which go on with the file that is there or begin one; effects may repeat"
            raise self._unavailable(fact, remedy)
        return self._connection

    def _transaction(self, connection: sqlite3.Connection, step: Callable[[sqlite3.Connection, int], T]) -> T:
        # Locked for writing at once: a transaction that began by reading could not become a writer after another write.
        connection.execute("BEGIN IMMEDIATE")
        try:
            # The time is read under the write lock, so that it does not go back between two transactions.
            found = step(connection, self._clock.now_ms())
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk has rolled back by itself
                connection.execute("ROLLBACK")
            raise
        return found

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # Extended codes have the kind in their lowest byte.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            raise self._unavailable(f"{error} ({_name(error)})", _REMEDIES.get(code, _REMEDY)) from error

    def _unavailable(self, fact: str, remedy: str) -> InboxUnavailable:
        return InboxUnavailable(str(self.path), fact, remedy)


_HEAD = ("application_id", "user_version")
_REMEDY = "see whether disk and file are sound; a file that is not can be removed, and then effects may repeat"
_REMEDIES = {
    sqlite3.SQLITE_BUSY: "see which process holds the file open for writing, or raise busy_ms",
    sqlite3.SQLITE_CANTOPEN: "see that its folder is there, and that this user may write in it",
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_NOTADB: "name another path: this file is no inbox",
    sqlite3.SQLITE_PERM: "let this user write the file and its folder",
    sqlite3.SQLITE_READONLY: "let this user write the file and its folder, on a disk that is not mounted read-only",
}


def _begin_log(connection: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log (WAL) if needed; several processes may do so at once."""
    for left in reversed(range(OPENINGS)):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not left or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            # The switch does not wait for other processes, unlike all other statements; so wait by a transaction.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        else:
            return


def _forget(connection: sqlite3.Connection, now_ms: int) -> int:
    return len(connection.execute(_FORGET, {"now_ms": now_ms, "at_most": FORGET_AT_ONCE}).fetchall())


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", type(error).__name__)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at this path; None if it is missing. An open file does not notice its removal."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
