"""The page on inboxes: its blocks do what it says, with a real Redis and a real PostgreSQL."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pulsar
import pytest

from tests.support.checkout import ROOT
from tests.support.kept import Kept
from tests.support.pages import blocks
from tests.support.postgres_server import postgres_server
from tests.support.redis_server import redis_server
from timewheel.broker.admin import AdminClient
from timewheel.client.positions import Position
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.consumers.inbox import MAX_KEY_BYTES
from timewheel.consumers.inbox.memory import DEFAULT_MAX_KEYS
from timewheel.consumers.inbox.sql import DEFAULT_FORGET_AT_ONCE
from timewheel.consumers.inbox.sqlite import DEFAULT_MAX_BYTES, DEFAULT_PATH, FORGET_AT_ONCE, FORGET_EVERY
from timewheel.consumers.message import Arrival, InFlight, Mark
from timewheel.core import Plan
from timewheel.core.envelope import Envelope
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.testing import LocalPulsar

PAGE = (ROOT / "docs" / "how-to" / "handle-once.md").read_text(encoding="utf-8")
IN_SQLITE, IN_SQLALCHEMY, CLAIMS, IN_CONSUMER, IN_REDIS, FORGET = (block.content for block in blocks(PAGE, "python"))

_entries = count()


class Payload:
    """What the client hands over."""

    def data(self) -> bytes:
        return b"acme"


def message(timer_id: str = "sub-42", mark: Mark | None = None) -> DelayedMessage:
    """One delivery of a timer, or of a plain message beside a shadow."""
    arrival = Arrival(Payload(), None, Position(1, next(_entries), -1), Envelope(timer_id, 1_000, 0), None, mark)
    return DelayedMessage(InFlight(timer_id, arrival, 1_000), 1_000)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the blocks define, in a folder of their own; what they opened is closed afterwards."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    yield found
    for name in ("inbox", "engine"):
        for close in ("close", "dispose"):
            getattr(found.get(name), close, lambda: None)()


@pytest.fixture
def broker() -> Iterator[LocalPulsar]:
    """One of its own: the page names no address, and those that the others name are another lane's."""
    with LocalPulsar() as broker:
        yield broker


def test_the_consumer_asks_the_store_by_itself(broker: LocalPulsar, names: dict[str, Any]) -> None:
    plan = Plan(due_topic="persistent://public/default/handle-once", subscriptions=("billing",))
    with AdminClient(broker.admin_url) as admin:
        ensure(admin, plan, now_ms=time.time_ns() // 1_000_000)
    exec(CLAIMS, names)
    came: list[bytes] = []

    def send_mail(message: DelayedMessage) -> None:
        came.append(message.data())
        if message.data() == b"last":
            names["consumer"].stop()

    names |= {"DelayedConsumer": DelayedConsumer, "plan": plan, "send_mail": send_mail}
    for _ in range(2):  # as a second process does, which remembers nothing
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        names["client"] = client
        with DelayedProducer(client, plan) as producer:
            producer.send(b"once", timer_id="sub-42")
            producer.send(b"last", deliver_after=timedelta(seconds=1))
        exec(IN_CONSUMER, names)
        client.close()
    assert came == [b"once", b"last", b"last"]


def test_an_effect_in_sqlite_happens_once_and_is_rolled_back_with_its_record(names: dict[str, Any]) -> None:
    exec(IN_SQLITE, names)
    for timer_id in ("sub-42", "sub-42", "sub-43"):
        names["handle"](message(timer_id))
    with closing(sqlite3.connect("invoices.sqlite3")) as connection:
        assert connection.execute("SELECT * FROM invoices").fetchall() == [("acme",)] * 2
        connection.execute("DROP TABLE invoices")
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            names["handle"](message("sub-44"))
        connection.execute("CREATE TABLE invoices (customer TEXT)")
        names["handle"](message("sub-44"))
        assert connection.execute("SELECT * FROM invoices").fetchall() == [("acme",)]

        connection.execute("UPDATE timewheel_inbox SET forget_ms = 1")
        exec(FORGET, {**names, "connection": connection})
        assert connection.execute("SELECT * FROM timewheel_inbox").fetchall() == []


def test_an_effect_in_postgresql_happens_once(names: dict[str, Any], kept: Kept) -> None:
    address = kept.get("postgres", postgres_server)
    query = "&".join(part for part in address.split() if not part.startswith("connect"))
    assert "postgresql+psycopg://localhost/billing" in IN_SQLALCHEMY
    exec(IN_SQLALCHEMY.replace("postgresql+psycopg://localhost/billing", f"postgresql+psycopg://?{query}"), names)
    for _ in range(2):
        names["handle"](message("docs"))
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT * FROM invoices").fetchall() == [("acme",)]
        connection.execute("DROP TABLE invoices")


@pytest.mark.parametrize("store", ["SQLite", "Redis"])
def test_an_effect_behind_a_claim_happens_once_and_others_wait(
    names: dict[str, Any], kept: Kept, capsys: pytest.CaptureFixture[str], store: str
) -> None:
    exec(CLAIMS, names)
    if store == "Redis":
        names["inbox"].close()
        url = kept.get("redis", redis_server).url
        assert "redis://localhost:6379" in IN_REDIS
        exec(IN_REDIS.replace("redis://localhost:6379", url), names)
    names["inbox"].claim("public/default/reminders billing 0 taken", "another", 60_000)
    for _ in range(2):
        names["handle"](message())
    with pytest.raises(RuntimeError, match=r"another process is at it, for \d+ ms at most"):
        names["handle"](message("taken"))
    for _ in range(2):
        names["handle"](message("part:1:2", Mark.NATIVE))

    assert capsys.readouterr().out == "mail to acme\n" * 2


def test_the_limits_are_those_of_the_code() -> None:
    assert f"more than {MAX_KEY_BYTES:,} bytes" in PAGE
    assert f"`max_keys`, {DEFAULT_MAX_KEYS:,};" in PAGE
    assert f"`max_bytes`, {DEFAULT_MAX_BYTES // 1024**3} GiB;" in PAGE
    assert f"up to {FORGET_AT_ONCE} keys with every {FORGET_EVERY}th claim" in PAGE
    assert f"removes up to {DEFAULT_FORGET_AT_ONCE:,} records" in PAGE
    assert f"`{DEFAULT_PATH}` in the working folder" in PAGE
