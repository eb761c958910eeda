"""The record in the user's own transaction: SQLite and PostgreSQL, by their drivers and by SQLAlchemy."""

from __future__ import annotations

import asyncio
import datetime as dt
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import event, orm
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support.manual_clock import ManualClock
from timewheel.consumers.inbox import MAX_KEY_BYTES, SqlInbox, inbox_key
from timewheel.core.envelope import MAX_TIMER_ID_CHARS
from timewheel.errors import BadInbox, InboxKeyTooLong

TOPIC = "persistent://acme/crm/reminders"
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
WAIT_S = 60

DUE_AT = dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC)

Open = Callable[[], Any]


@dataclass(frozen=True)
class Message:
    """What a handler sees of a timer."""

    timer_id: str | None = "sub-42"
    generation: int | None = 0
    due_at: dt.datetime | None = DUE_AT


@contextmanager
def _opener(kind: str, file: Path, postgres: Callable[[], str]) -> Iterator[Open]:
    """Opens connections that are in the state in which a user gets them."""
    with ExitStack() as stack:
        if kind == "sqlite3":
            yield lambda: stack.enter_context(closing(sqlite3.connect(file, timeout=WAIT_S, check_same_thread=False)))
        elif kind == "psycopg":
            yield lambda: stack.enter_context(closing(psycopg.connect(postgres())))
        else:
            url = f"sqlite:///{file}"
            if kind == "SQLAlchemy, PostgreSQL":
                url = "postgresql+psycopg://?" + "&".join(
                    part for part in postgres().split() if not part.startswith("connect")
                )
            engine = sqlalchemy.create_engine(url)
            stack.callback(engine.dispose)
            yield lambda: stack.enter_context(engine.connect())


