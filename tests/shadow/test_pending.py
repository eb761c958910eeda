"""What was not moved: `shadow status` and `shadow verify` count it by one function, and `status` shows all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from tests.shadow.test_standing import NOW_MS, PLAN, SOUND, overview
from tests.support.stored_entry import entry_of
from timewheel.broker.admin.stats import AckedRange
from timewheel.cli.options import at
from timewheel.cli.shadow import show_audit, show_overview
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.shadow.desired_state import DesiredState, State
from timewheel.shadow.machine.audit import Place
from timewheel.shadow.machine.cursors import Acked
from timewheel.shadow.machine.journal import HOLD_MS
from timewheel.shadow.machine.move_decider import MoveDecider
from timewheel.shadow.machine.survey_counters import ARRIVED_MS, Pending
from timewheel.shadow.overview import Phase, Queue, ShadowOverview, overview_facts
from timewheel.shadow.verification import PartitionAudit, Verification

FAR = {"deliver_at_ms": NOW_MS + 2 * DAY_MS, "publish_ms": NOW_MS - ARRIVED_MS - 1}


def acked(*numbers: int) -> Acked:
    ranges = [AckedRange(EntryPosition(3, number - 1), EntryPosition(3, number)) for number in numbers]
    return Acked(EntryPosition(3, -1), ranges)


def test_what_should_have_been_lifted_is_told_from_what_cannot_be() -> None:
    pending = Pending(MoveDecider(PLAN), [acked(0, 1), acked(0)], NOW_MS, moved={EntryPosition(3, 2)})
    seen = [
        pending.see(entry)
        for entry in (
            entry_of(3, 0, **FAR),  # handled
            entry_of(3, 1, **FAR),  # on one of two subscriptions
            entry_of(3, 2, **FAR),  # its copy is stored, and it is acknowledged soon
            entry_of(3, 3, **FAR | {"publish_ms": NOW_MS - ARRIVED_MS}),  # has just come
            entry_of(3, 4, **FAR),
            entry_of(3, 5, **FAR | {"batch_size": 7}),
            entry_of(3, 6, **FAR | {"is_encrypted": True}),
            entry_of(3, 7, **FAR | {"is_encrypted": True}),
            entry_of(3, 8, **FAR | {"deliver_at_ms": NOW_MS + 1}),
            entry_of(3, 9),
        )
    ]
    assert [number for number, is_left in enumerate(seen) if is_left] == [4]
    assert (pending.acked, pending.left) == (1, 1)
    assert pending.stays == {"encrypted": 2, "batch": 1}
    assert pending.decisions == {
        "acknowledged_by_some": 1, "moved": 3, "batch": 1, "encrypted": 2, "near": 1, "undelayed": 1,
    }  # fmt: skip


def test_where_nothing_is_moved_an_entry_counts_as_soon_as_it_is_there() -> None:
    """Seconds after an abort of 2,855 timers a status said "31 +- 38": all others had come back too lately to count."""
    pending = Pending(MoveDecider(PLAN), [acked()], NOW_MS, None)
    assert all(pending.see(entry_of(3, number, **FAR | {"publish_ms": NOW_MS + number})) for number in range(3))
    assert pending.left == pending.not_moved == 3


def said(show: Callable[[Console], None]) -> str:
    text = StringIO()
    show(Console(file=text, width=200, highlight=False))
    return text.getvalue()


def row(found: ShadowOverview) -> list[str]:
    lines = said(lambda console: show_overview(console, found)).splitlines()
    return next(line.split() for line in lines if line.split()[:1] == [SOUND.topic.rpartition("/")[2]])


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (overview(), "0"),
        (overview(left=12), "12"),
        (overview(stays={"encrypted": 1_200, "batch": 3}), "1,203"),
        (overview(left=12, stays={"batch": 3}, is_whole=False, error=4), "15 +- 4"),
        (overview(is_whole=False, error=7), "0 +- 7"),  # entries that were not looked at may be there
    ],
    ids=range(5),
)
def test_the_column_shows_all_that_was_not_lifted(found: ShadowOverview, shown: str) -> None:
    assert " ".join(row(found)).endswith(f" {shown}")


def audit_of(entries: int, decisions: dict[str, int], state: DesiredState, *, is_caught_up: bool) -> Verification:
    part = PartitionAudit(
        topic=SOUND.topic, entries=entries, read=entries, acked=0, decisions=decisions, is_caught_up=is_caught_up,
        journal=0, places=dict.fromkeys(Place, 0), troubles=(), memory_bytes=0,
    )  # fmt: skip
    return Verification(plan=PLAN, at_ms=NOW_MS, desired=state, looks=1, parts=(part,))


def test_status_and_verify_name_the_same_entries_in_the_same_words() -> None:
    left = {"moved": 12, "encrypted": 1_200, "batch": 3}
    found = overview(left=12, stays={"encrypted": 1_200, "batch": 3})
    audit = audit_of(1_215, left, found.desired, is_caught_up=True)
    words = "12 far from due (not moved yet), 1,200 encrypted (not moved), 3 in a batch (not moved)."
    assert f"Not moved: {words}" in said(lambda console: show_overview(console, found))
    assert f"Pending: {words}" in said(lambda console: show_audit(console, audit, "PLAN"))
    assert overview_facts(found)["partitions"][0]["stays_about"] == {"encrypted": 1_200, "batch": 3}


@pytest.mark.parametrize("state", State)
def test_an_audit_that_counts_what_is_pending_does_not_say_that_it_does_not(state: State) -> None:
    audit = audit_of(2, {"moved": 2}, DesiredState(state, 0), is_caught_up=False)
    text = said(lambda console: show_audit(console, audit, "PLAN"))
    assert "Pending: 2 far from due" in text
    assert "not counted" not in text
    assert ("not caught up" in text) is (state is State.SHADOWING)


@pytest.mark.parametrize("state", [one for one in State if one is not State.SHADOWING])
def test_where_nobody_is_to_lift_nothing_is_said_to_be_lifted_later(state: State) -> None:
    text = said(lambda console: show_overview(console, overview(state, left=3)))
    assert "Not moved: 3 far from due (would be moved by a shadow)." in text
    assert "yet" not in text


RUN = "so let this go on until it is empty, then end it: timewheel shadow run PLAN"
FAR_AND_HOLD_MS = HOUR_MS + 10 * MINUTE_MS + HOLD_MS


@pytest.mark.parametrize(
    ("entries", "mover", "since_ms", "words"),
    [
        (700, SOUND.mover, 0, (RUN, f"at the latest that is about {at(NOW_MS + FAR_AND_HOLD_MS)}")),
        (700, None, 0, (RUN, f"at the latest that is about {at(NOW_MS + FAR_AND_HOLD_MS)}")),
        (700, SOUND.mover, -DAY_MS, (RUN, f"it was to be empty by about {at(NOW_MS - DAY_MS + FAR_AND_HOLD_MS)}, so")),
        (0, SOUND.mover, 0, ("the journal is empty: the shadow run of this plan can end",)),
        (0, None, 0, ()),
    ],
    ids=range(5),
)
def test_after_an_abort_status_says_how_long_a_shadow_must_run(
    entries: int, mover: str | None, since_ms: int, words: tuple[str, ...]
) -> None:
    queue = Queue(entries=entries, oldest_ms=MINUTE_MS if entries else None)
    found = overview(State.NATIVE, holding=0, mover=mover, journal=queue, phase=Phase.IDLE)
    found = replace(found, desired=DesiredState(State.NATIVE, NOW_MS + since_ms))
    text = " ".join(said(lambda console: show_overview(console, found)).split())
    assert all(one in text for one in words), text
    assert ("the journal still has" in text, "can end" in text) == (entries > 0, not entries and mover is not None)


def test_a_part_that_was_looked_at_names_the_command_that_looks_at_all() -> None:
    text = " ".join(said(lambda console: show_overview(console, overview(left=3, is_whole=False, error=2))).split())
    assert "Not moved: about 3 far from due (not moved yet)." in text
    assert ("Not moved in all: 3 +- 2 at 95 %, by 9 sampled entries; to read all: timewheel shadow verify PLAN") in text
