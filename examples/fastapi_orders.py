"""A web service whose orders expire: placing one starts its time-out, paying cancels it, and expiry returns the stock.

The effect and the record that it happened are in one transaction of the service's own database, so stock is returned
once, whatever crashes. Time-outs are seconds here:

    pip install fastapi uvicorn
    export PULSAR_SERVICE_URL=pulsar://localhost:6650 PULSAR_ADMIN_URL=http://localhost:8080
    python examples/fastapi_orders.py
    curl localhost:8000/orders --json '{"article": "lamp", "quantity": 2}'
    curl -X POST localhost:8000/orders/1/payment
    curl localhost:8000/orders/1
    curl localhost:8000/stock/lamp
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pulsar
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from timewheel.broker.admin import AdminClient
from timewheel.consumers import AsyncDelayedConsumer, DelayedMessage, RetryPolicy
from timewheel.consumers.inbox import SqlInbox
from timewheel.core import parse_plan
from timewheel.errors import CancelFailed, CancelOutcomeUnknown
from timewheel.producers import AsyncDelayedProducer
from timewheel.provision import ensure

PLAN = parse_plan("""
format = 1
due_topic = "persistent://public/default/orders-example"
subscriptions = ["orders"]
max_delay = "1h"
guard = "500ms"
retry = true
[tiered]
window = "2s"
tiers = ["2s", "10s"]
[cancel]
skew = "0ms"
""")
TIME_OUT = timedelta(seconds=float(os.environ.get("ORDER_TIME_OUT_S", "5")))
STOCK = 10


class Database:
    """The service's own tables, and timewheel's beside them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inbox = SqlInbox(PLAN.due_topic, "orders")
        with closing(self._connect()) as connection, connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS orders "
                "(id INTEGER PRIMARY KEY, article TEXT NOT NULL, quantity INT NOT NULL, state TEXT NOT NULL)"
            )
            connection.execute("CREATE TABLE IF NOT EXISTS stock (article TEXT PRIMARY KEY, quantity INT NOT NULL)")
            self._inbox.create(connection)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10)

    def place(self, article: str, quantity: int) -> int | None:
        """Reserve what is ordered; None: there is not so much left."""
        with closing(self._connect()) as connection, connection:
            connection.execute("INSERT INTO stock VALUES (?, ?) ON CONFLICT DO NOTHING", (article, STOCK))
            taken = connection.execute(
                "UPDATE stock SET quantity = quantity - ? WHERE article = ? AND quantity >= ?",
                (quantity, article, quantity),
            )
            if not taken.rowcount:
                return None
            made = connection.execute(
                "INSERT INTO orders (article, quantity, state) VALUES (?, ?, 'open')", (article, quantity)
            )
            return made.lastrowid

    def pay(self, order: int) -> bool:
        """Whether it was still open; then it is paid."""
        with closing(self._connect()) as connection, connection:
            paid = connection.execute("UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'open'", (order,))
            return bool(paid.rowcount)

    def expire(self, message: DelayedMessage) -> None:
        """What an open order had reserved is for others again. Both statements and the record, or none of them."""
        order = int(message.data())
        with closing(self._connect()) as connection, connection:
            if not self._inbox.once(connection, message):
                return
            expired = connection.execute(
                "UPDATE orders SET state = 'expired' WHERE id = ? AND state = 'open' RETURNING article, quantity",
                (order,),
            ).fetchone()
            if expired is not None:
                article, quantity = expired
                connection.execute("UPDATE stock SET quantity = quantity + ? WHERE article = ?", (quantity, article))

    def state(self, order: int) -> str | None:
        """Of an order; None: there is none."""
        with closing(self._connect()) as connection:
            found = connection.execute("SELECT state FROM orders WHERE id = ?", (order,)).fetchone()
        return None if found is None else str(found[0])

    def stock(self, article: str) -> int:
        """What is left of an article."""
        with closing(self._connect()) as connection:
            found = connection.execute("SELECT quantity FROM stock WHERE article = ?", (article,)).fetchone()
        return STOCK if found is None else int(found[0])


class Placed(BaseModel):
    """What a client orders."""

    article: Annotated[str, Field(min_length=1, max_length=100)]
    quantity: Annotated[int, Field(ge=1)]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect when the service starts, after any fork of its server; drain when it stops."""
    # In a deployment: `timewheel topics ensure PLAN`, once, before the first send.
    with AdminClient(os.environ.get("PULSAR_ADMIN_URL", "http://localhost:8080")) as admin:
        await asyncio.to_thread(ensure, admin, PLAN, now_ms=int(time.time() * 1000))
    database = app.state.database = Database(Path(os.environ.get("ORDERS_DATABASE", "orders.sqlite3")))

    async def handle(message: DelayedMessage) -> None:
        await asyncio.to_thread(database.expire, message)

    # Without a logger the client writes its own log, every connection of it, to standard output.
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650"), logger=quiet)
    try:
        async with (
            AsyncDelayedProducer(client, PLAN) as producer,
            AsyncDelayedConsumer(client, PLAN, "orders", retry=RetryPolicy()) as consumer,  # embeds the relay
        ):
            app.state.producer = producer
            # Signals are the server's: it ends this context, and that ends the run.
            handling = asyncio.create_task(consumer.run(handle, concurrency=4, stops_on_signals=False))
            yield
            consumer.stop()
            await handling
    finally:
        await asyncio.to_thread(client.close)


app = FastAPI(title="Orders", lifespan=lifespan)


def _time_out_of(order: int) -> str:
    return f"time-out of order {order}"


@app.post("/orders", status_code=201)
async def place(placed: Placed, request: Request) -> dict[str, int]:
    """Take an order; it has its time-out before this is answered."""
    database: Database = request.app.state.database
    producer: AsyncDelayedProducer = request.app.state.producer
    order = await asyncio.to_thread(database.place, placed.article, placed.quantity)
    if order is None:
        raise HTTPException(409, f"there are only {await asyncio.to_thread(database.stock, placed.article)} left")
    await producer.send(str(order).encode(), deliver_after=TIME_OUT, timer_id=_time_out_of(order))
    return {"id": order}


@app.post("/orders/{order}/payment", status_code=204)
async def pay(order: int, request: Request) -> None:
    """Pay an open order. The database decides; the cancel spares the time-out's handling."""
    database: Database = request.app.state.database
    producer: AsyncDelayedProducer = request.app.state.producer
    if not await asyncio.to_thread(database.pay, order):
        state = await asyncio.to_thread(database.state, order)
        raise HTTPException(404 if state is None else 409, "no such order" if state is None else f"it is {state}")
    # If it is not cancelled, the time-out finds the order paid, and does nothing.
    with suppress(CancelFailed, CancelOutcomeUnknown):
        await producer.cancel(_time_out_of(order))


@app.get("/orders/{order}")
async def show(order: int, request: Request) -> dict[str, str]:
    """How an order stands."""
    state = await asyncio.to_thread(request.app.state.database.state, order)
    if state is None:
        raise HTTPException(404, "no such order")
    return {"state": state}


@app.get("/stock/{article}")
async def stock(article: str, request: Request) -> dict[str, int]:
    """What is left of an article."""
    return {"left": await asyncio.to_thread(request.app.state.database.stock, article)}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), log_level="warning")
