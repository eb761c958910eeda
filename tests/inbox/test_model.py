"""Every store does what a table of three columns would: two owners, time that passes, restarts, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.support.inbox_stages import Stage
from timewheel.consumers.inbox import Answer

MINUTE_MS = 60_000
SLACK_MS = MINUTE_MS // 2
KEYS = st.sampled_from(["k1", "k2", "k3"])
OWNERS = st.sampled_from(["a", "b"])
# Time passes by whole minutes, and leases end in the middle of one: where the clock cannot be stopped (Redis), half a
# minute of real time may pass besides, and nothing is ever decided by less.
DURATIONS = st.integers(0, 5).map(lambda minutes: minutes * MINUTE_MS + SLACK_MS)
PASSES = st.integers(1, 4).map(lambda minutes: minutes * MINUTE_MS)


class Row(NamedTuple):
    """What the model knows of a key."""

    is_done: bool
    owner: str
    ends_ms: int


class StoreAgainstModel(RuleBasedStateMachine):
    """Both are told the same, and must answer the same."""

    make_stage: ClassVar[staticmethod[[], Stage]]

    def __init__(self) -> None:
        super().__init__()
        self.stage = self.make_stage()
        self.now_ms = 0
        self.rows: dict[str, Row] = {}

    def teardown(self) -> None:
        self.stage.close()

    def row(self, key: str) -> Row | None:
        found = self.rows.get(key)
        return found if found is not None and found.ends_ms > self.now_ms else None

    @rule(key=KEYS, owner=OWNERS, lease_ms=DURATIONS)
    def claim(self, key: str, owner: str, lease_ms: int) -> None:
        answered = self.stage.inbox.claim(key, owner, lease_ms)
        row = self.row(key)
        if row is not None and row.is_done:
            assert answered.answer is Answer.DONE
        elif row is not None and row.owner != owner:
            assert answered.answer is Answer.TAKEN
            left_ms = row.ends_ms - self.now_ms
            assert left_ms - SLACK_MS < answered.again_ms <= left_ms
        else:
            assert answered.answer is Answer.MINE
            self.rows[key] = Row(False, owner, self.now_ms + lease_ms)

    @rule(key=KEYS, owner=OWNERS, lease_ms=DURATIONS)
    def renew(self, key: str, owner: str, lease_ms: int) -> None:
        row = self.row(key)
        is_renewed = row is not None and not row.is_done and row.owner == owner
        assert self.stage.inbox.renew(key, owner, lease_ms) == is_renewed
        if is_renewed:
            self.rows[key] = Row(False, owner, self.now_ms + lease_ms)

    @rule(key=KEYS, owner=OWNERS, forget_ms=DURATIONS)
    def done(self, key: str, owner: str, forget_ms: int) -> None:
        row = self.row(key)
        is_done = row is None or row.owner == owner
        assert self.stage.inbox.done(key, owner, forget_ms) == is_done
        if is_done:
            self.rows[key] = Row(True, owner, self.now_ms + forget_ms)

    @rule(key=KEYS, owner=OWNERS)
    def release(self, key: str, owner: str) -> None:
        self.stage.inbox.release(key, owner)
        row = self.row(key)
        if row is not None and not row.is_done and row.owner == owner:
            del self.rows[key]

    @rule(duration_ms=PASSES)
    def time_passes(self, duration_ms: int) -> None:
        self.stage.pass_ms(duration_ms)
        self.now_ms += duration_ms

    @precondition(lambda self: self.stage.keeps)
    @rule()
    def restart(self) -> None:
        self.stage.restart()


def _play(make_stage: Callable[[], Stage], examples: int, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    run_state_machine_as_test(
        type("StoreAgainstModel", (StoreAgainstModel,), {"make_stage": staticmethod(make_stage)}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@pytest.mark.parametrize("examples", [12, pytest.param(300, marks=pytest.mark.short)])
def test_a_store_answers_as_the_model(make_stage: Callable[[], Stage], examples: int) -> None:
    _play(make_stage, examples)


class _NeverEnds:
    """A store in front of the real one, whose leases never end: what the model must find."""

    def __init__(self, stage: Stage) -> None:
        self.inbox, self.keeps = stage.inbox, stage.keeps
        self.restart, self.close = stage.restart, stage.close

    def pass_ms(self, duration_ms: int) -> None:
        """No time passes for it."""


@pytest.mark.parametrize("make_stage", ["memory"], indirect=True)
def test_the_model_finds_a_store_whose_leases_never_end(make_stage: Callable[[], Stage]) -> None:
    with pytest.raises(AssertionError):
        _play(lambda: _NeverEnds(make_stage()), 50, (Phase.generate,))
