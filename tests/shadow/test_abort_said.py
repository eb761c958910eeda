"""What an abort says at its end: what it has put back, and whether, why and until when a shadow must go on."""

from __future__ import annotations

import shlex

import pytest

from tests.packaging.test_printed_commands import COMMANDS, command_of
from tests.shadow.test_standing import NOW_MS, PLAN
from timewheel.cli.moments import at
from timewheel.cli.shadow_abort import last_words
from timewheel.core.durations import HOUR_MS, MINUTE_MS
from timewheel.ops.status import Amount

FAR_MS = HOUR_MS + 2 * 5 * MINUTE_MS
"""The smallest tier and twice the guard: what was due within was not lifted."""
HELD_MS = 3 * MINUTE_MS
UNTIL = at(NOW_MS + FAR_MS + HELD_MS)
ENDS = "nothing is left to wait for, and shadow run of this plan can end"


@pytest.mark.parametrize(
    ("timers", "kept", "said"),
    [
        (Amount(2_937.0), 0, ("2,937 timers", ENDS)),
        (Amount(1.0), 0, ("1 timer", ENDS)),
        (Amount(0.0), 0, ("0 timers", ENDS)),
        (None, 0, ("all that waited outside the topic", ENDS)),
        (Amount(2_937.0), 1, ("2,937 timers", "the journal still has 1 entry", UNTIL, "within 1h 10m was not lifted")),
        (Amount(90_000.0, 1_200.0), 700, ("90,000 +- 1,200 timers", "the journal still has 700 entries", UNTIL)),
        (Amount(0.0), 700, ("0 timers", "the journal still has 700 entries", UNTIL)),
        (None, 700, ("all that waited outside the topic", "the journal still has 700 entries", UNTIL)),
    ],
    ids=range(8),
)
def test_an_abort_says_what_is_back_and_what_is_left_to_wait_for(
    timers: Amount | None, kept: int, said: tuple[str, ...]
) -> None:
    lines = tuple(last_words(PLAN, "plan.toml", timers, kept=kept, now_ms=NOW_MS))
    text = "\n".join(lines)
    assert lines[0] == f"put back into {PLAN.due_topic}: {said[0]}"
    assert all(one in text for one in said)
    assert (ENDS in text) is (kept == 0)
    assert (UNTIL in text) is ("timewheel" in text) is (kept > 0)


def test_its_commands_work_as_they_are_printed() -> None:
    reached_by = ("--admin-url", "http://b:8080")
    lines = last_words(PLAN, "my plan.toml", None, kept=3, now_ms=NOW_MS, reached_by=reached_by)
    commands = [line.rpartition(": ")[2] for line in lines if ": timewheel " in line]
    names = []
    for words in map(shlex.split, commands):
        names.append(command_of(words))
        given = COMMANDS[names[-1]].make_context(names[-1], words[2 + 1 :]).params
        assert given["admin_url"] == "http://b:8080"
        assert "my plan.toml" in words
    assert names == ["timewheel shadow run", "timewheel shadow status"]
