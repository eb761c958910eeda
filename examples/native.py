"""Native: every timer goes straight to the due topic under the broker's own delay.

The baseline, and the way in and out. It leaves gaps where delays differ, but needs no further topic and no relay.
Producer and consumer keep their promises all the same: never early, late by milliseconds, dropped if delivered twice.

    PULSAR_SERVICE_URL=pulsar://localhost:6650 PULSAR_ADMIN_URL=http://localhost:8080 python examples/native.py
"""

import os
import time
from datetime import timedelta

import pulsar

from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core import parse_plan
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure

PLAN = """
format = 1
due_topic = "persistent://public/default/native-example"
subscriptions = ["billing"]
max_delay = "30s"
[native]
"""
DELAYS_S = (1, 2, 3, 5)


def main() -> None:
    plan = parse_plan(PLAN)
    # In a deployment: `timewheel topics ensure PLAN`, once, before the first send.
    with AdminClient(os.environ.get("PULSAR_ADMIN_URL", "http://localhost:8080")) as admin:
        ensure(admin, plan, now_ms=int(time.time() * 1000))

    # Without a logger the client writes its own log, every connection of it, to standard output.
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650"), logger=quiet)
    handled = []

    def handle(message: DelayedMessage) -> None:
        print(f"{message.timer_id}: {message.data().decode()}, late by {message.lateness}")
        handled.append(message.timer_id)
        if len(handled) == len(DELAYS_S):
            consumer.stop()

    with DelayedConsumer(client, plan, "billing") as consumer:
        with DelayedProducer(client, plan) as producer:
            for delay_s in DELAYS_S:
                timer = producer.send(b"renew", deliver_after=timedelta(seconds=delay_s))
                print(f"sent {timer.id}, due {timer.due_at:%H:%M:%S.%f}")
        consumer.run(handle, workers=2)
    client.close()


if __name__ == "__main__":
    main()
