"""Errors of inboxes: refused arguments, and stores that cannot answer."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

__all__ = ["BadInbox", "InboxFull", "InboxKeyTooLong", "InboxUnavailable"]


class InboxUnavailable(TimewheelError, ConnectionError):
    """A store of claims cannot answer: the state of the key is unknown, so no effect may be begun.

    The request may have been stored all the same, if only the answer was lost; repeating the request with the same
    owner is safe.

    Attributes:
        store: Path or address of the store.
        fact: The fact that made it fail.
        remedy: The remedy.
    """

    def __init__(self, store: str, fact: str, remedy: str) -> None:
        self.store = store
        self.fact = fact
        self.remedy = remedy
        super().__init__(f"inbox {store}: {fact}; {remedy}")


class InboxFull(InboxUnavailable):
    """A store has no room for another claim until other claims end or are forgotten.

    Attributes:
        limit: Capacity of the store, in ``unit``.
        unit: ``keys`` or ``bytes``.
    """

    def __init__(self, store: str, limit: int, unit: str, remedy: str) -> None:
        self.limit = limit
        self.unit = unit
        super().__init__(store, f"full, at most {limit} {unit}", remedy)


class InboxKeyTooLong(TimewheelError, ValueError):
    """The names in a key are together too long.

    Stores such as PostgreSQL cannot index a longer key.

    Attributes:
        size_bytes: Size of the key in UTF-8.
        limit_bytes: Maximum size.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"inbox key of {size_bytes} bytes, at most {limit_bytes}: "
            "due topic, subscription and timer id are too long together; send timers with shorter ids"
        )


class BadInbox(TimewheelError, ValueError):
    """An inbox cannot keep its promise with this argument or connection.

    Attributes:
        name: Name of the argument.
        reason: The reason and the remedy.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"inbox: {name}: {reason}")
