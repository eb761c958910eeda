"""Sampling topics of a real broker: what is read is what was sent, and nothing changes by it."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.broker.due_topic import now_ms
from tests.broker.shadow_stage import shadow_plan, staged
from tests.broker.test_shadow_kinds import DELAY_MS
from tests.support.command_line import timewheel
from timewheel.broker.admin.client import AdminClient
from timewheel.inspect.errors import NothingToSample
from timewheel.inspect.profile import profile_of
from timewheel.inspect.sample import NOTE, Sample, figures_of, sample
from timewheel.testing import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from timewheel.testing import Broker

HOUR_MS = 3_600_000
SENT = 300


def send_delayed(client: Any, topic: str, numbers: range, start_ms: int) -> None:
    """Message n: n bytes, due n + 1 hours after the start, with a key of its own; unbatched, as clients send these."""
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in numbers:
        producer.send_async(
            b"x" * number, None, partition_key=f"key-{number}", deliver_at=start_ms + (number + 1) * HOUR_MS
        )
    producer.flush()
    producer.close()


def send_and_roll(admin: AdminClient, client: Any, topic: str, ledgers: int) -> int:
    """Send `SENT` messages in so many ledgers (of each partition); the start of their delays."""
    start_ms = now_ms()
    part = SENT // ledgers
    for ledger in range(ledgers):
        send_delayed(client, topic, range(ledger * part, (ledger + 1) * part), start_ms)
        admin.topics.unload(topic)  # the next one to use it begins a ledger
    return start_ms


def facts_of(taken: Sample) -> Counter[tuple[int, int, str | None]]:
    return Counter((entry.due_ms, entry.size_bytes, entry.key) for entry in taken.entries)


def facts_sent(start_ms: int) -> Counter[tuple[int, int, str | None]]:
    return Counter((start_ms + (number + 1) * HOUR_MS, number, f"key-{number}") for number in range(SENT))


@pytest.mark.parametrize("partitions", [0, 3])
def test_every_entry_of_every_ledger_is_read_as_it_was_sent(
    admin: AdminClient, pulsar_client: Any, topic: str, partitions: int
) -> None:
    if partitions:
        admin.topics.create(topic, partitions)
    else:
        admin.topics.create_unpartitioned(topic)
    admin.subscriptions.create(topic, "s")
    start_ms = send_and_roll(admin, pulsar_client, topic, ledgers=3)
    names = [f"{topic}-partition-{number}" for number in range(partitions)] or [topic]
    filled = [ledger for name in names for ledger in admin.topics.internal_stats(name).ledgers if ledger.entries]
    assert len(filled) == 3 * max(partitions, 1)

    taken = sample(admin, topic, now_ms=now_ms())

    assert facts_of(taken) == facts_sent(start_ms)
    assert (taken.population, taken.partitions, taken.scale, taken.unread) == (SENT, partitions, 1, 0)
    published_ms = [entry.publish_ms for entry in taken.entries]
    assert published_ms == sorted(published_ms)
    assert start_ms <= published_ms[0] <= published_ms[-1] <= now_ms()
    assert all(entry.is_delayed and not entry.is_overdue and not entry.batch_messages for entry in taken.entries)


def test_a_sample_is_of_different_entries_and_the_same_again_by_its_seed(
    admin: AdminClient, pulsar_client: Any, topic: str
) -> None:
    admin.topics.create(topic, 2)
    admin.subscriptions.create(topic, "s")
    start_ms = send_and_roll(admin, pulsar_client, topic, ledgers=2)

    taken = sample(admin, topic, now_ms=now_ms(), samples=60, seed=1)

    assert len(facts_of(taken)) == 60
    assert facts_of(taken) <= facts_sent(start_ms)
    assert (taken.population, taken.scale) == (SENT, 5)
    assert facts_of(sample(admin, topic, now_ms=now_ms(), samples=60, seed=1)) == facts_of(taken)
    assert facts_of(sample(admin, topic, now_ms=now_ms(), samples=60, seed=2)) != facts_of(taken)
    subscription = admin.topics.partitioned_stats(topic, precise_backlog=True).total.subscriptions["s"]
    assert (subscription.backlog, subscription.delivered) == (SENT, 0), "nothing is consumed"


def test_what_is_not_delayed_is_counted_apart(admin: AdminClient, pulsar_client: Any, topic: str) -> None:
    admin.topics.create_unpartitioned(topic)
    admin.subscriptions.create(topic, "s")
    start_ms = now_ms()
    plain = pulsar_client.create_producer(topic, batching_enabled=False)
    plain.send(b"at once")
    plain.send(b"overdue", deliver_at=start_ms - HOUR_MS)
    plain.send(b"delayed", deliver_at=start_ms + HOUR_MS)
    plain.close()
    batching = pulsar_client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for _ in range(4):
        batching.send_async(b"together", None)
    batching.flush()
    # A client puts a delayed message into no batch, so each is an entry with a due time of its own.
    for number in range(2):
        batching.send_async(b"apart", None, deliver_at=start_ms + (2 + number) * HOUR_MS)
    batching.flush()
    batching.close()

    taken = sample(admin, topic, now_ms=now_ms())

    at_once, overdue, delayed, batch, *apart = taken.entries
    assert [(one.is_delayed, one.is_overdue, one.due_ms - one.publish_ms) for one in (at_once, overdue, batch)] == [
        (False, False, 0),
        (True, True, 0),
        (False, False, 0),
    ]
    assert (delayed.is_delayed, delayed.due_ms) == (True, start_ms + HOUR_MS)
    assert batch.batch_messages == 4
    assert sorted((one.due_ms - start_ms) // HOUR_MS for one in apart) == [2, 3]
    assert [one.batch_messages for one in apart] == [0, 0]


def test_acknowledged_entries_behind_a_waiting_one_are_in_it(
    admin: AdminClient, pulsar_client: Any, topic: str
) -> None:
    """They are what a topic's gaps are made of: its ledgers are kept whole from the first waiting entry on."""
    admin.topics.create_unpartitioned(topic)
    consumer = pulsar_client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    send_delayed(pulsar_client, topic, range(1), now_ms())
    plain = pulsar_client.create_producer(topic, batching_enabled=False)
    for _ in range(20):
        plain.send(b"at once")
    for _ in range(20):
        consumer.acknowledge(consumer.receive(10_000))
    plain.close()
    consumer.close()
    admin.topics.unload(topic)
    eventually(lambda: admin.topics.stats(topic, precise_backlog=True).subscriptions["s"].backlog == 1)

    taken = sample(admin, topic, now_ms=now_ms())

    assert Counter(entry.is_delayed for entry in taken.entries) == {True: 1, False: 20}


