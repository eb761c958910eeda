"""Errors of inspecting live topics: nothing to read, or topics that deviate from a plan."""

from __future__ import annotations

from collections.abc import Sequence

from timewheel.core.errors import TimewheelError, says

__all__ = [
    "GapLogUnreadable",
    "LogUnreadable",
    "NoSuchTarget",
    "NotOfThisPlan",
    "NothingToSample",
    "ReplayFailed",
    "SendTimeUnknown",
]


@says("{topic}: {problem}")
class NothingToSample(TimewheelError, LookupError):
    """The topic does not exist, or has no entries that stay long enough to be read."""

    topic: str
    """The topic, or a partition of it."""
    problem: str


class NotOfThisPlan(TimewheelError, LookupError):
    """The due topic lacks subscriptions of the plan.

    The plan belongs to another topic, or is not provisioned yet.

    Attributes:
        topic: A due topic of the plan, or a partition of it.
        missing: Subscriptions of the plan that the topic lacks.
        existing: Subscriptions of the topic.
    """

    def __init__(self, topic: str, missing: Sequence[str], existing: Sequence[str]) -> None:
        self.topic = topic
        self.missing = tuple(missing)
        self.existing = tuple(existing)
        super().__init__(
            f"{topic} has no subscription {', '.join(missing)}, so there is no counter of gaps; it has "
            f"{', '.join(existing) or 'none'}. Is this the plan of another topic, or has `timewheel topics ensure "
            "PLAN` not run yet?"
        )


@says("{target}: {problem}")
class NoSuchTarget(TimewheelError, LookupError):
    """The target does not exist, or its name is invalid."""

    target: str
    """The target as the user named it."""
    problem: str


class GapLogUnreadable(TimewheelError, ValueError):
    """A log of gaps cannot be read or written, or contains something else.

    Attributes:
        path: Path of the file.
        line: Line number from 1; 0 for the file itself.
        problem: The problem with the file.
    """

    def __init__(self, path: str, line: int, problem: str) -> None:
        self.path = path
        self.line = line
        self.problem = problem
        where = f"{path}, line {line}" if line else path
        super().__init__(f"{where}: {problem}; give another --log to begin a new one")


class LogUnreadable(TimewheelError, ValueError):
    """A file is not a log of checks.

    Attributes:
        path: Path of the file.
        line: Number of the invalid line; 0 for the file itself.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        self.path = path
        self.line = line
        super().__init__(f"log {path}{f', line {line}' if line else ''}: {reason}; it was not written on")


@says(
    "{timer_id!r} does not contain its time of sending, as generated ids do: give that time with --sent-at TIME, or "
    "the due time with --due TIME, which reads every entry"
)
class SendTimeUnknown(TimewheelError, ValueError):
    """The send time of a timer is neither in its id nor given."""

    timer_id: str


@says("{topic}: {problem}")
class ReplayFailed(TimewheelError, RuntimeError):
    """Dead letters could not be replayed or discarded.

    Dead letters that were published but not acknowledged exist twice.
    """

    topic: str
    """The topic, or a partition of it."""
    problem: str
