"""A topic that is removed while it is looked at: it is said, and nothing is called well that was not seen."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.inspect.test_doctor_answers import ANSWERS, PART, PLAN, TOPIC
from tests.inspect.test_gap_looks import PROFILE, Cluster, internal, stats
from timewheel.cli.gaps import exit_status
from timewheel.cli.gaps import verdict as describe
from timewheel.core.durations import HOUR_MS
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Plan, Tiered
from timewheel.errors import NoSuchTarget
from timewheel.inspect.doctor import Severity, Verdict, inspect_plan, inspect_topic, verdict_on
from timewheel.inspect.gaps import inspect_gaps, topics_of
from timewheel.inspect.gaps.explain import explain
from timewheel.inspect.gaps.snapshot import with_lost
from timewheel.inspect.status import Status, status_of
from timewheel.inspect.status.places import status_facts


class Removed(Cluster):
    """A cluster from which a topic goes as soon as one path was asked for.

    Args:
        answers: As long as it is there.
        topic: Path of the topic that goes, with all that is below it.
        after: The path.
    """

    def __init__(self, answers: dict[str, Any], topic: str, after: str) -> None:
        super().__init__(answers)
        self._topic, self._after = topic, after

    def __call__(self, request: httpx.Request) -> httpx.Response:
        answer = super().__call__(request)
        if self._after in self.asked:
            self.answers = {path: had for path, had in self.answers.items() if not path.startswith(self._topic)}
        return answer


GAPS = {
    "/persistent/a/b/sick/partitions": {"partitions": 0},
    "/persistent/a/b/sick/stats": stats(14, msgBacklog=14),
    "/persistent/a/b/sick/internalStats": internal(),
    "/persistent/a/b/well/partitions": {"partitions": 0},
    "/persistent/a/b/well/stats": stats(),
}
SICK = "persistent://a/b/sick"


@pytest.mark.parametrize("after", ["partitions", "stats"])
def test_gaps_of_a_topic_that_was_named_are_not_seen(after: str) -> None:
    with Removed(GAPS, "/persistent/a/b/sick", f"/persistent/a/b/sick/{after}").client() as admin:
        targets = topics_of(admin, ["a/b/well", "a/b/sick"])
        snapshot = inspect_gaps(admin, targets.topics, PROFILE)
    assert snapshot.gone == (SICK,)

    snapshot = with_lost(snapshot, targets.named)

    assert (snapshot.gone, [(one.what, one.is_target) for one in snapshot.unseen]) == ((), [(SICK, True)])
    assert exit_status(snapshot, "never") == 1
    assert describe(snapshot).endswith("; 1 target not seen.")


def test_a_topic_that_goes_from_its_namespace_is_no_harm() -> None:
    listed = {**GAPS, "/persistent/a/b": [SICK, "persistent://a/b/well"]}
    with Removed(listed, "/persistent/a/b/sick", "/persistent/a/b").client() as admin:
        targets = topics_of(admin, ["a/b"])
        snapshot = with_lost(inspect_gaps(admin, targets.topics, PROFILE), targets.named)
    assert (snapshot.gone, snapshot.unseen, exit_status(snapshot, "never")) == ((SICK,), (), 0)


def test_one_partition_that_was_never_used_hides_no_topic() -> None:
    answers = {"/persistent/a/b/t/partitions": {"partitions": 2}, "/persistent/a/b/t-partition-0/stats": stats()}
    with Cluster(answers).client() as admin:
        targets = topics_of(admin, ["a/b/t"])
        snapshot = with_lost(inspect_gaps(admin, targets.topics, PROFILE), targets.named)
    assert (snapshot.gone, snapshot.unseen) == (("persistent://a/b/t-partition-1",), ())


@pytest.mark.parametrize("after", ["partitions", "stats"])
def test_gaps_are_not_explained(after: str) -> None:
    cluster = Removed(GAPS, "/persistent/a/b/sick", f"/persistent/a/b/sick/{after}")
    with cluster.client() as admin, pytest.raises(NoSuchTarget, match=r"removed while|no such topic"):
        explain(admin, SICK, None, PROFILE)


STORED = {"subscriptions": {"s": {"type": "Shared", "consumers": []}}, "publishers": [], "storageSize": 7}
DOCTOR = {**ANSWERS, f"{PART}/stats": STORED, f"{PART}/internalStats": internal()}
"""With a message, so that internals are asked for."""


def doctor_of_plan(after: str) -> Verdict:
    with Removed(DOCTOR, TOPIC, after).client() as admin:
        return verdict_on(inspect_plan(admin, PLAN, target="p.toml"))


@pytest.mark.parametrize("after", [f"{TOPIC}/partitions", f"{PART}/stats", f"{PART}/internalStats"])
def test_the_doctor_does_not_call_it_healthy(after: str) -> None:
    verdict = doctor_of_plan(after)

    (told,) = [finding for finding in verdict.findings if finding.slug == "not-seen"]
    assert verdict.is_blind
    assert told.read == "topics and their stats: it was there, and was removed while it was looked at"
    assert told.subject == f"{PLAN.due_topic}-partition-0"


def test_what_was_listed_and_has_no_partitions_is_an_error() -> None:
    assert doctor_of_plan("/persistent/a/b").worst is Severity.ERROR


@pytest.mark.parametrize(
    ("after", "is_reported"), [(f"{TOPIC}/partitions", False), (f"{PART}/stats", True), (f"{TOPIC}/retention", True)]
)
def test_the_doctor_of_anyones_topic_does_not_call_it_healthy(after: str, is_reported: bool) -> None:
    with Removed(DOCTOR, TOPIC, after).client() as admin:
        if not is_reported:
            with pytest.raises(NoSuchTarget, match="there is no such topic"):
                inspect_topic(admin, PLAN.due_topic)
            return
        verdict = verdict_on(inspect_topic(admin, PLAN.due_topic))
    assert verdict.is_blind
    assert "not-seen" in {finding.slug for finding in verdict.findings}


TIERED = Plan(
    due_topic="persistent://a/b/t", subscriptions=("s",), scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,))
)
TIER = "/persistent/a/b/t.tw.tier-1h"


def status(after: str | None) -> Status:
    relayed = internal()
    relayed["cursors"] = {RELAY_SUBSCRIPTION: relayed["cursors"]["s"]}
    answers = {
        "/persistent/a/b": [],
        "/persistent/a/b/t/partitions": {"partitions": 1},
        "/persistent/a/b/t.tw.dead-letter/partitions": {"partitions": 1},
        f"{PART}/internalStats": internal(),
        f"{PART}/stats": stats(),
        f"{TIER}/partitions": {"partitions": 1},
        f"{TIER}-partition-0/internalStats": relayed,
        f"{TIER}-partition-0/stats": {"subscriptions": {RELAY_SUBSCRIPTION: {"type": "Failover"}}},
    }
    cluster = Cluster(answers) if after is None else Removed(answers, TIER, after)
    with cluster.client() as admin:
        return status_of(admin, TIERED)


def test_a_status_with_all_of_it() -> None:
    found = status(None)
    assert [place.topic[len("persistent://a/b/") :] for place in found.places] == [
        "t.tw.tier-1h-partition-0", "t-partition-0",
    ]  # fmt: skip
    assert (found.missing, found.unseen) == ((), ())


@pytest.mark.parametrize(
    ("after", "missing", "unseen"),
    [(f"{TIER}/partitions", 1, 0), (f"{TIER}-partition-0/internalStats", 0, 1), (f"{TIER}-partition-0/stats", 0, 0)],
)
def test_a_status_says_what_it_did_not_see(after: str, missing: int, unseen: int) -> None:
    found = status(after)

    tier = "persistent://a/b/t.tw.tier-1h-partition-0"
    assert found.missing == (tier,) * missing
    assert [(one.what, one.reason) for one in found.unseen] == [
        (tier, "it was removed while it was looked at")
    ] * unseen
    if not missing and not unseen:  # its entries could not be read: how many timers are in them is not known
        (place,) = [one for one in found.places if one.topic == tier]
        assert place.timers.error == place.entries > 0
        assert place.head is None
    assert status_facts(found)["missing"] == list(found.missing)
