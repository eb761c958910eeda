"""A gauge adds up one scheme's topics, whatever it asks for at one moment and whatever an unload sets back."""

from __future__ import annotations

from collections import Counter
from urllib.parse import unquote

import httpx
import pytest

from timewheel.broker.admin.client import AdminClient
from timewheel.demo.sampling import Gauge
from timewheel.demo.settings import DAYS, SUBSCRIPTION, SchemeName, Settings

SETTINGS = Settings(day_ms=6_000)
NOW_MS = 1_800_000_000_000
RELAY = "timewheel-relay"


class Broker:
    """Answers for stats: every topic has the numbers that the test gave it."""

    def __init__(self) -> None:
        self.gaps: Counter[str] = Counter()
        self.entries: Counter[str] = Counter()
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        *_, topic, verb = unquote(request.url.path).split("/")
        if verb == "unload":
            self.entries = Counter({name: 0 if name.startswith(topic) else n for name, n in self.entries.items()})
            return httpx.Response(204)
        if verb == "internalStats":
            stored = {"numberOfEntries": 0, "totalSize": 0, "lastConfirmedEntry": "1:1", "state": "LedgerOpened"}
            return httpx.Response(200, json=stored | {"entriesAddedCounter": self.entries[topic]})
        self.asked.append(topic)
        subscription = {
            "nonContiguousDeletedMessagesRanges": self.gaps[topic],
            "delayedMessageIndexSizeInBytes": 10,
            "unackedMessages": 2,
        }
        name = RELAY if ".tw." in topic and "calendar" not in topic else SUBSCRIPTION
        return httpx.Response(200, json={"subscriptions": {name: subscription}})


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient("http://broker", retry_for_s=0, transport=httpx.MockTransport(broker))


def gauge(scheme: SchemeName) -> Gauge:
    return Gauge(SETTINGS.plan(scheme), [NOW_MS], SETTINGS.day_ms)


def short(topic: str) -> str:
    return topic.rsplit("/", 1)[-1]


def test_due_and_holding_topics_are_added_up_apart(broker: Broker, admin: AdminClient) -> None:
    it = gauge("tiered-relay")
    due, small, large = map(short, it.topics)
    broker.gaps.update({due: 5, small: 1, large: 2})
    found = it.sample(admin, NOW_MS)
    assert (found.due_gaps, found.holding_gaps) == (5, 3)
    assert found.in_flight == 4  # two in each tier; the due topic's are the business consumer's
    assert found.index_bytes == 30
    assert it.topic_count == 4  # and the dead letters


def test_an_intake_and_a_journal_are_among_the_holding_topics(broker: Broker, admin: AdminClient) -> None:
    it = gauge("shadow")
    intake = next(short(name) for name in it.topics if ".tw.intake" in name)
    broker.gaps[intake] = 2
    assert it.sample(admin, NOW_MS).holding_gaps == 2
    assert (len(it.topics), it.topic_count) == (6, 7)  # due topic, three tiers, intake, journal; and the dead letters


@pytest.mark.parametrize(("scheme", "topics"), [("calendar", DAYS + 2), ("wheel", DAYS + 3)])
def test_every_topic_has_its_turn_within_four_days(
    broker: Broker, admin: AdminClient, scheme: SchemeName, topics: int
) -> None:
    it = gauge(scheme)
    assert len(it.topics) == topics
    for number in range(40):
        it.sample(admin, NOW_MS + number * SETTINGS.day_ms // 10)
    assert {short(name) for name in it.topics} <= set(broker.asked)
    assert len(broker.asked) < 40 * 6  # the due topic or today's, its two neighbours, and one more in turn


def test_the_slots_that_are_swept_now_are_asked_every_time(broker: Broker, admin: AdminClient) -> None:
    it = gauge("wheel")
    today = NOW_MS // SETTINGS.day_ms % (DAYS + 2)
    for _ in range(5):
        broker.asked.clear()
        it.sample(admin, NOW_MS)
        for slot in (today - 1, today, today + 1):
            assert any(topic.endswith(f".{slot % (DAYS + 2):03d}-partition-0") for topic in broker.asked)


def test_a_topic_that_is_not_asked_counts_with_what_was_last_seen(broker: Broker, admin: AdminClient) -> None:
    it = gauge("calendar")
    today = short(it.topics[0])
    broker.gaps[today] = 9
    assert it.sample(admin, NOW_MS).due_gaps == 9
    far_ms = NOW_MS + 10 * SETTINGS.day_ms
    assert it.sample(admin, far_ms).due_gaps == 9


def test_entries_are_counted_over_an_unload(broker: Broker, admin: AdminClient) -> None:
    it = gauge("native")
    (topic,) = it.topics
    broker.entries[short(topic)] = 100
    it.unload(admin, topic)
    broker.entries[short(topic)] = 30  # the broker begins at 0 again
    it.count_entries(admin)
    assert it.entries_written == 130