@pytest.fixture(params=["sqlite3", "psycopg", "SQLAlchemy, SQLite", "SQLAlchemy, PostgreSQL"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens a connection to a database with an empty table."""
    with _opener(request.param, tmp_path / "db.sqlite3", lambda: request.getfixturevalue("postgres")) as open_one:
        connection = open_one()
        SqlInbox(TOPIC, "billing").create(connection)
        # Of no style of parameters, so that every kind takes it.
        _execute(connection, "DELETE FROM timewheel_inbox")
        connection.commit()
        yield open_one


def _execute(connection: Any, statement: str) -> Any:
    if isinstance(connection, sqlalchemy.Connection):
        return connection.exec_driver_sql(statement)
    return connection.execute(statement)


def _rows(connection: Any) -> list[tuple[str, int]]:
    found = [(key, forget_ms) for key, forget_ms in _execute(connection, "SELECT * FROM timewheel_inbox").fetchall()]
    connection.rollback()
    return found


def test_the_first_is_told_to_and_no_other_once_it_is_committed(opened: Open) -> None:
    inbox, first, second = SqlInbox(TOPIC, "billing"), opened(), opened()
    assert inbox.once(first, Message())
    assert not inbox.once(first, Message()), "not in the same transaction either"
    first.commit()

    assert not inbox.once(second, Message())
    assert inbox.once(second, Message(generation=1))
    assert SqlInbox(TOPIC, "shipping").once(second, Message())
    assert SqlInbox(TOPIC + "2", "billing").once(second, Message())
    assert inbox.once(second, "a key of the user's own")


def test_what_is_rolled_back_was_not_done(opened: Open) -> None:
    inbox, connection = SqlInbox(TOPIC, "billing"), opened()
    assert inbox.once(connection, Message())
    connection.rollback()

    assert inbox.once(connection, Message())


def test_a_record_is_in_the_transaction_that_the_user_began(opened: Open) -> None:
    inbox, connection = SqlInbox(TOPIC, "billing"), opened()
    _execute(connection, "CREATE TABLE IF NOT EXISTS mine (id INTEGER)")
    connection.commit()
    _execute(connection, "INSERT INTO mine VALUES (1)")
    inbox.once(connection, Message())
    connection.rollback()

    assert _rows(connection) == []
    assert _execute(connection, "SELECT * FROM mine").fetchall() == []


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "rolled back"])
def test_of_two_transactions_at_once_one_does_it(opened: Open, is_committed: bool) -> None:
    inbox, first, second = SqlInbox(TOPIC, "billing"), opened(), opened()
    assert inbox.once(first, Message())

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(inbox.once, second, Message())
        (first.commit if is_committed else first.rollback)()
        assert waiting.result(WAIT_S) is not is_committed
    second.rollback()


def test_a_record_is_kept_past_the_due_time_and_past_now(opened: Open) -> None:
    clock = ManualClock(NOW_MS)
    inbox, connection = SqlInbox(TOPIC, "billing", keep_ms=DAY_MS, clock=clock), opened()
    later = DUE_AT + dt.timedelta(hours=1)
    inbox.once(connection, Message())
    inbox.once(connection, Message("later", due_at=later))
    clock.advance(7_000)
    inbox.once(connection, Message("late"))
    inbox.once(connection, "by hand")
    connection.commit()

    assert dict(_rows(connection)) == {
        inbox_key(TOPIC, "billing", "sub-42", 0): NOW_MS + DAY_MS,
        inbox_key(TOPIC, "billing", "later", 0): NOW_MS + 3_600_000 + DAY_MS,
        inbox_key(TOPIC, "billing", "late", 0): NOW_MS + 7_000 + DAY_MS,
        "by hand": NOW_MS + 7_000 + DAY_MS,
    }


def test_old_records_are_removed_in_steps_and_the_oldest_first(opened: Open) -> None:
    clock = ManualClock(NOW_MS)
    inbox, connection = SqlInbox(TOPIC, "billing", keep_ms=DAY_MS, clock=clock), opened()
    for number in range(25):
        inbox.once(connection, f"{number:02}")
        clock.advance(1_000)
    connection.commit()
    assert inbox.forget(connection) == 0

    clock.advance(DAY_MS - 5_000)  # the last five have a while to go
    removed = [inbox.forget(connection, 8)]
    assert min(key for key, _ in _rows_in(connection)) == "08"
    removed += [inbox.forget(connection, 8) for _ in range(3)]
    connection.commit()

    assert removed == [8, 8, 5, 0]
    assert len(_rows(connection)) == 4


def _rows_in(connection: Any) -> list[tuple[str, int]]:
    """In the transaction that is going on."""
    return [(key, forget_ms) for key, forget_ms in _execute(connection, "SELECT * FROM timewheel_inbox").fetchall()]


def test_the_longest_key_and_any_character_are_kept(opened: Open) -> None:
    inbox, connection = SqlInbox(TOPIC, "billing"), opened()
    ids = ["\U0001f511" * MAX_TIMER_ID_CHARS, "a\0b", "a%00b", "'; DROP TABLE timewheel_inbox; --", "%s ? :x"]
    # Of characters that do not repeat: PostgreSQL packs what does, and so would take even more.
    long = "".join(chr(0x4E00 + number) for number in range(MAX_KEY_BYTES // 3))
    for timer_id in ids:
        assert inbox.once(connection, Message(timer_id))
    assert inbox.once(connection, long)
    connection.commit()

    assert not any(inbox.once(connection, Message(timer_id)) for timer_id in ids)
    assert not inbox.once(connection, long)


def test_the_table_can_be_made_twice_and_by_hand(opened: Open) -> None:
    inbox, connection = SqlInbox(TOPIC, "billing"), opened()
    inbox.create(connection)
    _execute(connection, "DROP TABLE timewheel_inbox")
    for statement in SqlInbox.create_statements:
        _execute(connection, statement)
    connection.commit()

    assert inbox.once(connection, Message())


def _commits_by_itself(kind: str, file: Path, address: str, stack: ExitStack) -> Any:
    match kind:
        case "sqlite3":
            return stack.enter_context(closing(sqlite3.connect(file, isolation_level=None)))
        case "psycopg":
            return stack.enter_context(closing(psycopg.connect(address, autocommit=True)))
        case "SQLAlchemy, SQLite":
            engine = sqlalchemy.create_engine(f"sqlite:///{file}", isolation_level="AUTOCOMMIT")
        case _:
            query = "&".join(part for part in address.split() if not part.startswith("connect"))
            engine = sqlalchemy.create_engine(f"postgresql+psycopg://?{query}", isolation_level="AUTOCOMMIT")
    stack.callback(engine.dispose)
    return stack.enter_context(engine.connect())


@pytest.mark.parametrize("kind", ["sqlite3", "psycopg", "SQLAlchemy, SQLite", "SQLAlchemy, PostgreSQL"])
def test_a_connection_that_commits_each_statement_by_itself_is_refused(
    tmp_path: Path, postgres: str, kind: str
) -> None:
    """It would store the record before the effect: a crash in between would lose the effect."""
    inbox = SqlInbox(TOPIC, "billing")
    with ExitStack() as stack:
        connection = _commits_by_itself(kind, tmp_path / "db.sqlite3", postgres, stack)
        with pytest.raises(BadInbox, match="commits each statement by itself: begin a transaction first"):
            inbox.once(connection, Message())


def test_of_such_a_connection_a_transaction_that_was_begun_is_good(tmp_path: Path, postgres: str) -> None:
    inbox = SqlInbox(TOPIC, "begun")
    with closing(sqlite3.connect(tmp_path / "db.sqlite3", isolation_level=None)) as connection:
        connection.execute("BEGIN")
        inbox.create(connection)
        assert inbox.once(connection, Message())
        connection.execute("ROLLBACK")
        assert connection.execute("SELECT * FROM sqlite_schema").fetchall() == []
    with psycopg.connect(postgres, autocommit=True) as other:
        with other.transaction():
            inbox.create(other)
            assert inbox.once(other, Message())
        with other.transaction():
            assert not inbox.once(other, Message())


def test_of_sqlalchemy_that_begins_by_hand_the_first_statement_begins(tmp_path: Path) -> None:
    """As its own page on SQLite's transactions has it."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'db.sqlite3'}")
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    inbox = SqlInbox(TOPIC, "billing")
    with engine.connect() as connection:
        inbox.create(connection)
        connection.commit()
        assert inbox.once(connection, Message())
        connection.rollback()
        assert inbox.once(connection, Message())
    engine.dispose()


def test_a_session_hands_over_its_connection(tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'db.sqlite3'}")
    inbox = SqlInbox(TOPIC, "billing")
    with orm.Session(engine) as session:
        inbox.create(session.connection())
        assert inbox.once(session.connection(), Message())
        session.commit()
        assert not inbox.once(session.connection(), Message())
    engine.dispose()


class _Strange:
    """A connection of a driver that nobody has tried."""

    def commit(self) -> None: ...


def test_a_connection_of_another_kind_is_refused() -> None:
    inbox = SqlInbox(TOPIC, "billing")
    with pytest.raises(BadInbox, match=r"a .*_Strange: use one of sqlite3 or psycopg"):
        inbox.once(_Strange(), Message())


def test_an_asynchronous_connection_is_refused_and_what_run_sync_hands_over_is_good(postgres: str) -> None:
    inbox = SqlInbox(TOPIC, "asynchronous")
    query = "&".join(part for part in postgres.split() if not part.startswith("connect"))

    async def play() -> tuple[bool, bool]:
        async with await psycopg.AsyncConnection.connect(postgres) as plain:
            with pytest.raises(BadInbox, match=r"asynchronous.*run_sync"):
                inbox.once(plain, Message())
        engine = create_async_engine(f"postgresql+psycopg://?{query}")
        async with engine.begin() as connection:
            with pytest.raises(BadInbox, match=r"asynchronous.*run_sync"):
                inbox.once(connection, Message())
            await connection.run_sync(inbox.create)
            first = await connection.run_sync(inbox.once, Message())
        async with engine.begin() as connection:
            second = await connection.run_sync(inbox.once, Message())
        await engine.dispose()
        return first, second

    assert asyncio.run(play()) == (True, False)


def test_a_plain_message_beside_a_shadow_is_kept_from_now_on(tmp_path: Path) -> None:
    """It has an id, its place, and says no due time."""
    inbox = SqlInbox(TOPIC, "billing", keep_ms=5, clock=ManualClock(NOW_MS))
    with closing(sqlite3.connect(tmp_path / "db.sqlite3")) as connection:
        inbox.create(connection)
        assert [inbox.once(connection, Message("part:1:2", due_at=None)) for _ in range(2)] == [True, False]
        assert connection.execute("SELECT forget_ms FROM timewheel_inbox").fetchall() == [(NOW_MS + 5,)]


def test_a_message_that_is_no_timer_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    inbox = SqlInbox(TOPIC, "billing")
    with closing(sqlite3.connect(tmp_path / "db.sqlite3")) as connection:
        with pytest.raises(BadInbox, match="carries no timer id: hand in a key of your own"):
            inbox.once(connection, Message(timer_id=None, generation=None, due_at=None))
        with pytest.raises(InboxKeyTooLong):
            SqlInbox(TOPIC, "s" * MAX_KEY_BYTES).once(connection, Message())
        with pytest.raises(InboxKeyTooLong):
            inbox.once(connection, "x" * (MAX_KEY_BYTES + 1))
        assert not connection.in_transaction


def test_a_memory_of_no_length_is_refused() -> None:
    with pytest.raises(BadInbox, match="keep_ms: 0, must be at least 1"):
        SqlInbox(TOPIC, "billing", keep_ms=0)
