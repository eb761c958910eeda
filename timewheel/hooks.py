"""Events for logs and metrics, and the hooks that are called with them.

A hook is any function of a single `Event`. Pass hooks to a producer, consumer, relay or admin client, as in
``hooks=(count, log_event)``; without hooks events are logged. No event is emitted per message while all is well.

Every kind of event is a class of its own in `timewheel.events`, so that a hook can match the events that it needs, with
their fields and types:

    def count(event: Event) -> None:
        match event:
            case RelaySessionCrashed(topic=topic):
                page_on_call(topic)
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
logging.getLogger(LOGGER).addHandler(logging.NullHandler())  # else Python prints warnings without any configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Event that an operator wants counted or read. Each kind is a class of its own, listed in `timewheel.events`.

    Attributes:
        name: Short and stable, words joined by underscores: ``relay_session_crashed``.
        level: Severity; the same for all events of a kind.
        means: Meaning, in one sentence.
        do: Remedy, in one sentence.
    """

    name: ClassVar[str]
    level: ClassVar[Level]
    means: ClassVar[str]
    do: ClassVar[str]

    @property
    def fields(self) -> Mapping[str, object]:
        """The facts by name, with units in their names; unknown facts are left out."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm(Event):
    """Event about a single message, emitted at most once a minute: a broken topic has millions of them.

    Attributes:
        count: Occurrences since the last emit; the other facts are those of the latest occurrence.
    """

    count: int = 1


Hook = Callable[[Event], None]
"""Called on the thread on which the event arose; its exceptions are logged as `HookFailed` and stop nothing."""


def log_event(event: Event) -> None:
    """Write an event to the standard logger ``timewheel``; used if no hooks are given.

    The message is the name with the facts as ``key=value``, in a printable line. The record also has the facts as
    attributes, unchanged, and the name as ``event``, for formatters that write JSON.
    """
    logger = logging.getLogger(LOGGER)
    level = logging.getLevelNamesMapping()[event.level.upper()]
    if logger.isEnabledFor(level):
        facts = event.fields
        # The record names the code that emitted the event, two calls further up.
        logger.log(level, "%s", _text(event.name, facts), extra={"event": event.name, **facts}, stacklevel=3)


def _text(name: str, facts: Mapping[str, object]) -> str:
    # Imported here: structlog loads rich if it is installed, which no import of the SDK should cost.
    from structlog.processors import LogfmtRenderer  # noqa: PLC0415

    return visible(f"{name} {LogfmtRenderer()(None, '', dict(facts))}".rstrip())
