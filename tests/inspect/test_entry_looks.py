"""A look at an entry without an answer: that entry's own trouble, until so many come in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from timewheel.broker.admin.topics import MAX_UNANSWERED, Topics
from timewheel.client.positions import EntryPosition
from timewheel.core.errors import AdminError, AdminMissing, AdminUnreachable

TOPIC = "persistent://acme/crm/reminders"
FOUND: Any = object()


class Source:
    """Gives what it is told to, once each, and then no answer."""

    def __init__(self) -> None:
        self.next: list[Any] = []

    def entry(self, topic: str, _: EntryPosition) -> Any:
        given = self.next.pop(0) if self.next else AdminUnreachable(f"READ {topic}", "timed out", sent=True)
        if isinstance(given, Exception):
            raise given
        return given

    def close(self) -> None:
        """Nothing is open."""


def looking() -> tuple[Source, Callable[[], Any]]:
    source, http = Source(), None
    topics = Topics(http, source)  # type: ignore[arg-type]
    return source, lambda: topics.entry(TOPIC, EntryPosition(1, 2))


def unanswered(inspect: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        with pytest.raises(AdminError, match="the entry cannot be read: timed out") as caught:
            inspect()
        assert not isinstance(caught.value, AdminUnreachable)


def test_so_many_looks_in_a_row_without_an_answer_are_no_entry_s_trouble() -> None:
    _, inspect = looking()
    unanswered(inspect, MAX_UNANSWERED - 1)
    with pytest.raises(AdminUnreachable):
        inspect()


@pytest.mark.parametrize("answer", [FOUND, AdminMissing(404, "READ", "none"), AdminError(200, "READ", "does not open")])
def test_any_answer_shows_that_the_broker_is_there(answer: Any) -> None:
    source, inspect = looking()
    for _ in range(3):
        unanswered(inspect, MAX_UNANSWERED - 1)
        source.next = [answer]
        if answer is FOUND:
            assert inspect() is FOUND
        else:
            with pytest.raises(type(answer)):
                inspect()


def test_what_was_never_sent_is_told_at_once() -> None:
    source, inspect = looking()
    source.next = [AdminUnreachable("READ", "refused", sent=False)]
    with pytest.raises(AdminUnreachable):
        inspect()
