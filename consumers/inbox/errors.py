"""What an inbox refuses, and how it says that it cannot answer."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

__all__ = ["BadInbox", "InboxFull", "InboxKeyTooLong", "InboxUnavailable"]


class InboxUnavailable(TimewheelError, ConnectionError):
    """A store of claims cannot answer: nothing is known of the key, so no effect may be begun.

    What was asked may have been stored all the same, if only the answer was lost; to ask again under the same owner is
    safe.

    Attributes:
        store: Which one: its path or address.
        fact: What happened.
        remedy: What to do.
    """

    def __init__(self, store: str, fact: str, remedy: str) -> None:
        self.store = store
        self.fact = fact
        self.remedy = remedy
        super().__init__(f"inbox {store}: {fact}; {remedy}")


class InboxFull(InboxUnavailable):
    """A store has no room for another claim until others end or are forgotten.

    Attributes:
        limit: Its size, in ``unit``.
        unit: ``keys`` or ``bytes``.
    """

    def __init__(self, store: str, limit: int, unit: str, remedy: str) -> None:
        self.limit = limit
        self.unit = unit
        super().__init__(store, f"full, at most {limit} {unit}", remedy)


class InboxKeyTooLong(TimewheelError, ValueError):
    """The names that a key is made of are too long together; stores such as PostgreSQL cannot index more.

    Attributes:
        size_bytes: Of the key, in UTF-8.
        limit_bytes: What it may be at most.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"inbox key of {size_bytes} bytes, at most {limit_bytes}: "
            "due topic, subscription and timer id are too long together; send timers with shorter ids"
        )


class BadInbox(TimewheelError, ValueError):
    """An argument of an inbox, or a connection handed to one, by which it could not keep its word.

    Attributes:
        name: Of the argument.
        reason: Why not, and what to do.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"inbox: {name}: {reason}")
