"""Tiers: a timer waits in holding topics of fixed stay and hops on until it is close to due.

Days are seconds here, so that it ends while you watch: tiers of 2 s and 6 s in front of a window of 2 s.

    PULSAR_SERVICE_URL=pulsar://localhost:6650 PULSAR_ADMIN_URL=http://localhost:8080 python examples/tiered.py
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
due_topic = "persistent://public/default/tiered-example"
subscriptions = ["billing"]
max_delay = "30s"
guard = "500ms"
[tiered]
window = "2s"
tiers = ["2s", "6s"]
"""
DELAYS_S = (1, 3, 5, 8, 11)


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
        print(f"{message.timer_id}: {message.data().decode()}, {message.hops} hops, late by {message.lateness}")
        handled.append(message.timer_id)
        if len(handled) == len(DELAYS_S):
            consumer.stop()

    with DelayedConsumer(client, plan, "billing") as consumer:  # embeds the relay: nothing else is to be deployed
        with DelayedProducer(client, plan) as producer:
            for delay_s in DELAYS_S:
                timer = producer.send(b"renew", deliver_after=timedelta(seconds=delay_s))
                print(f"sent {timer.id}, due {timer.due_at:%H:%M:%S.%f}")
        consumer.run(handle, workers=2)
    client.close()


if __name__ == "__main__":
    main()
