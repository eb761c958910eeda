"""A service that reminds its customers of a renewal; `test_renewals.py` tests weeks of its life in two seconds.

A reminder is a timer. It is cancelled when the customer leaves, and tried again while the mail server is down.

    PULSAR_SERVICE_URL=pulsar://localhost:6650 PULSAR_ADMIN_URL=http://localhost:8080 python examples/renewals.py
"""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Self

import pulsar

from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage, RetryLater
from timewheel.core import parse_plan
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure

PLAN = parse_plan("""
format = 1
due_topic = "persistent://public/default/renewals"
subscriptions = ["mailer"]
max_delay = "31d"
retry = true
[tiered]
window = "12h"
tiers = ["12h", "1d", "5d"]
[cancel]
keep = "14d"  # so long may the service be away
""")
BEFORE = timedelta(days=3)


class MailServerDown(Exception):
    """The mail server does not answer."""


class Renewals:
    """Remembers when the subscriptions of customers end.

    Args:
        client: Connected client.
    """

    def __init__(self, client: pulsar.Client) -> None:
        self._producer = DelayedProducer(client, PLAN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()

    def subscribed(self, customer: str, lasts: timedelta) -> None:
        """Remember to send a mail three days before a new subscription ends."""
        self._producer.send(customer.encode(), deliver_after=lasts - BEFORE, timer_id=customer)

    def left(self, customer: str) -> None:
        """Forget a customer."""
        self._producer.cancel(customer)


def send_mails(client: pulsar.Client, mail: Callable[[str], None]) -> None:
    """Send the mails that are due, for ever.

    Args:
        client: Connected client.
        mail: Sends a mail to a customer; raises `MailServerDown`.
    """

    def remind(message: DelayedMessage) -> None:
        try:
            mail(message.data().decode())
        except MailServerDown:
            raise RetryLater(timedelta(hours=1)) from None

    with DelayedConsumer(client, PLAN, "mailer") as consumer:
        consumer.run(remind)


def provision(admin: AdminClient) -> None:
    """Create the topics; in a deployment by `timewheel topics ensure PLAN`, once, before the first send."""
    ensure(admin, PLAN, now_ms=int(time.time() * 1000))


def main() -> None:
    with AdminClient(os.environ.get("PULSAR_ADMIN_URL", "http://localhost:8080")) as admin:
        provision(admin)
    # Without a logger the client writes its own log, every connection of it, to standard output.
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650"), logger=quiet)
    with Renewals(client) as renewals:
        renewals.subscribed("Zoe", BEFORE + timedelta(seconds=5))
    send_mails(client, lambda customer: print(f"a mail to {customer}"))


if __name__ == "__main__":
    main()
