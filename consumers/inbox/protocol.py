"""What every store of claims promises, and what keys and owners are made of.

A key is in one of three states:

    absent --claim--> claimed by an owner, until its lease ends --done--> done, until it is forgotten --> absent
                      `-- release, or the lease ends --> absent

A lease that has ended is as good as none. So a crash between claim and done lets another try, and what it may repeat is
the effect of the one that crashed: a store beside the effect cannot know whether it happened. `SqlInbox`, whose record
is in the effect's own transaction, can.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Protocol, runtime_checkable

from timewheel.consumers.inbox.errors import BadInbox, InboxKeyTooLong
from timewheel.core.chance import Chance
from timewheel.core.durations import DAY_MS

__all__ = [
    "DEFAULT_KEEP_MS",
    "DONE",
    "MAX_KEY_BYTES",
    "MINE",
    "Answer",
    "Claim",
    "Inbox",
    "Owners",
    "check_key",
    "check_least",
    "inbox_key",
    "kept_for_ms",
    "taken",
]

DEFAULT_KEEP_MS = DAY_MS
"""How long a done key is remembered past its due time: far longer than a broker's restart, after which copies come."""
MAX_KEY_BYTES = 2_048
"""PostgreSQL indexes 2,704 bytes at most; a timer id alone may have 1,024 (256 characters)."""
_SCHEME = "persistent://"


class Answer(Enum):
    """What a claim came to."""

    MINE = "mine"
    """Begin the effect; then say `Inbox.done`."""
    DONE = "done"
    """The effect happened: acknowledge the message."""
    TAKEN = "taken"
    """Another owner is at it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim.

    Args:
        answer: What it came to.
        again_ms: Of `Answer.TAKEN`: when the other's lease ends, in milliseconds from now, at least 1; else 0.
    """

    answer: Answer
    again_ms: int = 0


MINE = Claim(Answer.MINE)
DONE = Claim(Answer.DONE)


def taken(left_ms: int) -> Claim:
    """Another has it for so long; at least a millisecond, so that whoever tries again does not spin."""
    return Claim(Answer.TAKEN, max(left_ms, 1))


@runtime_checkable
class Inbox(Protocol):
    """Keeps which keys are claimed and which are done. Safe to use from several threads.

    Every method may raise `timewheel.errors.InboxUnavailable`: the store cannot answer. To call it again with the same
    owner is safe, whether or not the first call was carried out.
    """

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """Ask to begin an effect.

        Args:
            key: See `inbox_key`.
            owner: A token of this attempt alone, from `Owners`. A claim of one's own claim is MINE, with a new lease.
            lease_ms: How long others must wait if nothing more is heard; longer than the effect takes, or `renew`.

        Raises:
            InboxFull: The store has no room for another key.
        """
        ...

    def renew(self, key: str, owner: str, lease_ms: int) -> bool:
        """Begin the lease anew, while the effect takes long.

        Returns:
            False if it had ended, or the key is done: another may have begun.
        """
        ...

    def done(self, key: str, owner: str, forget_ms: int) -> bool:
        """Say that the effect happened.

        Args:
            key: As claimed.
            owner: As claimed.
            forget_ms: After how many milliseconds the key may be forgotten (`kept_for_ms`).

        Returns:
            False if the lease had ended and another owner claimed the key since: the effect may happen twice.
        """
        ...

    def release(self, key: str, owner: str) -> None:
        """Give a claim back, because the effect did not happen; nothing if the claim is no longer this owner's."""
        ...

    def close(self) -> None:
        """Let go of connections and files; claims stay. May be called twice."""
        ...


def inbox_key(
    due_topic: str, subscription: str, timer_id: str, generation: int, ended_attempt: int | None = None
) -> str:
    """What is done once: this generation of this timer, for this subscription. An attempt claims the same key again.

    The due topic is part of it, since two topics of one store may have the same subscription and the same ids.

    Args:
        due_topic: Full name.
        subscription: Whose handler it is.
        timer_id: The timer's.
        generation: The timer's.
        ended_attempt: For the key that says only that this attempt is over, and the next one is stored.

    Raises:
        InboxKeyTooLong: It is longer than `MAX_KEY_BYTES`.
    """
    # A topic has no space, and a subscription none after this, so parts stay apart. PostgreSQL takes no NUL in a text.
    subscription = subscription.replace("%", "%25").replace(" ", "%20")
    timer_id = timer_id.replace("%", "%25").replace("\0", "%00")
    which = generation if ended_attempt is None else f"{generation}.{ended_attempt}"
    key = f"{due_topic.removeprefix(_SCHEME)} {subscription} {which} {timer_id}"
    check_key(key)
    return key


def check_key(key: str) -> None:
    """Refuse a key that not every store can keep.

    Raises:
        InboxKeyTooLong: It is longer than `MAX_KEY_BYTES`.
    """
    size_bytes = len(key) if key.isascii() else len(key.encode())
    if size_bytes > MAX_KEY_BYTES:
        raise InboxKeyTooLong(size_bytes, MAX_KEY_BYTES)


def kept_for_ms(due_ms: int, now_ms: int, keep_ms: int) -> int:
    """For how long from now a done key is remembered: until ``keep_ms`` past the due time, or past now if later.

    Args:
        due_ms: When the timer was due, UTC milliseconds.
        now_ms: UTC milliseconds.
        keep_ms: Milliseconds.
    """
    return max(due_ms - now_ms, 0) + keep_ms


def check_least(name: str, value: int, least: int) -> None:
    """Refuse a number that is too small; its name says the unit.

    Raises:
        BadInbox: It is less than ``least``.
    """
    if value < least:
        raise BadInbox(name, f"{value}, must be at least {least}")


class Owners:
    """Makes tokens of owners, one for each attempt: ``<16 hex of this process>-<number>``.

    Args:
        chance: Gives the process's own part, once; a fork needs a new instance.
    """

    __slots__ = ("_counter", "_tag")

    def __init__(self, chance: Chance) -> None:
        # Two draws: a float has 53 bits.
        self._tag = "".join(f"{int(chance.random() * 2**32):08x}" for _ in range(2))
        self._counter = count()

    def new(self) -> str:
        """The next token."""
        return f"{self._tag}-{next(self._counter):x}"
