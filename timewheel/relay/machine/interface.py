"""The interface of a machine to its driver: events in, commands out. Implemented by `relay_held` and `broker_held`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from timewheel.client.positions import Position
from timewheel.relay.machine.arrivals import Arrivals
from timewheel.relay.machine.commands import Acknowledge, Command, Reading
from timewheel.relay.machine.order import Spot
from timewheel.relay.machine.states import State
from timewheel.relay.machine.visits import Visit


class Machine(ABC):
    """A subscription of a partition of a holding topic, from its begin to its end.

    Every event but `confirmed` and `lease_taken` returns the next command. The driver begins with `done`.

    Attributes:
        state: Its present state.
        left: The visit that was over when it left; None without a visit.
        begins_anew: Whether it left because its messages in flight may be old: another subscription is to follow.
        confirmed_to: The spot up to which all messages are confirmed; outlives the subscription. None if there is none,
            or messages are not in order.
        head_release_ms: Release time of the held head, UTC milliseconds; None without a held head.
    """

    __slots__ = ()

    cumulative: ClassVar[bool]
    """True if a receipt also acknowledges all messages before it."""

    state: State
    left: Visit | None
    begins_anew: bool

    @property
    @abstractmethod
    def confirmed_to(self) -> Spot | None: ...

    @property
    @abstractmethod
    def head_release_ms(self) -> int | None: ...

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Messages that are unconfirmed, or confirmed behind an unconfirmed message."""

    @property
    def arrivals(self) -> Arrivals:
        """Bounds the times at which messages arrived; of use while the head is held."""
        return Arrivals(0, 0)

    @abstractmethod
    def received(
        self, position: Position, batch_size: int, reading: Reading, receipt: Any, now_ms: int, size: int = 0
    ) -> Command:
        """Take a message, after `Receive`.

        Args:
            position: Its position.
            batch_size: Messages in its entry; 0 for an unbatched message.
            reading: Its envelope, or its error.
            receipt: The driver's means to acknowledge it.
            now_ms: UTC milliseconds.
            size: Its approximate bytes.

        Returns:
            Mostly `Forward`. The command after that is `RECEIVE`, and need not be asked for.
        """

    @abstractmethod
    def nothing_came(self, now_ms: int) -> Command:
        """Take note that no message came, after `Receive`."""

    @abstractmethod
    def confirmed(self, ordinals: Iterable[int]) -> Acknowledge | None:
        """Take confirmations that the publishes of these commands are stored; called at any time.

        Returns:
            An acknowledgement to execute in between, at any point.
        """

    @abstractmethod
    def failed(self, ordinal: int) -> Position:
        """Take note that the publish of this command is not stored, and never will be; called at any time.

        The subscription is to end: the next subscription finds a verdict about the message.

        Returns:
            Position of the message.
        """

    @abstractmethod
    def refused(self, reason: str, now_ms: int) -> Command:
        """Send the message of the last command, `Forward` or `Refile`, to the dead letters: it cannot be sent."""

    @abstractmethod
    def done(self, now_ms: int) -> Command:
        """Take note that the last command is executed, or its wait is over."""

    @abstractmethod
    def stopping(self, left_ms: int, undone: Command | None = None) -> Command:
        """Take a request to stop. From then on it is called instead of `done`.

        Args:
            left_ms: Time for which confirmations may still be awaited.
            undone: The command that was not executed, in the first call.
        """

    def last_position(self, last: Position, now_ms: int) -> Command:
        """Take the answer to `AskLast`."""
        raise self._out_of_table(last, now_ms)

    def no_last_position(self) -> Command:
        """Take note that `AskLast` was not answered, as while a topic moves to another broker: it is repeated later."""
        raise self._out_of_table()

    def found(self, position: Position, now_ms: int) -> Command:
        """Take the answer to `Examine`: the first readable position behind the named position."""
        raise self._out_of_table(position, now_ms)

    def lease_held(self) -> Command:
        """Take note that `Forward` was not executed: another relay has the name of its producer."""
        raise self._out_of_table()

    def lease_taken(self) -> None:
        """Take note that `Forward` was executed while the state was `WAITING_FOR_LEASE`."""
        raise self._out_of_table()

    def _out_of_table(self, *event: object) -> AssertionError:
        return AssertionError(f"{type(self).__name__} gives no command that this answers: {self.state}, {event}")
