"""How a partition goes on after what ends a subscription; the subscriptions themselves are played."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from tests.relay.relay_world import ROUTER, SOURCE_PARTITION
from tests.support.manual_clock import LeapingClock
from timewheel.client.positions import Position
from timewheel.relay.driver import partition as partitions
from timewheel.relay.driver.source import HoleFound, Memory, PartitionState, SessionFailed
from timewheel.relay.machine.order import Sign
from timewheel.relay.machine.visits import Visit

HOLE = HoleFound("a hole")
VISIT = Visit(0)


class Reported:
    def __init__(self) -> None:
        self.names: list[str] = []

    def emit(self, event: Any) -> None:
        self.names.append(event.name)


OUTGROWN: Literal["outgrown"] = "outgrown"
OLD: Literal["old"] = "old"
Ending = BaseException | Literal["outgrown", "old"] | None


def partition(monkeypatch: pytest.MonkeyPatch, endings: list[Ending]) -> tuple[Any, Reported]:
    """One whose subscriptions end so, one after the other."""

    class Played:
        def __init__(self, *of_it: Any) -> None:
            *_, self._machine, _ = of_it
            self.begins_anew = False
            self.position = None

        def run(self) -> None:
            ending = endings.pop(0)
            if isinstance(ending, BaseException):
                raise ending
            if ending is None:
                self._machine.left = VISIT
            elif ending == OLD:
                self._machine.begins_anew = True
            else:
                self.begins_anew = True

    monkeypatch.setattr(partitions, "Session", Played)
    told = Reported()
    tools: Any = SimpleNamespace(
        client=None,
        router=ROUTER,
        clock=LeapingClock(),
        rng=random.Random(1),
        hooks=told,
        max_in_flight=10,
        lease_idle_ms=1_000,
        hop_linger_ms=0,
        memory=Memory(),
        is_dead=None,
        drains_from_ms=None,
    )
    return partitions.Partition(SOURCE_PARTITION, tools), told


def test_an_unexpected_error_begins_anew_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the partition's thread without a word, and a slot was never visited again."""
    unexpected = UnicodeDecodeError("utf-8", b"", 0, 1, "no client's error")
    it, told = partition(monkeypatch, [unexpected, SessionFailed("a send failed"), None])
    assert it.visit(VISIT)
    it.run_visit()
    assert told.names == ["relay_session_crashed", "relay_session_failed"]
    assert it.handle.counts.failures == 2
    assert it.handle.state is PartitionState.RESTING
    assert it.visit(VISIT), "the visit was ended"


@pytest.mark.parametrize("ending", [OUTGROWN, OLD])
def test_who_has_outgrown_its_queue_or_holds_what_is_old_begins_anew_and_that_is_no_failure(
    ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    endings: list[Ending] = [ending, None]
    it, told = partition(monkeypatch, endings)
    it.visit(VISIT)
    it.run_visit()
    assert endings == []
    assert told.names == []
    assert it.handle.counts.failures == 0


def test_a_hole_that_can_be_read_is_a_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    it, told = partition(monkeypatch, [HOLE, None])
    it.run()
    assert it._known is None, "what it knows is older than what others have done"
    assert told.names == ["relay_position_jumped"]
    assert it.handle.counts.jumps == 1


@pytest.mark.parametrize(
    ("ending", "more"),
    [(OUTGROWN, [Sign.ASK, Sign.ASK, Sign.BEGUN]), (SessionFailed("a send failed"), [Sign.ASK, Sign.BEGUN])],
)
def test_a_beginning_outlives_a_subscription_that_the_partition_ends_itself(
    ending: Ending, more: list[Sign], monkeypatch: pytest.MonkeyPatch
) -> None:
    it, _ = partition(monkeypatch, [ending])
    first = Position(7, 3, -1)
    it._beginning.see(first, 0)
    assert it._has_ended() is False
    assert [it._beginning.see(first, 0) for _ in more] == more
