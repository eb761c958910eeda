"""A web service with reminders: one process that sends timers from its routes and handles them when they are due.

Tiers are seconds here, so that a reminder comes back while you watch:

    pip install fastapi uvicorn
    export PULSAR_SERVICE_URL=pulsar://localhost:6650 PULSAR_ADMIN_URL=http://localhost:8080
    python examples/fastapi_reminders.py
    curl localhost:8000/reminders --json '{"customer": "Zoe", "text": "renew", "in_seconds": 5}'
    curl localhost:8000/reminders
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated

import pulsar
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core import parse_plan
from timewheel.errors import SendFailed, SendOutcomeUnknown, SendRefused
from timewheel.producers import AsyncDelayedProducer
from timewheel.provision import ensure

PLAN = parse_plan("""
format = 1
due_topic = "persistent://public/default/fastapi-example"
subscriptions = ["mailer"]
max_delay = "1h"
guard = "500ms"
[tiered]
window = "2s"
tiers = ["2s", "10s"]
""")


class Reminder(BaseModel):
    """What a client asks for."""

    customer: str
    text: str
    in_seconds: Annotated[int, Field(ge=0)]
    id: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    """Ask twice with the same id, and it is handled once."""


class Reminded(BaseModel):
    """What became of one."""

    id: str
    customer: str
    text: str
    late_ms: float


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect when the service starts, after any fork of its server; drain when it stops."""
    # In a deployment: `timewheel topics ensure PLAN`, once, before the first send.
    with AdminClient(os.environ.get("PULSAR_ADMIN_URL", "http://localhost:8080")) as admin:
        await asyncio.to_thread(ensure, admin, PLAN, now_ms=int(time.time() * 1000))

    # Without a logger the client writes its own log, every connection of it, to standard output.
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650"), logger=quiet)
    app.state.reminded = []

    def handle(message: DelayedMessage) -> None:  # returns: acknowledged
        asked = json.loads(message.data())
        late_ms = (message.lateness or timedelta()) / timedelta(milliseconds=1)
        assert message.timer_id is not None
        app.state.reminded.append(Reminded(id=message.timer_id, late_ms=late_ms, **asked))

    consumer = DelayedConsumer(client, PLAN, "mailer")  # embeds the relay
    handling = threading.Thread(target=consumer.run, args=(handle,), kwargs={"workers": 4})
    handling.start()
    async with AsyncDelayedProducer(client, PLAN) as producer:
        app.state.producer = producer
        yield
    consumer.stop()
    await asyncio.to_thread(handling.join)
    await asyncio.to_thread(consumer.close)
    await asyncio.to_thread(client.close)


app = FastAPI(title="Reminders", lifespan=lifespan)


@app.post("/reminders", status_code=202)
async def remind(asked: Reminder, request: Request) -> dict[str, str]:
    """Take a reminder; answered when it is stored."""
    producer: AsyncDelayedProducer = request.app.state.producer
    try:
        timer = await producer.send(
            json.dumps({"customer": asked.customer, "text": asked.text}).encode(),
            deliver_after=timedelta(seconds=asked.in_seconds),
            timer_id=asked.id,
            partition_key=asked.customer,
        )
    except SendRefused as error:  # the caller's arguments: a delay beyond max_delay, ...
        raise HTTPException(422, str(error)) from error
    except SendFailed as error:  # not stored
        raise HTTPException(503, str(error)) from error
    except SendOutcomeUnknown as error:  # perhaps stored: the same id again is safe
        raise HTTPException(504, {"try_again_with_id": error.timer_id}) from error
    return {"id": timer.id, "due_at": timer.due_at.isoformat()}


@app.get("/reminders")
async def reminded(request: Request) -> list[Reminded]:
    """Those that were handled."""
    handled: list[Reminded] = request.app.state.reminded
    return handled


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), log_level="warning")
