"""`timewheel dead-letters` on a real broker: dead letters are listed, shown, sent again and dropped; none is lost."""

from __future__ import annotations

import json
import subprocess
import zlib
from typing import TYPE_CHECKING, Any, cast

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import Stage, plan_of
from tests.support.command_line import timewheel, well
from tests.support.raw_producer import RawEntry, RawProducer, batch_member, metadata_of
from timewheel.client.native import NO_SCHEMA, schema_version_of
from timewheel.core.envelope import Envelope
from timewheel.core.names import partition_topic
from timewheel.core.planfile import save_plan
from timewheel.dead_letters import (
    DeadLetterFilter,
    DeadLetterPosition,
    DeadLetters,
    dead_letter_box,
    dead_letters,
    drop,
    replay,
)
from timewheel.errors import NoSuchTarget, ReplayFailed
from timewheel.inspect.whereis import State, Wanted, whereis
from timewheel.testing import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from timewheel.testing import Broker


def dead_letters_of(stage: Stage, desired: DeadLetterFilter | None = None) -> DeadLetters:
    return dead_letters(stage.admin, dead_letter_box(stage.plan), desired)


FOREIGN, GARBLED = b"foreign", b"garbled"
FAR_MS = 280_000
HELD_MS = 20_000
FROM_EARLIEST: dict[str, Any] = {"initial_position": pulsar.InitialPosition.Earliest}


@pytest.fixture
def stage(pulsar_broker: Broker) -> Iterator[Stage]:
    with Stage(pulsar_broker, plan_of(partitions=2, max_delay_ms=300_000)) as made:
        yield made


