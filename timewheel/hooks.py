"""What happened, for logs and metrics: events, and the hooks that are told of them.

A hook is any function of one `Event`. Hand it to a producer, consumer, relay or admin client, as in
``hooks=(count, log_event)``; without hooks events are logged. Nothing is emitted per message where all is well.

Every kind of event is a class of its own in `timewheel.events`, so that a hook can ask for the one that it wants, with
its fields and their types:

    def count(event: Event) -> None:
        match event:
            case RelaySessionCrashed(topic=topic):
                page_somebody(topic)
            case Event(level="error"):
                errors.labels(event.name).inc()

Events go to the standard logger ``timewheel``, which is silent until the service configures logging.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from timewheel.core.escapes import visible

__all__ = ["Alarm", "Event", "Hook", "Level", "log_event"]

Level = Literal["info", "warning", "error"]

LOGGER = "timewheel"
logging.getLogger(LOGGER).addHandler(logging.NullHandler())  # else Python prints warnings that nobody configured


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that an operator wants counted or read. Each kind is a class of its own, listed in `timewheel.events`.

    Attributes:
        name: Short and stable, words joined by underscores: ``relay_session_crashed``.
        level: How bad it is; the same for all of a kind.
        means: What has happened, in one sentence.
        do: What to do about it, in one sentence.
    """

    name: ClassVar[str]
    level: ClassVar[Level]
    means: ClassVar[str]
    do: ClassVar[str]

    @property
    def fields(self) -> Mapping[str, object]:
        """The facts by name, with units in their names; those that are not known are left out."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm(Event):
    """An event about a single message, told at most once a minute: a broken topic has millions of them.

    Attributes:
        count: How often it came since it was last told; the other facts are of the latest.
    """

    count: int = 1


Hook = Callable[[Event], None]
"""Called on whatever thread the event arose; what it raises is logged as `HookFailed` and stops nothing."""


def log_event(event: Event) -> None:
    """Write an event to the standard logger ``timewheel``: what is done where no hooks are given.

    The message is the name with the facts as ``key=value``, in one printable line. The record carries the facts once
    more as attributes, as they are, and the name as ``event``, for formatters that write JSON.
    """
    logger = logging.getLogger(LOGGER)
    level = logging.getLevelNamesMapping()[event.level.upper()]
    if logger.isEnabledFor(level):
        facts = event.fields
        # The caller that the record names is whoever emitted the event, two calls further up.
        logger.log(level, "%s", _text(event.name, facts), extra={"event": event.name, **facts}, stacklevel=3)


def _text(name: str, facts: Mapping[str, object]) -> str:
    # Here: it loads rich where that is installed, which no import of the SDK should cost.
    from structlog.processors import LogfmtRenderer  # noqa: PLC0415

    return visible(f"{name} {LogfmtRenderer()(None, '', dict(facts))}".rstrip())
