"""The program whose children are killed: each child plays handlers of some messages, and reports each point.

It forks for every play, since a new Python would take longer to start than a play lasts. Instructions and reports are
lines of JSON. A child waits at each point until it receives a go, and reads it itself: its parent sleeps until the
child ends. Several goes in advance let the child run past several points by itself.
"""

from __future__ import annotations

import json
import os
import sqlite3
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.support.manual_clock import ManualClock
from timewheel.consumers.inbox import Answer, Inbox, RedisInbox, SqlInbox, SqliteInbox

LEASE_MS = 600_000
KEEP_MS = 24 * 3_600_000
EFFECTS_TABLE = "CREATE TABLE IF NOT EXISTS effects (key TEXT NOT NULL)"

GO = b"\n"  # one byte, so that a killed child leaves no partial instruction
_reported = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - unbuffered: a child must not read its parent's lines


def say(**facts: Any) -> None:
    """Report facts to the test, in a single write, so that a kill leaves no partial line."""
    os.write(1, json.dumps(facts).encode() + b"\n")


class Player:
    """A child.

    Args:
        play: Its instructions: ``kind`` and ``address`` of the store, ``now_ms``, ``keys``, ``effects`` (a file) and
            ``owner``.
    """

    def __init__(self, play: dict[str, Any]) -> None:
        self._play = play

    def run(self) -> None:
        """Handle all messages, one after the other."""
        handle = self._handler()
        for key in self._play["keys"]:
            self._at("begun", key)
            if handle(key):
                say(at="acknowledged", key=key)

    def _at(self, point: str, key: str) -> None:
        say(at=point, key=key)
        _reported.readline()

    def _handler(self) -> Callable[[str], bool]:
        match self._play["kind"]:
            case "none":
                return self._bare
            case "sqlite":
                clock = ManualClock(self._play["now_ms"])
                return self._claims(SqliteInbox(self._play["address"], synchronous="normal", clock=clock))
            case "redis":
                address, _, prefix = self._play["address"].partition(" ")
                return self._claims(RedisInbox.from_url(address, prefix=prefix, timeout_ms=20_000))
            case "sql-sqlite":
                return self._records(sqlite3.connect(self._play["address"], timeout=60))
            case "sql-postgres":
                return self._records(psycopg.connect(self._play["address"]))
            case "sql-apart":
                return self._records(sqlite3.connect(self._play["address"], timeout=60), together=False)
        raise ValueError(self._play["kind"])

    def _effect(self, key: str) -> None:
        with Path(self._play["effects"]).open("ab", buffering=0) as file:
            file.write(key.encode() + b"\n")

    def _bare(self, key: str) -> bool:
        self._effect(key)
        self._at("effect", key)
        return True

    def _claims(self, inbox: Inbox) -> Callable[[str], bool]:
        owner = self._play["owner"]

        def handle(key: str) -> bool:
            answer = inbox.claim(key, owner, LEASE_MS).answer
            self._at(f"claim {answer.value}", key)
            if answer is Answer.MINE:
                self._effect(key)
                self._at("effect", key)
                is_ours = inbox.done(key, owner, KEEP_MS)
                self._at("done" if is_ours else "fenced", key)
            return answer is not Answer.TAKEN

        return handle

    def _records(self, connection: Any, *, together: bool = True) -> Callable[[str], bool]:
        inbox = SqlInbox("persistent://a/b/c", "billing")
        # No statement is built at run time, and the two drivers mark parameters differently.
        is_sqlite = isinstance(connection, sqlite3.Connection)
        insert = "INSERT INTO effects VALUES (?)" if is_sqlite else "INSERT INTO effects VALUES (%s)"

        def handle(key: str) -> bool:
            is_first = inbox.once(connection, key)
            if not together:
                connection.commit()  # wrong: records an effect that has not happened
            self._at("once" if is_first else "again", key)
            if is_first:
                with closing(connection.cursor()) as cursor:
                    cursor.execute(insert, (key,))
                self._at("effect", key)
            connection.commit()
            self._at("committed", key)
            return True

        return handle


def main() -> None:
    """Play until standard input ends."""
    say(ready=os.getpid())
    while line := _reported.readline():
        if line == GO:
            continue  # meant for a child that was killed before it read this
        child = os.fork()
        if child == 0:
            say(child=os.getpid())
            code = 1
            try:
                Player(json.loads(line)).run()
                code = 0
            except Exception:  # noqa: BLE001 - the test's own output shows any error
                traceback.print_exc()
            finally:
                # At once: buffers and exit handlers that this process shares with its parent belong to the parent.
                os._exit(code)
        _, status = os.waitpid(child, 0)
        say(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
