"""What does an effect that happens once cost?

First, stores of claims: a claim and its done, of a new key each time, and a claim of a key that is done. Beside it what
the store's own client takes for two bare writes: in SQLite two transactions of one row, in Redis two ``SET``, in memory
two entries of a dict. Then the record in the user's own transaction: a transaction of one row, alone and with
`SqlInbox.once` in it. Ours and the bare one take turns, key by key; medians, in microseconds, on one connection.

Redis writes its log once a second, PostgreSQL at every commit. All of them are on this machine: in production the way
through the network comes on top, twice for a claim and its done, once for a record.

Goals: at most 3 times the two writes, which have no index to keep, and at most 2 times the transaction alone.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis
import sqlalchemy

from benchmarks.result import Result
from tests.support.postgres_server import postgres_server
from tests.support.redis_server import redis_server
from timewheel.consumers.inbox import Answer, Inbox, MemoryInbox, Owners, RedisInbox, SqlInbox, SqliteInbox, inbox_key

Work = Callable[[str], object]

SHOWN = frozenset(("ours, us", "ratio"))
SEED = 7
KEYS = 4_000
QUICK_KEYS = 200
WARM_UP = 50  # keys that count for nothing: statements are prepared, scripts loaded
GOAL_CLAIM = 3.0
GOAL_TRANSACTION = 2.0
TOPIC = "persistent://public/default/bench"
LEASE_MS = 30_000
KEEP_MS = 86_400_000
IN_MEMORY = "in memory"  # without a goal: two entries of a dict take no time


def tools() -> str:
    return f"SQLite {sqlite3.sqlite_version}, redis-py {redis.__version__}, psycopg {psycopg.__version__}"


def timed_us(work: Work, key: str) -> float:
    began_ns = time.perf_counter_ns()
    work(key)
    return (time.perf_counter_ns() - began_ns) / 1_000


def in_turns(works: dict[str, Work], keys: int) -> dict[str, list[float]]:
    """What each took of each key; who is first changes from key to key."""
    took: dict[str, list[float]] = {name: [] for name in works}
    orders = itertools.cycle([tuple(works.items()), tuple(reversed(works.items()))])
    for number in range(-WARM_UP, keys):
        key = inbox_key(TOPIC, "billing", f"sub-{number:08d}-2f9c4e1b7a60", 0)
        for name, work in next(orders):
            us = timed_us(work, key)
            if number >= 0:
                took[name].append(us)
    return took


def once(inbox: Inbox) -> Work:
    owners = Owners(random.Random(SEED))

    def work(key: str) -> None:
        owner = owners.new()
        if inbox.claim(key, owner, LEASE_MS).answer is not Answer.MINE:
            raise RuntimeError(f"{key} was claimed before")
        inbox.done(key, owner, KEEP_MS)

    return work


def again(inbox: Inbox) -> Work:

    def work(key: str) -> None:
        if inbox.claim(key, "another", LEASE_MS).answer is not Answer.DONE:
            raise RuntimeError(f"{key} is not done")

    return work


def bare_sqlite(file: Path, synchronous: str) -> tuple[sqlite3.Connection, Work]:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("CREATE TABLE bare (key TEXT PRIMARY KEY, state INTEGER) WITHOUT ROWID, STRICT")

    def work(key: str) -> None:
        connection.execute("INSERT INTO bare VALUES (?, 0)", (key,))
        connection.execute("UPDATE bare SET state = 1 WHERE key = ?", (key,))

    return connection, work


def bare_redis(client: redis.Redis) -> Work:

    def work(key: str) -> None:
        client.set("bare:" + key, "claimed", px=LEASE_MS)
        client.set("bare:" + key, "done", px=KEEP_MS)

    return work


def bare_memory() -> Work:
    states: dict[str, str] = {}

    def work(key: str) -> None:
        states[key] = "claimed"
        states[key] = "done"

    return work


@contextmanager
def claim_stores(folder: Path) -> Iterator[dict[str, tuple[Inbox, Work]]]:
    """By name the store, and the bare writes beside it."""
    with ExitStack() as stack:
        found: dict[str, tuple[Inbox, Work]] = {IN_MEMORY: (MemoryInbox(), bare_memory())}
        for synchronous in ("normal", "full"):
            inbox = stack.enter_context(
                closing(SqliteInbox(folder / synchronous, synchronous="full" if synchronous == "full" else "normal"))
            )
            connection, work = bare_sqlite(folder / f"bare-{synchronous}", synchronous)
            stack.enter_context(closing(connection))
            found[f"SQLite, synchronous {synchronous}"] = inbox, work
        server = stack.enter_context(redis_server("--appendonly", "yes", "--appendfsync", "everysec"))
        client = stack.enter_context(server.client())
        found["Redis"] = RedisInbox(client), bare_redis(client)
        yield found


def row(question: str, subject: str, took: dict[str, list[float]], goal: float | None, **more: float) -> Result:
    bare, ours = (statistics.median(took[name]) for name in ("bare", "ours"))
    return Result(
        question=question,
        subject=subject,
        figures={
            "bare, us": bare,
            "ours, us": ours,
            "more, us": ours - bare,
            "ratio": ours / bare,
            "ours p99, us": sorted(took["ours"])[len(took["ours"]) * 99 // 100],
            **more,
        },
        goal="" if goal is None else f"ratio at most {goal}",
        met=None if goal is None else ours / bare <= goal,
    )


def claims(folder: Path, keys: int) -> list[Result]:
    results = []
    with claim_stores(folder) as stores:
        for name, (inbox, bare) in stores.items():
            took = in_turns({"bare": bare, "ours": once(inbox)}, keys)
            repeated_us = statistics.median(in_turns({"again": again(inbox)}, keys)["again"])
            goal = None if name == IN_MEMORY else GOAL_CLAIM
            results.append(row("a claim and its done", name, took, goal, **{"a done key again, us": repeated_us}))
    return results


def in_transaction(connection: Any, insert: Work) -> dict[str, Work]:
    """A transaction of one row, alone and with the record in it."""
    inbox = SqlInbox(TOPIC, "billing")
    inbox.create(connection)
    connection.commit()

    def bare(key: str) -> None:
        insert(key)
        connection.commit()

    def ours(key: str) -> None:
        if not inbox.once(connection, key):
            raise RuntimeError(f"{key} was done before")
        insert(key)
        connection.commit()

    return {"bare": bare, "ours": ours}


TABLE = "CREATE TABLE effects (key TEXT NOT NULL)"


@contextmanager
def databases(folder: Path) -> Iterator[dict[str, dict[str, Work]]]:
    with ExitStack() as stack:
        plain = stack.enter_context(closing(sqlite3.connect(folder / "plain")))
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute(TABLE)
        engine = sqlalchemy.create_engine(f"sqlite:///{folder / 'core'}")
        stack.callback(engine.dispose)
        core = stack.enter_context(engine.connect())
        core.exec_driver_sql("PRAGMA journal_mode = WAL")
        core.exec_driver_sql(TABLE)
        statement = sqlalchemy.text("INSERT INTO effects VALUES (:key)")
        postgres = stack.enter_context(psycopg.connect(stack.enter_context(postgres_server(fsync="on"))))
        postgres.execute(TABLE)
        yield {
            "SQLite, sqlite3": in_transaction(
                plain, lambda key: plain.execute("INSERT INTO effects VALUES (?)", (key,))
            ),
            "SQLite, SQLAlchemy": in_transaction(core, lambda key: core.execute(statement, {"key": key})),
            "PostgreSQL, psycopg": in_transaction(
                postgres, lambda key: postgres.execute("INSERT INTO effects VALUES (%s)", (key,))
            ),
        }


def transactions(folder: Path, keys: int) -> list[Result]:
    with databases(folder) as found:
        return [
            row("a record in the user's own transaction", name, in_turns(works, keys), GOAL_TRANSACTION)
            for name, works in found.items()
        ]


def main(quick: bool = False) -> list[Result]:
    keys = QUICK_KEYS if quick else KEYS
    with tempfile.TemporaryDirectory(prefix="timewheel-bench-inbox-") as folder:
        found = [claims(Path(folder), keys), transactions(Path(folder), keys)]
    return [result for results in found for result in results]
