"""A shadow on the virtual Pulsar: its sessions of the binary protocol meet virtual brokers."""

from __future__ import annotations

import datetime as dt
import threading

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.shadow_stage import moved, shadow_plan, staged
from timewheel.broker.protocol.consumers import EntryReader
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BrokerSilent
from timewheel.core.names import partition_topic
from timewheel.testing.virtual import VirtualPulsar


@pytest.mark.parametrize("unloads", [0, 3])
def test_a_shadow_moves_what_is_far_and_nothing_is_lost_early_or_handled_twice(unloads: int) -> None:
    with VirtualPulsar() as virtual, staged(virtual, shadow_plan()) as on:
        virtual.cluster.latency_ns = 200_000
        consumer = on.plain_consumer()
        shadow = on.shadow()
        begin_ms = now_ms()
        for second in range(1, 101):
            on.send([f"t{second}"], due_ms=begin_ms + second * 1_000)
        virtual.advance(seconds=3)
        assert moved(shadow) > 50
        for number in range(unloads):
            virtual.advance(seconds=10)
            virtual.unload(on.plan.due_topic)
            virtual.unload(partition_topic(on.plan.due_topic, number % 2))
        virtual.advance(dt.timedelta(seconds=130))
        assert set(consumer.handled) == {f"t{second}" for second in range(1, 101)}
        assert consumer.again == 0 or unloads
        assert min(consumer.lateness_ms.values()) >= -1_000, "a tick, as without a shadow"
        if not unloads:
            assert max(consumer.lateness_ms.values()) <= 1_500


def test_a_process_that_is_cut_off_is_answered_once_it_is_not(virtual_pulsar: VirtualPulsar) -> None:
    """A session that it opens meanwhile waits, as a client of `pulsar` does."""
    topic = "persistent://public/default/read"
    virtual_pulsar.client().create_producer(topic).send(b"x")
    found: list[str] = []

    def read() -> None:
        threading.Event().wait(1)
        while not found or found[-1] != "read":
            try:
                with EntryReader(Dialer(virtual_pulsar.service_url), topic) as reader:
                    found.append("read" if reader.read(1_000) else "nothing")
            except BrokerSilent:
                found.append("silence")

    process = virtual_pulsar.start(read)
    process.disconnect()
    virtual_pulsar.advance(seconds=40)
    assert found == ["silence"]
    process.reconnect()
    virtual_pulsar.advance(seconds=60)
    assert found[-1] == "read"
