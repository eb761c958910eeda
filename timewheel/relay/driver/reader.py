"""Reads each message once: a timer, or the reason why it is none. No later code can fail on its content."""

from __future__ import annotations

from typing import Any

from timewheel.client.native import Entries
from timewheel.client.positions import Position
from timewheel.core.envelope import TIMER_PROPERTY
from timewheel.core.ids import place_id
from timewheel.core.plan import Plan
from timewheel.relay.driver.dead_letter_writer import Verdicts
from timewheel.relay.driver.source import Source
from timewheel.relay.machine.commands import Reading, Unreadable, judged, of_large_batch
from timewheel.relay.machine.intake import taken_in

_ENCRYPTED = Unreadable("it is encrypted, and a relay has no key: producers of a plan do not encrypt")


class Reader:
    """Reads the messages of a subscription.

    Args:
        source: The source partition.
        plan: Bounds the timers that the intake accepts.
        verdicts: The partition's verdicts.

    Attributes:
        entry: Entry of the last message that was read.
        properties: Properties of that message for its next hop; empty if they cannot be read.
    """

    __slots__ = ("_plan", "_source", "_verdicts", "entry", "properties")

    def __init__(self, source: Source, plan: Plan, verdicts: Verdicts) -> None:
        self._source = source
        self._plan = plan
        self._verdicts = verdicts.given
        self.entry = Entries()
        self.properties: dict[str, str] = {}

    def read(self, position: Position, message: Any, message_id: Any) -> Reading:
        """Read the next message."""
        self.properties = {}
        verdict = self._verdicts.get(position) if self._verdicts else None
        try:
            self.entry.see(position, message, message_id)
            whole = of_large_batch(position.batch_index, self.entry.batch_size)
            if whole is not None:
                return whole
            self.properties = properties = message.properties()
            if verdict is None:
                return _ENCRYPTED if self.entry.is_encrypted else self._judged(message, position, properties)
        except UnicodeDecodeError as error:
            return Unreadable(f"a property is no UTF-8, and is lost here with all others: {error.object!r:.100}")
        except Exception:
            if verdict is None:
                raise
        return Unreadable(verdict.reason)

    def _judged(self, message: Any, position: Position, properties: dict[str, str]) -> Reading:
        source, plan = self._source, self._plan
        if not source.is_intake:
            return judged(properties)
        # Most timers in the intake were moved by a shadow, and have an id.
        own_id = "" if TIMER_PROPERTY in properties else place_id(source.name, *position)
        return taken_in(properties, message.publish_timestamp(), own_id, plan)