def run(stage: Stage, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plan_file = folder / "plan.toml"
    save_plan(stage.plan, plan_file)
    word, *others = arguments
    service = ["--service-url", stage.broker.service_url] if word in ("replay", "drop") else []
    return timewheel("dead-letters", word, plan_file, *others, *service, "--admin-url", stage.broker.admin_url)


def buried(stage: Stage) -> dict[str, Envelope]:
    """By a relay: two timers with too many hops, one foreign message, one garbled one."""
    tier = stage.tiers[-1]
    now = now_ms()
    timers = {f"endless-{n}": Envelope(f"endless-{n}", now + FAR_MS, now, hops=10_000) for n in range(2)}
    producer = stage.producer(tier, 1, batching_enabled=False)
    for number, envelope in enumerate(timers.values()):
        producer.send(
            b"\x00\xff" + bytes([number]),
            properties={"colour": "grün 🌻", **envelope.properties()},
            partition_key="schlüssel",
            event_timestamp=77,
        )
    producer.send(FOREIGN, properties={"from": "elsewhere"})
    producer.send(GARBLED, properties={"tw-id": "garbled", "tw-timer": "1 soon"})
    relay = stage.relay()
    eventually(lambda: relay.status().total("dead") == 4, message="four dead letters")
    stage.await_all_acknowledged()
    return timers


def test_dead_letters_are_listed_shown_sent_again_and_dropped(stage: Stage, tmp_path: Path) -> None:
    timers = buried(stage)

    listed = well(run(stage, tmp_path, "list", "--json"))
    dead_letters = json.loads(listed.stdout)["dead_letters"]
    assert [one["timer_id"] for one in dead_letters] == ["endless-0", "endless-1", None, "garbled"]
    assert {one["from"] for one in dead_letters} == {partition_topic(stage.tiers[-1], 1)}
    assert dead_letters[0]["due_ms"] == timers["endless-0"].due_ms
    assert "4 of 4 dead letters" in run(stage, tmp_path, "list").stdout
    assert len(json.loads(run(stage, tmp_path, "list", "--reason", "HOPS", "--json").stdout)["dead_letters"]) == 2
    shown = run(stage, tmp_path, "show", dead_letters[0]["position"])
    assert "payload  3 bytes: b'\\x00\\xff\\x00'" in shown.stdout, shown.stdout

    found = whereis(stage.admin, stage.plan, Wanted.of("endless-0", sent_ms=now_ms(), within_ms=30_000))
    assert (found.state, found.reason) == (State.DEAD, dead_letters[0]["reason"])

    found = whereis(stage.admin, stage.plan, Wanted.of("garbled", sent_ms=now_ms(), within_ms=30_000))
    assert found.state is State.DEAD, "its envelope cannot be read, its id can"

    everything = run(stage, tmp_path, "replay")
    assert everything.returncode == 2, "somebody has to say which"
    dry = run(stage, tmp_path, "replay", "--all", "--dry-run", "--json")
    assert dry.returncode == 1, "some would be left"
    assert [one["refused"] is None for one in json.loads(dry.stdout)["dead_letters"]] == [True, True, False, False]

    sent = well(run(stage, tmp_path, "replay", "--id", "endless-0", "--id", "endless-1"))
    assert "2 sent again, 0 left, of 2 selected" in sent.stdout
    held = whereis(stage.admin, stage.plan, Wanted.of("endless-0", sent_ms=now_ms() - 2_000, within_ms=3_000))
    assert held.state is State.HELD
    assert held.here is not None
    assert held.here.topic.endswith("-partition-1"), "the partition stays"
    assert (held.here.envelope.due_ms, held.here.envelope.hops) == (timers["endless-0"].due_ms, held.here.envelope.hops)

    at_once = well(run(stage, tmp_path, "replay", "--all", "--now", "--json"))
    assert len(json.loads(at_once.stdout)["dead_letters"]) == 2
    due = {message.data(): message for message in stage.due()}
    assert {FOREIGN, GARBLED} == set(due)
    assert due[FOREIGN].properties() == {"from": "elsewhere"}
    again = Envelope.read(due[GARBLED].properties())
    assert again is not None
    assert again.timer_id == "garbled"
    eventually(lambda: not dead_letters_of(stage).dead_letters, message="none is left")

    # What went through all that is untouched, but for its envelope.
    stored = [m for topic in stage.tiers for m in stage.stored(topic, 1) if m.properties().get("tw-id") == "endless-1"]
    last = stored[-1]
    assert last.data() == b"\x00\xff\x01"
    assert last.properties()["colour"] == "grün 🌻"
    assert (last.partition_key(), last.event_timestamp()) == ("schlüssel", 77)
    assert not [name for name in last.properties() if name.startswith("tw-dead")]


@pytest.mark.real
def test_a_letter_s_notes_are_the_relay_s_and_one_that_cannot_go_on_keeps_no_other_from_it(stage: Stage) -> None:
    """A sender's `tw-dead-schema` of 30 digits once ended each replay of all dead letters with a traceback."""
    forged = {"tw-dead-schema": "9" * 30, "tw-dead-from": "elsewhere", "tw-dead-new": "x", "tw-parked-from": "y"}
    stage.producer(stage.tiers[-1], 1, batching_enabled=False).send(b"taken", properties={"tw-id": "a", **forged})
    relay = stage.relay()
    eventually(lambda: relay.status().total("dead") == 1)
    (dead_letter,) = dead_letters_of(stage).dead_letters
    assert {
        name: text for name, text in dead_letter.properties.items() if name.startswith(("tw-dead", "tw-parked"))
    } == {
        "tw-dead-reason": dead_letter.reason,
        "tw-dead-from": partition_topic(stage.tiers[-1], 1),
        "tw-dead-at": dead_letter.properties["tw-dead-at"],
    }
    assert len(dead_letter.properties["tw-dead-at"].split(":")) == 2, "ledger and entry"

    # Put straight into the dead letters, where nobody takes such notes away.
    straight = stage.producer(stage.names.dead_letter, batching_enabled=False)
    ours = partition_topic(stage.tiers[-1], 1)
    notes = (
        {"tw-dead-schema": "7", "tw-dead-from": "no://topic at all"},  # at which the client crashes
        {"tw-dead-schema": "7", "tw-dead-from": "persistent://public/nowhere/none"},
        {"tw-dead-schema": "7"},
        {"tw-dead-schema": "9" * 30, "tw-dead-from": ours},
        {"tw-dead-schema": "9" * 5_000, "tw-dead-from": "x-partition-" + "9" * 5_000},
        {"tw-dead-schema": "7", "tw-dead-from": ours},  # which has no such schema
    )
    for number, said in enumerate(notes):
        straight.send(b"%d" % number, properties={"tw-id": str(number), **said})
    straight.send(b"good", properties={"tw-id": "good"})

    listed = dead_letters_of(stage).dead_letters
    long = [one for one in listed if one.timer_id in {None, "4"}]
    assert [one.timer_id for one in listed if one not in long] == ["a", "0", "1", "2", "3", "5", "good"]
    # Up to 4.0 the admin API has no room for it.
    assert [one.timer_id or "the admin API does not show it" in one.reason for one in long] in (["4"], [True])
    results = replay(stage.client, stage.admin, stage.plan, listed, due_now=True)
    refused = [one.refused for one in results if one.refused]
    shown = long[0].timer_id is not None
    assert ["no relay wrote them" in reason for reason in refused] == [True, True, True, True, shown, False]
    assert "is gone with that topic" in refused[-1]
    assert {message.data() for message in stage.await_due(2)} == {b"taken", b"good"}
    left = dead_letters_of(stage).dead_letters
    assert {one.place for one in left} == {one.dead_letter.place for one in results if one.refused}, "left as they were"


def batch_of(stage: Stage, count: int) -> None:
    """Dead letters in one entry, as a relay sends them when many die at once."""
    producer = stage.producer(
        stage.names.dead_letter, batching_enabled=True, batching_max_publish_delay_ms=500, batching_max_messages=100
    )
    now = now_ms()
    for number in range(count):
        envelope = Envelope(f"b{number}", now + FAR_MS, now)
        properties = {**envelope.properties(), "tw-dead-reason": "of many", "tw-dead-from": "elsewhere-partition-0"}
        producer.send_async(b"%d" % number, None, properties=properties, partition_key=f"k{number}")
    producer.flush()


def test_of_a_batch_only_what_is_meant_is_dealt_with(stage: Stage) -> None:
    batch_of(stage, 4)
    found = dead_letters_of(stage, DeadLetterFilter(timer_ids=frozenset({"b1", "b2"})))
    assert [one.place.number for one in found.dead_letters] == [1, 2]
    assert [one.payload for one in found.dead_letters] == [b"1", b"2"]

    sent = replay(stage.client, stage.admin, stage.plan, found.dead_letters[:1])
    assert [one.refused for one in sent] == [None]

    def left() -> dict[str, Any]:
        return {str(one.timer_id): one for one in dead_letters_of(stage).dead_letters}

    eventually(lambda: set(left()) == {"b0", "b2", "b3"}, message="the others are filed again")
    assert left()["b3"].payload == b"3"
    assert left()["b3"].reason == "of many"
    drop(stage.client, dead_letter_box(stage.plan), [left()["b2"]])
    eventually(lambda: set(left()) == {"b0", "b3"}, message="one is gone")
    stats = stage.admin.topics.partitioned_stats(stage.names.dead_letter, precise_backlog=True).total
    assert stats.subscriptions["timewheel-dead-letter"].backlog == 2


@pytest.mark.real
def test_what_cannot_be_opened_is_one_letter_with_its_reason_that_can_be_dropped(stage: Stage) -> None:
    """A batch of 100,000 messages within 1 kB; one that is garbled; one that does not open; one that has no date."""
    many, topic = batch_member() * 100_000, partition_topic(stage.names.dead_letter, 0)
    bomb = zlib.compress(many, 9)
    odd = [
        RawEntry(metadata_of(compression=2, uncompressed_bytes=len(many), batch_size=100_000), bomb, 100_000),
        RawEntry(metadata_of(batch_size=2), batch_member(b"one") + b"\x00\x00\x00\xff", 2),
        RawEntry(metadata_of(compression=2, uncompressed_bytes=1_000), b"nothing that zlib knows"),
        RawEntry(metadata_of(publish_ms=(1 << 63) - 1), b"late"),
    ]
    assert len(bomb) < 1_000
    with RawProducer(stage.broker.service_url, topic) as producer:
        assert None not in producer.send_all(odd)
    batch_of(stage, 2)

    found = dead_letters_of(stage)
    reasons = [one.reason for one in found.dead_letters if one.is_whole]
    assert sorted(reason[:20] for reason in reasons) == [
        "a batch of 100,000 m", "a batch that cannot ", "the admin API does n", "the admin API does n",
    ], reasons  # fmt: skip
    assert {one.timer_id for one in found.dead_letters if not one.is_whole} == {"b0", "b1"}
    assert not found.is_cut
    few = dead_letters(stage.admin, dead_letter_box(stage.plan), most=2)
    assert (len(few.dead_letters), few.is_cut) == (2, True)

    again = {
        one.dead_letter.place: one.refused for one in replay(stage.client, stage.admin, stage.plan, found.dead_letters)
    }
    assert len(again) == 6
    assert sum(refused is None for refused in again.values()) == 2
    left = dead_letters_of(stage).dead_letters
    dropped = drop(stage.client, dead_letter_box(stage.plan), left)
    assert [one.refused for one in dropped] == [None] * len(left)
    eventually(lambda: not dead_letters_of(stage).dead_letters, message="none is left")


class Order(Record):  # type: ignore[misc]  # pulsar ships no types
    number = Integer()


@pytest.mark.real
def test_it_keeps_its_schema(stage: Stage, tmp_path: Path) -> None:
    now = now_ms()
    for partition in range(2):
        producer = stage.producer(stage.tiers[-1], partition, schema=AvroSchema(Order), batching_enabled=False)
        envelope = Envelope(f"order-{partition}", now + FAR_MS, now, hops=10_000)
        producer.send(Order(number=partition), properties=envelope.properties())
    stage.put(stage.tiers[-1], Envelope("plain", now + FAR_MS, now, hops=10_000), b"plain")
    stage.flush()
    relay = stage.relay()
    eventually(lambda: relay.status().total("dead") == 3, message="three dead letters")
    stage.await_all_acknowledged()

    well(run(stage, tmp_path, "replay", "--id", "order-0", "--id", "plain", "--now"))
    well(run(stage, tmp_path, "replay", "--all"))  # to a tier once more, and by the relay to the due topic

    consumer = stage.client.subscribe(stage.plan.due_topic, "reads-avro", schema=AvroSchema(Order), **FROM_EARLIEST)
    stage.await_due(2)
    found = {message.properties()["tw-id"]: message for message in (consumer.receive(10_000) for _ in range(2))}
    assert found["order-0"].value().number == 0
    assert schema_version_of(found["order-0"]) == 0
    assert (found["plain"].data(), schema_version_of(found["plain"])) == (b"plain", NO_SCHEMA)
    tiers = [m for topic in stage.tiers for m in stage.stored(topic, 1) if m.properties()["tw-id"] == "order-1"]
    assert [schema_version_of(message) for message in tiers] == [0, 0]
    consumer.close()


@pytest.mark.real
def test_one_whose_schema_is_gone_stays_and_keeps_no_other(stage: Stage, tmp_path: Path) -> None:
    now = now_ms()
    tier = stage.tiers[-1]
    producer = stage.producer(tier, schema=AvroSchema(Order), batching_enabled=False)
    producer.send(Order(number=7), properties=Envelope("order", now + FAR_MS, now, hops=10_000).properties())
    producer.close()
    stage.put(tier, Envelope("plain", now + FAR_MS, now, hops=10_000), b"plain")
    stage.flush()
    relay = stage.relay()
    eventually(lambda: relay.status().total("dead") == 2, message="two dead letters")
    stage.await_all_acknowledged()
    relay.stop()
    stage.close_producers()
    stage.admin.topics.delete(tier)  # as after a change of plan, once it is drained

    replayed = run(stage, tmp_path, "replay", "--all", "--now", "--json")

    assert replayed.returncode == 1, replayed.stdout + replayed.stderr
    refused = {one["timer_id"]: one["refused"] for one in json.loads(replayed.stdout)["dead_letters"]}
    assert refused["plain"] is None
    assert refused["order"].startswith(f"its schema, version 0 of {tier}, is gone with that topic: publish it again")
    assert [message.data() for message in stage.due()] == [b"plain"]
    eventually(lambda: [one.timer_id for one in dead_letters_of(stage).dead_letters] == ["order"], message="it stays")


def test_a_crash_before_the_acknowledgement_leaves_a_copy(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_of(stage, 1)
    found = dead_letters_of(stage)

    class Killed(Exception):
        pass

    class Client:
        """Its consumer cannot acknowledge any more."""

        def __getattr__(self, name: str) -> Any:
            return getattr(stage.client, name)

        def subscribe(self, *arguments: Any, **options: Any) -> Any:
            consumer = stage.client.subscribe(*arguments, **options)

            def killed(_: Any) -> None:
                raise Killed

            monkeypatch.setattr(consumer, "acknowledge", killed)
            return consumer

    with pytest.raises(Killed):
        replay(cast("Any", Client()), stage.admin, stage.plan, found.dead_letters)

    assert [one.timer_id for one in dead_letters_of(stage).dead_letters] == ["b0"], "it is still there"
    held = [m for topic in stage.tiers for m in stage.stored(topic) if m.properties()["tw-id"] == "b0"]
    assert len(held) == 1, "and was sent again"


def test_what_cannot_be_done_is_one_line(stage: Stage, tmp_path: Path) -> None:
    batch_of(stage, 1)
    found = dead_letters_of(stage)
    exclusive = stage.client.subscribe(
        found.topic, "timewheel-dead-letter", consumer_type=pulsar.ConsumerType.Exclusive
    )
    with pytest.raises(ReplayFailed, match="its subscription could not be opened"):
        drop(stage.client, dead_letter_box(stage.plan), found.dead_letters)
    exclusive.close()
    with pytest.raises(NoSuchTarget, match="timewheel topics ensure PLAN"):
        dead_letters(stage.admin, dead_letter_box(plan_of()))
    bad = run(stage, tmp_path, "show", "12-7")
    assert bad.returncode == 2
    assert "is no position such as 12:7" in " ".join(bad.stderr.replace("│", " ").split())
    assert DeadLetterPosition.parse("12:7") is not None
