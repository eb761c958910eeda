"""Relays follow their plan files; the relays are made up, the files are real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from timewheel.core.durations import DAY_MS
from timewheel.core.errors import TopologyError
from timewheel.core.plan import Plan, Tiered
from timewheel.core.planfile import PlanFiles, save_plan
from timewheel.events import (
    RelayNamespaceDropped,
    RelayPlanDropped,
    RelayPlanNotStarted,
    RelayPlansChanged,
    RelayPlansRefused,
)
from timewheel.hooks import Event
from timewheel.relay.service import RelayRegistry, Reloading

A = Plan(due_topic="persistent://t/n/a", subscriptions=("s",))
B = replace(A, due_topic="persistent://t/n/b")
A2 = replace(A, revision=2)


class Journal:
    """What was done with which relay, in order."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Plan]] = []
        self.topics_missing: set[Plan] = set()
        self.cannot_start: set[Plan] = set()


class FakeRelay:
    alive = ready = True

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self.plan = plan
        self._journal = journal

    def check(self) -> None:
        if self.plan in self._journal.topics_missing:
            raise TopologyError(self.plan.due_topic, "is missing", "run: timewheel topics ensure PLAN")

    def start(self) -> None:
        if self.plan in self._journal.cannot_start:
            raise ConnectionError("no broker")
        self._journal.done.append(("start", self.plan))

    def stop(self, drain_ms: int) -> None:
        assert drain_ms in {0, 7}
        if drain_ms:
            self._journal.done.append(("stop", self.plan))


