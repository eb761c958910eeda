"""Calendar: one due topic per day of due times; no hop, and gaps only inside the day.

A "day" is two seconds here. The consumer follows the topics: it opens each before its day begins, and closes it once
the day has passed and all is quiet.

    PULSAR_SERVICE_URL=pulsar://localhost:6650 PULSAR_ADMIN_URL=http://localhost:8080 python examples/calendar_days.py
"""

import os
import time
from datetime import timedelta

import pulsar

from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core import parse_plan
from timewheel.producers import DelayedProducer
from timewheel.provision import roll

PLAN = """
format = 1
due_topic = "persistent://public/default/calendar-example"
subscriptions = ["billing"]
max_delay = "20s"
[calendar]
interval = "2s"
"""
DELAYS_S = (1, 3, 5, 8, 11)


def main() -> None:
    plan = parse_plan(PLAN)
    # In a deployment `timewheel topics roll PLAN --watch` does it, ahead of time; it removes the passed days too.
    with AdminClient(os.environ.get("PULSAR_ADMIN_URL", "http://localhost:8080")) as admin:
        roll(admin, plan, int(time.time() * 1000))

    # Without a logger the client writes its own log, every connection of it, to standard output.
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650"), logger=quiet)
    handled = []

    def handle(message: DelayedMessage) -> None:
        topic = message.topic_name().rsplit("/", 1)[1]
        print(f"{message.timer_id} from {topic}: late by {message.lateness}")
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
