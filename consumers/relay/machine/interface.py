"""What a machine is to its shell: events in, one command out. `relay_held` and `broker_held` are the two there are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from timewheel.consumers.relay.machine.commands import Acknowledge, Command, Reading
from timewheel.consumers.relay.machine.order import Spot
from timewheel.consumers.relay.machine.states import State
from timewheel.consumers.relay.machine.visits import Visit
from timewheel.wire.positions import Position

__all__ = ["Machine"]


class Machine(ABC):
    """One subscription of one partition of a holding topic, from its begin to its end.

    Every event but `confirmed` and `lease_taken` answers with the next command. The shell begins with `done`.

    Attributes:
        state: What it is doing.
        left: The visit that was over when it left; None: there was none.
        begins_anew: It left because what it has in hand may be old: another subscription is to follow.
        confirmed_to: Up to where everything is confirmed; outlives the subscription. None: nowhere, or nothing is in
            order.
        head_release_ms: When the held head may leave, UTC milliseconds; None: no head is held.
    """

    __slots__ = ()

    cumulative: ClassVar[bool]
    """Whether a receipt acknowledges all that is before it, too."""

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
        """Messages whose confirmation is not in yet, or is but for one before them."""

    @abstractmethod
    def received(
        self, position: Position, batch_size: int, reading: Reading, receipt: Any, now_ms: int, size: int = 0
    ) -> Command:
        """A message came, after `Receive`.

        Args:
            position: Its position.
            batch_size: Messages in its entry; 0 for an unbatched one.
            reading: Its envelope, or what is wrong with it.
            receipt: What the shell acknowledges it with.
            now_ms: UTC milliseconds.
            size: Its bytes, about.

        Returns:
            Mostly `Forward`. What follows that is `RECEIVE`, and need not be asked for.
        """

    @abstractmethod
    def nothing_came(self, now_ms: int) -> Command:
        """None came, after `Receive`."""

    @abstractmethod
    def confirmed(self, ordinals: Iterable[int]) -> Acknowledge | None:
        """What the commands with these ordinals published is stored; comes at any time.

        Returns:
            What is to be acknowledged in between, whatever is going on.
        """

    @abstractmethod
    def failed(self, ordinal: int) -> Position:
        """What the command with this ordinal published is not stored, and never will be so; comes at any time. The
        subscription is to end: the next one is told of the message.

        Returns:
            Where the message stands.
        """

    @abstractmethod
    def refused(self, reason: str, now_ms: int) -> Command:
        """The last command, `Forward` or `Refile`, cannot be carried out: the message goes to the dead letters."""

    @abstractmethod
    def done(self, now_ms: int) -> Command:
        """The last command is carried out, or its wait is over."""

    @abstractmethod
    def stopping(self, left_ms: int, undone: Command | None = None) -> Command:
        """There is a wish to stop. From then on it is asked in place of `done`.

        Args:
            left_ms: How long confirmations may be waited for yet.
            undone: The command that was not carried out, at first.
        """

    def last_position(self, last: Position, now_ms: int) -> Command:
        """The answer to `AskLast`."""
        raise self._out_of_table(last, now_ms)

    def no_last_position(self) -> Command:
        """`AskLast` was not answered, as while a topic moves to another broker: it is asked again in its time."""
        raise self._out_of_table()

    def found(self, position: Position, now_ms: int) -> Command:
        """The answer to `Look`: the first position that can be read behind the one that was named."""
        raise self._out_of_table(position, now_ms)

    def lease_held(self) -> Command:
        """`Forward` could not be carried out: another relay has the name of its producer."""
        raise self._out_of_table()

    def lease_taken(self) -> None:
        """`Forward` was carried out while the state was `WAITING_FOR_LEASE`."""
        raise self._out_of_table()

    def _out_of_table(self, *event: object) -> AssertionError:
        return AssertionError(f"{type(self).__name__} gives no command that this answers: {self.state}, {event}")
