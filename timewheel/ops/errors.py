"""Errors of looking into live topics: there is nothing to see, or not what a plan says."""

from __future__ import annotations

from collections.abc import Sequence

from timewheel.core.errors import TimewheelError

__all__ = ["DealingFailed", "GapLogUnreadable", "NoSuchTarget", "NotOfThisPlan", "NothingToSample", "SendTimeUnknown"]


class NothingToSample(TimewheelError, LookupError):
    """There is no such topic, or there are no entries in it, or not for long enough to be looked at."""

    def __init__(self, topic: str, problem: str) -> None:
        self.topic = topic
        self.problem = problem
        super().__init__(f"{topic}: {problem}")


class NotOfThisPlan(TimewheelError, LookupError):
    """The due topic has not the subscriptions that the plan names: it is the file of another topic, or of no topic yet.

    Attributes:
        topic: One of the plan's due topics, or a partition of it.
        missing: Subscriptions of the plan that it has not.
        existing: Those that it has.
    """

    def __init__(self, topic: str, missing: Sequence[str], existing: Sequence[str]) -> None:
        self.topic = topic
        self.missing = tuple(missing)
        self.existing = tuple(existing)
        super().__init__(
            f"{topic} has no subscription {', '.join(missing)}, so there is no counter of gaps; it has "
            f"{', '.join(existing) or 'none'}. Is the plan that of another topic, or is "
            "`timewheel topics ensure PLAN` to come?"
        )


class NoSuchTarget(TimewheelError, LookupError):
    """What is to be looked at is not there, or is no name of anything.

    Attributes:
        target: As it was named.
        problem: What is wrong with it.
    """

    def __init__(self, target: str, problem: str) -> None:
        self.target = target
        self.problem = problem
        super().__init__(f"{target}: {problem}")


class GapLogUnreadable(TimewheelError, ValueError):
    """A log of looks cannot be read or written, or something else is in it.

    Attributes:
        path: The file.
        line: Where, from 1; 0: the file itself.
        problem: What is wrong.
    """

    def __init__(self, path: str, line: int, problem: str) -> None:
        self.path = path
        self.line = line
        self.problem = problem
        where = f"{path}, line {line}" if line else path
        super().__init__(f"{where}: {problem}; give another --log to begin a new one")


class SendTimeUnknown(TimewheelError, ValueError):
    """A timer's id does not say when it was sent, and nobody else did.

    Attributes:
        timer_id: That.
    """

    def __init__(self, timer_id: str) -> None:
        self.timer_id = timer_id
        super().__init__(
            f"{timer_id!r} does not say when it was sent, as generated ids do: give that time with --sent-at TIME, or "
            "its due time with --due TIME, and every entry is looked at"
        )


class DealingFailed(TimewheelError, RuntimeError):
    """Dead letters could not be dealt with; those that had been published and were not taken out are there as copies.

    Attributes:
        topic: The partition of the dead-letter topic.
        problem: What went wrong.
    """

    def __init__(self, topic: str, problem: str) -> None:
        self.topic = topic
        self.problem = problem
        super().__init__(f"{topic}: {problem}")