class Stage:
    """A registry of A alone, and a folder that says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal()
        self.events: list[Event] = []
        self.settled = 0
        self.write(a=A)
        files = PlanFiles([folder])
        self.registry = RelayRegistry([self.make(A)])
        self.reloading = Reloading(
            self.registry, files, files.read(), self.make, waiting=lambda plan: len(plan.due_topic),
            settle=self.settle, drain_ms=7, hooks=(self.events.append,),
        )  # fmt: skip

    def make(self, plan: Plan) -> Any:
        return FakeRelay(plan, self.journal)

    def settle(self) -> None:
        self.settled += 1

    def facts(self) -> tuple[tuple[Plan, ...], tuple[Plan, ...], bool]:
        """Who is served, who should be, and whether that makes it ready."""
        return self.registry.plans, self.registry.missing, self.registry.ready

    def write(self, **plans: Plan) -> None:
        """Exactly these."""
        for file in self.folder.glob("*.toml"):
            file.unlink()
        for name, plan in plans.items():
            save_plan(plan, self.folder / f"{name}.toml")

    def inspect(self, times: int = 2) -> None:
        """As often as a change needs to count."""
        for _ in range(times):
            self.reloading.inspect()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.parametrize(
    ("plans", "done", "events"),
    [
        ({"a": A}, [], []),
        ({"a": A, "b": B}, [("start", B)], [RelayPlansChanged(added=B.due_topic, removed="", changed="")]),
        (
            {"b": B},
            [("stop", A), ("start", B)],
            [
                RelayPlansChanged(added=B.due_topic, removed=A.due_topic, changed=""),
                RelayPlanDropped(due_topic=A.due_topic, waiting=18),
            ],
        ),
        ({"a": A2}, [("stop", A), ("start", A2)], [RelayPlansChanged(added="", removed="", changed=A.due_topic)]),
    ],
    ids=["nothing changes", "one is added", "one drains and leaves word of what waits", "one ends before it begins"],
)
def test_relays_follow_their_files(
    stage: Stage, plans: dict[str, Plan], done: list[tuple[str, Plan]], events: list[Event]
) -> None:
    stage.write(**plans)
    stage.inspect(5)
    assert (stage.journal.done, stage.events, stage.settled) == (done, events, len(done) > 0)
    assert stage.registry.plans == tuple(plans.values())


@pytest.mark.parametrize("former", [(), ("t/held",)])
def test_a_holding_namespace_that_the_changed_plan_does_not_name_is_an_event(
    stage: Stage, former: tuple[str, ...]
) -> None:
    held = replace(A, scheme=Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)), holding_namespace="t/held")
    for plan in (held, replace(held, holding_namespace=None, former_namespaces=former)):
        stage.write(a=plan)
        stage.inspect()
        stage.inspect()

    told = [event for event in stage.events if isinstance(event, RelayNamespaceDropped)]

    expected = RelayNamespaceDropped(due_topic=A.due_topic, namespace="t/held", waiting=len(A.due_topic))
    assert told == ([] if former else [expected])


def test_a_change_counts_when_it_stands_there_twice_or_at_once_when_asked(stage: Stage) -> None:
    stage.write(a=A2)
    stage.inspect(1)
    assert stage.journal.done == []
    stage.inspect(1)
    assert stage.registry.plans == (A2,)
    stage.write(a=A)
    stage.reloading.ask_from_signal()
    stage.inspect(1)
    assert stage.registry.plans == (A,)


@pytest.mark.parametrize("text", ["no TOML", "format = 1", ""])
def test_a_file_that_is_wrong_changes_nothing_and_is_told_once(stage: Stage, text: str) -> None:
    stage.write(a=A2, b=B)
    (stage.folder / "c.toml").write_text(text)
    stage.inspect(4)
    assert (stage.journal.done, stage.registry.plans) == ([], (A,))
    (refused,) = stage.events
    assert isinstance(refused, RelayPlansRefused)
    assert "c.toml" in refused.reason
    stage.reloading.ask_from_signal()
    stage.inspect(1)
    assert len(stage.events) == 2, "who asks is told again"
    (stage.folder / "c.toml").unlink()
    stage.inspect()
    assert set(stage.registry.plans) == {A2, B}


def test_a_slip_that_was_taken_back_is_told_when_it_comes_again(stage: Stage) -> None:
    for _ in range(2):
        (stage.folder / "c.toml").write_text("no TOML")
        stage.inspect()
        (stage.folder / "c.toml").unlink()
        stage.inspect()
    assert [event.name for event in stage.events] == ["relay_plans_refused"] * 2


def test_a_folder_that_was_emptied_is_a_slip(stage: Stage) -> None:
    stage.write()
    stage.inspect(3)
    assert (stage.journal.done, stage.registry.plans, len(stage.events)) == ([], (A,), 1)


def test_topics_that_are_missing_change_nothing_until_they_are_made(stage: Stage) -> None:
    stage.journal.topics_missing = {B}
    stage.write(a=A2, b=B)
    stage.inspect(4)
    assert (stage.journal.done, stage.registry.plans) == ([], (A,))
    (refused,) = stage.events
    assert "timewheel topics ensure" in str(refused.fields["reason"])
    stage.journal.topics_missing = set()
    stage.inspect(1)
    assert set(stage.registry.plans) == {A2, B}


def test_a_relay_that_cannot_begin_is_tried_again_and_told_once(stage: Stage) -> None:
    stage.journal.cannot_start = {A2}
    stage.write(a=A2, b=B)
    stage.inspect(5)
    assert stage.facts() == ((B,), (A2,), False), "one is missing"
    told = [event for event in stage.events if isinstance(event, RelayPlanNotStarted)]
    assert told == [RelayPlanNotStarted(due_topic=A.due_topic, reason="no broker")]
    stage.journal.cannot_start = set()
    stage.inspect(1)
    assert stage.facts() == ((B, A2), (), True)


def test_what_cannot_begin_can_be_taken_back(stage: Stage) -> None:
    stage.journal.cannot_start = {A2}
    stage.write(a=A2)
    stage.inspect(3)
    stage.write(a=A)
    stage.inspect()
    assert (stage.registry.plans, stage.registry.missing) == ((A,), ())


def test_whatever_goes_wrong_in_between_the_files_are_looked_at_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = iter([RuntimeError("unforeseen"), RuntimeError("unforeseen")])

    def settle() -> None:
        if (error := next(failed, None)) is not None:
            raise error

    monkeypatch.setattr(stage.reloading, "settle", settle)
    monkeypatch.setattr("timewheel.relay.service.LOOK_MS", 1)
    stage.write(a=A, b=B)
    stage.reloading.start()
    from timewheel.testing import eventually

    eventually(lambda: any("unforeseen" in str(event.fields) for event in stage.events), 10)
    stage.write(a=A2)
    eventually(lambda: stage.registry.plans == (A2,), 10)
    stage.reloading.stop()