def test_a_topic_that_is_unloaded_meanwhile_is_sampled_all_the_same(
    admin: AdminClient, pulsar_client: Any, topic: str
) -> None:
    admin.topics.create(topic, 2)
    admin.subscriptions.create(topic, "s")
    start_ms = send_and_roll(admin, pulsar_client, topic, ledgers=1)

    def unload(done: int, _total: int) -> None:
        if done in (50, 150):
            admin.topics.unload(topic)

    taken = sample(admin, topic, now_ms=now_ms(), on_progress=unload)

    assert facts_of(taken) == facts_sent(start_ms)


def test_where_there_is_nothing_the_error_says_why(admin: AdminClient, topic: str) -> None:
    with pytest.raises(NothingToSample, match="there is no such topic"):
        sample(admin, topic, now_ms=now_ms())
    with pytest.raises(NothingToSample, match="there is no such topic"):
        sample(admin, "persistent://no-such-tenant/n/t", now_ms=now_ms())
    with pytest.raises(NothingToSample, match="stores no messages"):
        sample(admin, topic.replace("persistent", "non-persistent"), now_ms=now_ms())
    admin.topics.create(topic, 2)
    with pytest.raises(NothingToSample, match="it stores no entries"):
        sample(admin, topic, now_ms=now_ms())


# --- the command


