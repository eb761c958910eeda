"""An inbox in the user's own database: the record of an effect is written in the transaction of that effect.

Both are stored, or neither is. With no other store does an effect happen exactly once after any crash.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Protocol

from timewheel.core.clock import Clock, SystemClock

from .protocol import DEFAULT_KEEP_MS, BadInbox, check_key, check_least, inbox_key, kept_for_ms

DEFAULT_FORGET_AT_ONCE = 1_000
"""Rows removed by a `SqlInbox.forget`: some milliseconds, in which their locks do not disturb other transactions."""
CREATE_STATEMENTS = (
    "CREATE TABLE IF NOT EXISTS timewheel_inbox (key TEXT PRIMARY KEY, forget_ms BIGINT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS timewheel_inbox_forget ON timewheel_inbox (forget_ms)",
)
"""Statements for both SQLite and PostgreSQL."""

# RETURNING and not a row count, which each driver reports differently. Written for each style of parameters: no
# statement is put together at run time.
_ONCE = {
    "?": "INSERT INTO timewheel_inbox (key, forget_ms) VALUES (?, ?) ON CONFLICT DO NOTHING RETURNING 1",
    "%s": "INSERT INTO timewheel_inbox (key, forget_ms) VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING 1",
}
_FORGET = {
    "?": "DELETE FROM timewheel_inbox WHERE key IN "
    "(SELECT key FROM timewheel_inbox WHERE forget_ms <= ? ORDER BY forget_ms LIMIT ?) RETURNING 1",
    "%s": "DELETE FROM timewheel_inbox WHERE key IN "
    "(SELECT key FROM timewheel_inbox WHERE forget_ms <= %s ORDER BY forget_ms LIMIT %s) RETURNING 1",
}

_Execute = Callable[[str, Sequence[object]], Any]


class TimerMessage(Protocol):
    """The attributes of a message that make its key; every `timewheel.consumers.DelayedMessage` has them."""

    @property
    def timer_id(self) -> str | None: ...
    @property
    def generation(self) -> int | None: ...
    @property
    def due_at(self) -> dt.datetime | None: ...


class SqlInbox:
    """Records of effects, in a table ``timewheel_inbox`` beside the user's own.

    Connections are the user's: from ``sqlite3`` or ``psycopg``, or SQLAlchemy's `Connection` over either (of a session:
    ``session.connection()``), to SQLite 3.35 or PostgreSQL 9.5 and newer. Their errors are raised unchanged: the
    transaction has failed then, and its effect with it.

    Args:
        due_topic: Due topic of the plan.
        subscription: The consumer's subscription.
        keep_ms: Time that a record is kept past the timer's due time, or past now if that is later.
        clock: Gives the age of records.
    """

    create_statements = CREATE_STATEMENTS
    """Statements that create the table, for users whose schema is managed elsewhere; `create` runs them."""

    def __init__(
        self, due_topic: str, subscription: str, *, keep_ms: int = DEFAULT_KEEP_MS, clock: Clock | None = None
    ) -> None:
        check_least("keep_ms", keep_ms, 1)
        self._due_topic = due_topic
        self._subscription = subscription
        self._keep_ms = keep_ms
        self._clock = clock or SystemClock()

    def create(self, connection: Any) -> None:
        """Create the table if it does not exist. Commit afterwards."""
        execute, _ = _of(connection)
        for statement in CREATE_STATEMENTS:
            execute(statement, ())

    def once(self, connection: Any, message: TimerMessage | str) -> bool:
        """Return whether the effect is still to be done; write it in the same transaction, then commit.

        A second transaction for the same timer waits for this transaction (PostgreSQL), or fails with the database's
        own error (SQLite, after its timeout).

        Args:
            connection: A connection in a transaction, or about to begin a transaction.
            message: The timer as its handler sees it; or a key of your own, which may well contain the timer id.

        Returns:
            False if the effect was done and committed. Do nothing, and let the handler return.

        Raises:
            InboxKeyTooLong: The names in the key are too long together.
            BadInbox: The connection commits each statement by itself, or is of an unknown kind; or the message is no
                timer.
        """
        now_ms = self._clock.now_ms()
        if isinstance(message, str):
            key, due_ms = message, now_ms
            check_key(key)
        else:
            key, due_ms = self._key_of(message)
        execute, mark = _of(connection)
        forget_ms = now_ms + kept_for_ms(due_ms, now_ms, self._keep_ms)
        return bool(execute(_ONCE[mark], (key, forget_ms)).fetchall())

    def forget(self, connection: Any, at_most: int = DEFAULT_FORGET_AT_ONCE) -> int:
        """Remove some old records, of all subscriptions. Commit; repeat while it removes records.

        Returns:
            Number of removed records.
        """
        check_least("at_most", at_most, 1)
        execute, mark = _of(connection)
        return len(execute(_FORGET[mark], (self._clock.now_ms(), at_most)).fetchall())

    def _key_of(self, message: TimerMessage) -> tuple[str, int]:
        timer_id, generation, due_at = message.timer_id, message.generation, message.due_at
        if timer_id is None or generation is None:
            raise BadInbox("message", "carries no timer id: hand in a key of your own, as text")
        # A plain message beside a shadow has no due time: it is kept from now on, like all messages that are handled
        # late.
        due_ms = 0 if due_at is None else (due_at - _EPOCH) // dt.timedelta(milliseconds=1)
        return inbox_key(self._due_topic, self._subscription, timer_id, generation), due_ms


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _of(connection: Any) -> tuple[_Execute, str]:
    """Return how to execute statements, and the parameter mark; the next statement then runs in a transaction.
    `BadInbox`: it would commit each statement by itself, or is of an unknown kind.
    """
    if iscoroutinefunction(getattr(connection, "commit", None)):
        # Its answers are awaitables; without an await, each would count as true.
        raise BadInbox("connection", "is asynchronous: in SQLAlchemy's run_sync you are handed one that is not")
    if not hasattr(connection, "exec_driver_sql"):
        return _plain(connection), _mark_of(connection)
    # SQLAlchemy's connection, recognised without an import: a user of such a connection has the library.
    if not connection.in_transaction():
        connection.begin()  # as its first statement would; also begins the driver's, where that is manual
    mark = _mark_of(connection.connection.driver_connection)
    return lambda statement, values: connection.exec_driver_sql(statement, tuple(values)), mark


def _plain(connection: Any) -> _Execute:
    def execute(statement: str, values: Sequence[object]) -> Any:
        cursor = connection.cursor()
        cursor.execute(statement, values)
        return cursor

    return execute


def _mark_of(connection: Any) -> str:
    """Return the parameter mark of a driver's connection; refuse those that commit before the effect.

    A crash between the two would lose the effect.
    """
    if isinstance(connection, sqlite3.Connection):
        # `autocommit` came with Python 3.12; its default, -1, means that isolation_level decides.
        mode = getattr(connection, "autocommit", -1)
        commits = mode is True or (mode is not False and connection.isolation_level is None)
        mark, is_open = "?", connection.in_transaction
    elif any(kind.__module__.partition(".")[0] == "psycopg" for kind in type(connection).__mro__):
        commits = connection.autocommit
        mark, is_open = "%s", connection.info.transaction_status != _IDLE
    else:
        name = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise BadInbox("connection", f"a {name}: use one of sqlite3 or psycopg, or SQLAlchemy's with one of these")
    if commits and not is_open:
        reason = "commits each statement by itself: begin a transaction first, and commit it with the effect in it"
        raise BadInbox("connection", reason)
    return mark


_IDLE = 0  # libpq's status of a connection that is not in a transaction
