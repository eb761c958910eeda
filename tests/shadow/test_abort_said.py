"""What an abort says at its end: what it has put back, and whether, why and until when a shadow must go on."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.packaging.test_printed_commands import COMMANDS, command_of
from tests.shadow.test_standing import NOW_MS, PLAN
from tests.support.stored_entry import entry_of
from timewheel.cli.options import at
from timewheel.cli.shadow import last_words
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import HOUR_MS, MINUTE_MS
from timewheel.inspect.status import Amount
from timewheel.shadow.draining import amount_words
from timewheel.shadow.machine.journal import Journal
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision

FAR_MS = HOUR_MS + 2 * 5 * MINUTE_MS  # the smallest tier and twice the guard: what was due within was not moved
HELD_MS = 3 * MINUTE_MS
LOOK_MS = 5_000
UNTIL = at(NOW_MS + FAR_MS + HELD_MS)
ENDS = "the shadow run of this plan can end"


@pytest.mark.parametrize(
    ("timers", "kept", "said"),
    [
        ("2,937 timers", 0, ("2,937 timers", ENDS)),
        ("2,937 timers", 1, ("2,937 timers", "the journal still has 1 entry", UNTIL, "within 1h 10m was not moved")),
        ("90,000 +- 1,200 timers", 700, ("90,000 +- 1,200 timers", "the journal still has 700 entries", UNTIL)),
    ],
    ids=range(3),
)
def test_an_abort_says_what_is_back_and_what_is_left_to_wait_for(timers: str, kept: int, said: tuple[str, ...]) -> None:
    lines = tuple(last_words(PLAN, "plan.toml", timers, kept=kept, now_ms=NOW_MS))
    text = "\n".join(lines)
    assert lines[0] == f"put back into {PLAN.due_topic}: {said[0]}"
    assert all(one in text for one in said)
    assert (ENDS in text) is (kept == 0)
    assert (UNTIL in text) is ("timewheel" in text) is (kept > 0)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"journal": Amount(0.0), "tier": Amount(2_937.0)}, "2,937 timers"),
        ({"journal": Amount(0.0), "tier": Amount(1.0)}, "1 timer"),
        ({}, "0 timers"),
        ({"tier": Amount(90_000.0, 1_200.0)}, "90,000 +- 1,200 timers"),
        ({"journal": Amount(116.0), "tier": Amount(300.0)}, "about 416 timers"),
        ({"journal": None, "tier": Amount(300.0)}, "all that waited outside the topic"),
    ],
    ids=range(6),
)
def test_what_is_on_its_way_while_it_is_counted_makes_the_number_an_estimate(
    found: dict[str, Amount | None], words: str
) -> None:
    assert amount_words(found, {"intake", "journal"}) == words


def test_its_commands_work_as_they_are_printed() -> None:
    reached_by = ("--admin-url", "http://b:8080")
    lines = last_words(PLAN, "my plan.toml", "3 timers", kept=3, now_ms=NOW_MS, reached_by=reached_by)
    commands = [line.rpartition(": ")[2] for line in lines if ": timewheel " in line]
    names = []
    for words in map(shlex.split, commands):
        names.append(command_of(words))
        given = COMMANDS[names[-1]].make_context(names[-1], words[2 + 1 :]).params
        assert given["admin_url"] == "http://b:8080"
        assert "my plan.toml" in words
    assert names == ["timewheel shadow run", "timewheel shadow status"]


@given(
    st.lists(
        st.tuples(st.integers(0, 10 * MINUTE_MS), st.integers(0, 3 * FAR_MS) | st.integers(FAR_MS - 1, FAR_MS + 1)),
        max_size=12,
    )
)
def test_by_then_the_journal_is_empty(sent: list[tuple[int, int]]) -> None:
    """Whatever was sent: if each is handled when it is due, and copies are stored as they are made."""
    move_decider, journal, now_ms = MoveDecider(PLAN), Journal(), NOW_MS
    handled_ms = []
    for number, (later_ms, delay_ms) in enumerate(sent):
        now_ms += later_ms
        decision = move_decider.decision(
            entry_of(3, number, publish_ms=now_ms, deliver_at_ms=now_ms + delay_ms), now_ms
        )
        if decision is MoveDecision.MOVE:
            journal.add(EntryPosition(3, number), EntryPosition(9, number))
        handled_ms.append(now_ms if decision is MoveDecision.MOVE else now_ms + delay_ms)
    for at_ms in range(now_ms, now_ms + FAR_MS + HELD_MS + 2 * LOOK_MS, LOOK_MS):
        pending = [number for number, done_ms in enumerate(handled_ms) if done_ms > at_ms]
        journal.passed(EntryPosition(3, min(pending, default=len(sent)) - 1), at_ms)
    assert journal.is_empty
