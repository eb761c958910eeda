"""Tests of `renewals.py` as it is: real threads and the real client, a virtual Pulsar, a clock that jumps.

pytest examples/test_renewals.py
"""

from __future__ import annotations

from datetime import timedelta

import pulsar
import pytest

from examples.renewals import MailServerDown, Renewals, provision, send_mails
from timewheel.testing.virtual import VirtualProcess, VirtualPulsar


class Mails:
    """A mail server that can be down, and remembers its mails."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.is_down = False

    def __call__(self, customer: str) -> None:
        if self.is_down:
            raise MailServerDown
        self.sent.append(customer)


def start_service(virtual_pulsar: VirtualPulsar, mails: Mails) -> VirtualProcess:
    """Start the part of the service that sends mails, in a process that a test can kill."""
    return virtual_pulsar.start(lambda: send_mails(pulsar.Client("pulsar://any"), mails))


@pytest.fixture
def mails() -> Mails:
    return Mails()


@pytest.fixture
def shop(virtual_pulsar: VirtualPulsar) -> Renewals:
    """The part of the service that knows when customers come and go."""
    with virtual_pulsar.admin() as admin:
        provision(admin)
    return Renewals(pulsar.Client("pulsar://any"))


def test_a_mail_is_sent_three_days_before_the_end(virtual_pulsar: VirtualPulsar, shop: Renewals, mails: Mails) -> None:
    start_service(virtual_pulsar, mails)
    with shop:
        shop.subscribed("Zoe", timedelta(days=20))
    virtual_pulsar.advance(timedelta(days=17) - timedelta(seconds=1))
    assert mails.sent == []
    virtual_pulsar.advance(seconds=1)
    assert mails.sent == ["Zoe"]


def test_who_has_left_gets_none(virtual_pulsar: VirtualPulsar, shop: Renewals, mails: Mails) -> None:
    start_service(virtual_pulsar, mails)
    with shop:
        shop.subscribed("Zoe", timedelta(days=20))
        virtual_pulsar.advance(days=16)
        shop.left("Zoe")
        virtual_pulsar.advance(days=4)
    assert mails.sent == []


def test_a_mail_server_that_is_down_is_tried_again(virtual_pulsar: VirtualPulsar, shop: Renewals, mails: Mails) -> None:
    start_service(virtual_pulsar, mails)
    with shop:
        shop.subscribed("Zoe", timedelta(days=20))
    mails.is_down = True
    virtual_pulsar.advance(days=17, hours=2)
    mails.is_down = False
    assert mails.sent == []
    virtual_pulsar.advance(hours=1)
    assert mails.sent == ["Zoe"]


def test_no_mail_is_lost_while_the_service_is_away(virtual_pulsar: VirtualPulsar, shop: Renewals, mails: Mails) -> None:
    service = start_service(virtual_pulsar, mails)
    with shop:
        for number in range(30):
            shop.subscribed(f"customer {number}", timedelta(days=3 + number))
    virtual_pulsar.advance(days=5)
    service.kill()
    virtual_pulsar.kill_broker()
    virtual_pulsar.advance(days=10)
    assert len(mails.sent) == 6
    assert len(virtual_pulsar.pending()) == 24
    start_service(virtual_pulsar, mails)
    virtual_pulsar.advance(days=15)
    assert sorted(mails.sent) == sorted(f"customer {number}" for number in range(30))
    assert virtual_pulsar.pending() == []