def test_the_command_writes_a_history_and_says_how_to_plan_from_it(
    admin: AdminClient, pulsar_client: Any, topic: str, pulsar_broker: Broker, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    admin.topics.create(topic, 2)
    admin.subscriptions.create(topic, "s")
    start_ms = send_and_roll(admin, pulsar_client, topic, ledgers=1)
    out = tmp_path / "delays.parquet"
    command = ["sample", topic, "-o", str(out), "--admin-url", pulsar_broker.admin_url, "--samples", "60"]

    told = timewheel(*command)
    assert (told.returncode, told.stderr) == (0, "")
    assert f"topic    {topic}, 2 partitions, 300 entries" in told.stdout
    assert "sample   60 entries, 1 of 5, seed 0" in told.stdout
    assert "read by  s\n" in told.stdout
    assert "limit    10,000 gaps of a partition, read from the broker\n" in told.stdout
    assert f"next     timewheel plan {out} -o plan.toml\n" in told.stdout

    done = timewheel(*command, "--json")
    facts = json.loads(done.stdout)
    assert (facts["rows"], facts["population"], facts["scale"], facts["delayed"]) == (60, 300, 5, 60)
    # Delays of 1 to 300 hours: 150.5 on average, spread by 86.6; 60 of 300 err by 19.6 hours at 95 %.
    assert facts["delay_mean_ms"] / HOUR_MS == pytest.approx(150.5, abs=2.5 * 19.6 / 1.96)
    assert facts["law_gaps"] is None, "all was sent within a second"
    assert facts["delay_mean_error_ms"] / HOUR_MS == pytest.approx(19.6, rel=0.2)

    table = pq.read_table(out)
    rows = table.to_pylist()
    assert {row["topic"] for row in rows} == {topic}
    assert {(row["due_ms"], row["size_bytes"], row["key"]) for row in rows} <= set(facts_sent(start_ms))
    note = json.loads(table.schema.metadata[NOTE])
    assert (note["topic"], note["population"], note["rows"], note["seed"]) == (topic, 300, 60, 0)
    with AdminClient(pulsar_broker.admin_url) as client:
        assert note["profile"] == asdict(profile_of(client))
    assert (note["partitions"], note["subscriptions"], note["shadow"]) == (2, ["s"], None)
    assert note["native_entries"] == 60
    assert note["reached_by"] == ["--admin-url", pulsar_broker.admin_url]


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["persistent://public/default/no-such-topic"], 1, "there is no such topic"),
        (["no-full-name"], 1, "write it in full"),
        (["persistent://public/default/t", "--samples", "0"], 2, "--samples"),
        (["persistent://public/default/t", "-o", "no-such-folder/x.parquet"], 2, "there is no folder no-such-folder"),
        (["persistent://public/default/t", "--admin-url", "http://127.0.0.1:1"], 1, "no connection"),
    ],
)
def test_what_cannot_be_sampled_is_one_clear_line(
    pulsar_broker: Broker, tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    command = ["sample", "--admin-url", pulsar_broker.admin_url, "-o", "x.parquet", *arguments]
    done = timewheel(*command, cwd=tmp_path, env={"COLUMNS": "500", "TERM": "dumb"})
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_of_a_topic_with_a_shadow_each_timer_is_counted_once(pulsar_broker: Broker) -> None:
    """By brute force: a row for each send, with its whole delay; neither copies nor what the shadow sent for itself."""
    sent: Counter[int] = Counter()
    with staged(pulsar_broker, shadow_plan(partitions=2)) as on:
        consumer, shadow = on.plain_consumer(), on.shadow()
        producer, rng = on.plain_producer(), random.Random(5)
        for number in range(SENT):
            due_ms = now_ms() + rng.randrange(500, DELAY_MS)
            producer.send_async(f"{number} {due_ms}".encode(), None, deliver_at=due_ms)
            sent[due_ms] += 1
        producer.flush()
        eventually(lambda: len(consumer.handled) == SENT, 60)
        moved = sum(one.moved for one in shadow.shadow_status().movers)
        whole = sample(on.admin, on.plan.due_topic, now_ms=now_ms())
        part = sample(on.admin, on.plan.due_topic, now_ms=now_ms(), samples=200, seed=3)

    assert moved > SENT / 4
    assert Counter(entry.due_ms for entry in whole.entries) == sent
    assert whole.of_shadow >= moved
    assert (whole.population, whole.scale, whole.is_whole) == (SENT + whole.of_shadow, 1, True)
    figures = figures_of(whole)
    span_s = (figures.last_publish_ms - figures.first_publish_ms) / 1_000
    assert figures.entries_per_second * span_s == pytest.approx(SENT)
    assert Counter(entry.due_ms for entry in part.entries) <= sent
    assert len(part.entries) * part.scale == pytest.approx(SENT, rel=0.2), "and a sample stands for the sends"
