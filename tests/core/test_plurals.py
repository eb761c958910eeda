"""Numbers with their nouns."""

import pytest

from timewheel.core.plurals import counted


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 timers"), (1, "1 timer"), (2, "2 timers"), (12_345, "12,345 timers")],
)
def test_the_noun_fits_the_number(number: int, said: str) -> None:
    assert counted(number, "timer") == said


def test_a_noun_may_have_a_plural_of_its_own_and_a_verb() -> None:
    assert counted(1, "entry waits", "entries wait") == "1 entry waits"
    assert counted(3, "entry waits", "entries wait") == "3 entries wait"
