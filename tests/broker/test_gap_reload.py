"""`timewheel gaps` says what an unload delivers again: against brokers that are unloaded, counted by who receives it.

One topic of batches and single messages; ten subscriptions that have acknowledged random parts of it, also parts of
batches. The broker tells the command its state, is unloaded twice, and a consumer counts what comes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pulsar
import pytest

from tests.broker.cursor_stage import FORMATS, Stage, backlog_of, stage_of
from tests.conftest import Evidence
from timewheel.inspect.gaps import SubscriptionGaps, inspect_gaps
from timewheel.inspect.gaps.snapshot import messages_again
from timewheel.inspect.profile import limit_of
from timewheel.testing import eventually

LIMIT = 150
IN_METADATA = 40
LEDGER_ENTRIES = 120
ENTRIES = 1_300
LARGEST_BATCH = 5
STATES = 10
RECEIVE_TIMEOUT_MS = 20_000
END = b"end"
SETTLE_TIMEOUT_S = 60.0
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": str(LEDGER_ENTRIES),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerMaxLedgerRolloverTimeMinutes": "525600",
    "managedLedgerMaxUnackedRangesToPersist": str(LIMIT),
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": str(IN_METADATA),
    "maxUnackedMessagesPerConsumer": "0",
    "maxUnackedMessagesPerSubscription": "0",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
}


SHORT = ("ranges", 1)  # the others are proofs


@pytest.fixture(scope="module", params=FORMATS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage_of(SETTINGS, request.param) as made:
        yield made


@pytest.mark.parametrize(
    ("stage", "unloads"),
    [
        pytest.param(
            ack_format, unloads, marks=pytest.mark.short if (ack_format, unloads) == SHORT else pytest.mark.proof
        )
        for ack_format in FORMATS
        for unloads in (1, 2)
    ],
    indirect=["stage"],
)
def test_an_unload_delivers_again_what_the_command_says(
    stage: Stage, topic: str, evidence: Evidence, seed: int, unloads: int
) -> None:
    gaps, most = foretold(stage, topic, np.random.default_rng(seed), unloads)
    evidence(
        f"what `timewheel gaps` says {unloads} unload{'s deliver' if unloads > 1 else ' delivers'} again, "
        f"{stage.ack_format}",
        {"states": STATES, "gaps": gaps, "messages again, at most": most, "wrong by": 0},
        seed=seed,
    )


def foretold(stage: Stage, topic: str, rng: np.random.Generator, unloads: int) -> tuple[str, int]:
    """Have the command look at cursors in random states, unload, and count what comes; it must be what was foretold.

    Gives the gaps, the fewest and the most, and the most messages that came again.
    """
    assert stage.admin.topics.create_unpartitioned(topic)
    names = [f"state-{number}" for number in range(STATES)]
    for name in names:
        stage.admin.subscriptions.create(topic, name)
    sizes = fill(stage.client, topic, rng)
    acked = {name: acknowledge(stage, topic, name, sizes, rng) for name in names}
    parts = {name: parts_of_batches(sizes, acked[name]) for name in names}
    open_before = {name: open_entries(sizes, acked[name]) for name in names}
    limit = limit_of(stage.admin)
    assert (limit.source, limit.profile.ack_format) == ("read from the broker", stage.ack_format)

    said: list[dict[str, SubscriptionGaps]] = []
    messages = dict.fromkeys(names, 0)
    for _ in range(unloads):
        look = {one.subscription: one for one in inspect_gaps(stage.admin, [topic], limit.profile).subscriptions}
        said.append(look)
        for name in names:
            messages[name] += messages_again(stage.admin, look[name], max_read=10_000).messages
        stage.admin.topics.unload(topic)
        for name in names:
            open_now = backlog_of(stage.admin, topic, name)
            assert look[name].again_entries == open_now - open_before[name], name
            open_before[name] = open_now
    end(stage.client, topic)
    received = {name: received_again(stage, topic, name, acked[name]) for name in names}

    first = said[0]
    for name in names:
        keeps_parts = all(look[name].worst.keeps_parts for look in said)
        assert len(received[name] - parts[name]) == messages[name], name
        # Of whole batches that come again all messages do.
        assert received[name] & parts[name] == (set() if keeps_parts else parts[name]), name
    # Loaded, and not written since: whatever the format, such a cursor is written as ranges.
    assert all(one.worst.form == "ranges" and not one.worst.keeps_parts for look in said[1:] for one in look.values())
    assert sum(messages[name] > 100 for name in names) >= 3, "states that prove something"
    assert messages[names[0]] == 0, "and one that is within its limits"
    counts = [one.gap_count for one in first.values()]
    return f"{min(counts):,} to {max(counts):,}", max(messages.values())


def fill(client: Any, topic: str, rng: np.random.Generator) -> list[int]:
    """Entries of one to five numbered messages; gives how many each has."""
    sizes: list[int] = rng.integers(1, LARGEST_BATCH + 1, ENTRIES).tolist()
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=LARGEST_BATCH, batching_max_publish_delay_ms=3_600_000
    )
    number = 0
    for size in sizes:
        for _ in range(size):
            producer.send_async(str(number).encode(), lambda result, _id: result == pulsar.Result.Ok)
            number += 1
        if size < LARGEST_BATCH:
            producer.flush()
    producer.flush()
    producer.close()
    return sizes


def acknowledge(stage: Stage, topic: str, name: str, sizes: list[int], rng: np.random.Generator) -> set[int]:
    """Receive all and acknowledge a random part, whole entries mostly; gives the numbers of the messages."""
    # Stretches of different density, so that some ledgers are full of gaps and others have none.
    share = np.repeat(rng.uniform(0.0, 1.0, ENTRIES // 50 + 1), 50)[:ENTRIES] ** rng.uniform(0.2, 3.0)
    if name.endswith("-0"):
        share[:] = 0.01  # few gaps: within all limits
    wanted: set[int] = set()
    number = 0
    for size, likelihood in zip(sizes, share.tolist(), strict=True):
        own = range(number, number + size)
        number += size
        if rng.random() < likelihood:
            wanted.update(own)
        elif size > 1 and rng.random() < 0.1:
            wanted.update(own[: int(rng.integers(1, size))])  # a part of a batch
    consumer = stage.client.subscribe(
        topic, name, consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=5_000, batch_index_ack_enabled=True
    )
    for _ in range(number):
        message = consumer.receive(RECEIVE_TIMEOUT_MS)
        if int(message.data()) in wanted:
            consumer.acknowledge(message)
    consumer.close()  # what the client has grouped is sent with it
    left = open_entries(sizes, wanted)
    eventually(lambda: backlog_of(stage.admin, topic, name) == left, SETTLE_TIMEOUT_S, message=f"{name} settled")
    return wanted


def open_entries(sizes: list[int], acked: set[int]) -> int:
    """Entries that have a message which is not acknowledged."""
    ends = np.cumsum(sizes)
    return sum(not acked.issuperset(range(int(end) - size, int(end))) for size, end in zip(sizes, ends, strict=True))


def parts_of_batches(sizes: list[int], acked: set[int]) -> set[int]:
    """Acknowledged messages of entries that have others."""
    found: set[int] = set()
    number = 0
    for size in sizes:
        own = set(range(number, number + size))
        number += size
        if not own <= acked:
            found |= own & acked
    return found


def end(client: Any, topic: str) -> None:
    """A last message: whoever has received it has received all that comes."""
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(END)
    producer.close()


def received_again(stage: Stage, topic: str, name: str, acked: set[int]) -> set[int]:
    """Messages that come though they were acknowledged."""
    consumer = stage.client.subscribe(topic, name, consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=5_000)
    again: set[int] = set()
    while (data := consumer.receive(RECEIVE_TIMEOUT_MS).data()) != END:
        again.add(int(data))
    consumer.close()
    return again & acked
