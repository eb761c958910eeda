"""The contract of every store of claims, and the format of keys and owners.

A key is in one of three states:

    absent --claim--> claimed by an owner, until its lease ends --done--> done, until it is forgotten --> absent
                      `-- release, or the lease ends --> absent

A lease that has ended counts as no lease. So after a crash between claim and done another owner may try, and may repeat
the effect of the crashed owner: a store beside the effect cannot know whether it happened. `SqlInbox`, whose record is
in the effect's own transaction, can.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Protocol, runtime_checkable

from timewheel.core.durations import DAY_MS
from timewheel.core.errors import TimewheelError, says
from timewheel.core.rng import Random

__all__ = ["BadInbox", "InboxFull", "InboxKeyTooLong", "InboxUnavailable"]


@says("inbox {store}: {fact}; {remedy}")
class InboxUnavailable(TimewheelError, ConnectionError):
    """A store of claims cannot answer: the state of the key is unknown, so no effect may be begun.

    The request may have been stored all the same, if only the answer was lost; repeating the request with the same
    owner is safe.
    """

    store: str
    """Path or address of the store."""
    fact: str
    """The fact that made it fail."""
    remedy: str


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


@says(
    "inbox key of {size_bytes} bytes, at most {limit_bytes}: due topic, subscription and timer id are too long "
    "together; send timers with shorter ids"
)
class InboxKeyTooLong(TimewheelError, ValueError):
    """The names in a key are together too long.

    Stores such as PostgreSQL cannot index a longer key.
    """

    size_bytes: int
    """Size of the key in UTF-8."""
    limit_bytes: int


@says("inbox: {name}: {reason}")
class BadInbox(TimewheelError, ValueError):
    """An inbox cannot keep its promise with this argument or connection."""

    name: str
    """Name of the argument."""
    reason: str
    """The reason and the remedy."""


DEFAULT_KEEP_MS = DAY_MS
"""Time that a done key is kept past its due time: far longer than a broker's restart, after which copies arrive."""
MAX_KEY_BYTES = 2_048
"""PostgreSQL indexes 2,704 bytes at most; a timer id alone may have 1,024 (256 characters)."""
_SCHEME = "persistent://"


class Answer(Enum):
    """The outcome of a claim."""

    MINE = "mine"
    """Begin the effect, then call `Inbox.done`."""
    DONE = "done"
    """The effect happened: acknowledge the message."""
    TAKEN = "taken"
    """Another owner has claimed the key."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim.

    Args:
        answer: The outcome.
        again_ms: For `Answer.TAKEN`, milliseconds until the other owner's lease ends, at least 1; else 0.
    """

    answer: Answer
    again_ms: int = 0


MINE = Claim(Answer.MINE)
DONE = Claim(Answer.DONE)


def taken(left_ms: int) -> Claim:
    """Return the answer that another owner has the key; at least a millisecond, so that repeated claims do not spin."""
    return Claim(Answer.TAKEN, max(left_ms, 1))


@runtime_checkable
class Inbox(Protocol):
    """Stores which keys are claimed and which are done. Safe to use from several threads.

    Every method may raise `timewheel.errors.InboxUnavailable`: the store cannot answer. Repeating a call with the same
    owner is safe, whether or not the first call was carried out.
    """

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """Ask to begin an effect.

        Args:
            key: See `inbox_key`.
            owner: A token of this attempt alone, from `Owners`. Claiming a key again with its owner answers MINE, with
                a new lease.
            lease_ms: Time that other owners wait without a renewal; longer than the effect takes, or call `renew`.

        Raises:
            InboxFull: The store has no room for another key.
        """
        ...

    def renew(self, key: str, owner: str, lease_ms: int) -> bool:
        """Begin the lease anew, while the effect takes long.

        Returns:
            False if the lease had ended, or the key is done: another owner may have begun.
        """
        ...

    def done(self, key: str, owner: str, forget_ms: int) -> bool:
        """Record that the effect happened.

        Args:
            key: The claimed key.
            owner: The owner of the claim.
            forget_ms: Milliseconds after which the key may be forgotten (`kept_for_ms`).

        Returns:
            False if the lease had ended and another owner claimed the key since: the effect may happen twice.
        """
        ...

    def release(self, key: str, owner: str) -> None:
        """Give a claim back, because the effect did not happen; do nothing if another owner has the claim now."""
        ...

    def close(self) -> None:
        """Close connections and files; claims stay. May be called twice."""
        ...


def inbox_key(
    due_topic: str, subscription: str, timer_id: str, generation: int, ended_attempt: int | None = None
) -> str:
    """Return the key of a timer's generation for a subscription, which is done once. All attempts claim the same key.

    The due topic is part of the key, since two topics of one store may have the same subscription and the same ids.

    Args:
        due_topic: Full name of the due topic.
        subscription: The subscription of the handler.
        timer_id: Id of the timer.
        generation: Generation of the timer.
        ended_attempt: Makes the key that records only that this attempt is over, and the next attempt is stored.

    Raises:
        InboxKeyTooLong: The key is longer than `MAX_KEY_BYTES`.
    """
    # A topic contains no space, nor does an escaped subscription, so the parts stay distinct. PostgreSQL accepts no NUL
    # in text.
    subscription = subscription.replace("%", "%25").replace(" ", "%20")
    timer_id = timer_id.replace("%", "%25").replace("\0", "%00")
    which = generation if ended_attempt is None else f"{generation}.{ended_attempt}"
    key = f"{due_topic.removeprefix(_SCHEME)} {subscription} {which} {timer_id}"
    check_key(key)
    return key


def check_key(key: str) -> None:
    """Refuse a key that is too long for some store (`InboxKeyTooLong`)."""
    size_bytes = len(key) if key.isascii() else len(key.encode())
    if size_bytes > MAX_KEY_BYTES:
        raise InboxKeyTooLong(size_bytes, MAX_KEY_BYTES)


def kept_for_ms(due_ms: int, now_ms: int, keep_ms: int) -> int:
    """Return how long from now a done key is remembered: until ``keep_ms`` past the due time, or past now if later.

    Args:
        due_ms: Due time of the timer, UTC milliseconds.
        now_ms: UTC milliseconds.
        keep_ms: Milliseconds.
    """
    return max(due_ms - now_ms, 0) + keep_ms


def check_least(name: str, value: int, least: int) -> None:
    """Refuse a number that is too small (`BadInbox`); its name includes the unit."""
    if value < least:
        raise BadInbox(name, f"{value}, must be at least {least}")


class Owners:
    """Makes tokens of owners, a new token for each attempt: ``<16 hex of this process>-<number>``.

    Args:
        rng: Source of the process's own part, drawn once; a fork needs a new instance.
    """

    __slots__ = ("_counter", "_tag")

    def __init__(self, rng: Random) -> None:
        # Two draws: a float has 53 bits.
        self._tag = "".join(f"{int(rng.random() * 2**32):08x}" for _ in range(2))
        self._counter = count()

    def new(self) -> str:
        """Return the next token."""
        return f"{self._tag}-{next(self._counter):x}"
