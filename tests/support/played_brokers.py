"""Simulated brokers: no socket, no thread, and a clock that moves while a broker is silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.support.manual_clock import ManualClock
from tests.support.pulsar_messages import command_frame, connected, read_request
from timewheel.broker.protocol.errors import BrokerLost
from timewheel.broker.protocol.session import Address

Answering = Callable[[Any], bytes]  # returns the answer to a request; empty: the broker is silent

USUAL: Mapping[str, Answering] = {
    "CONNECT": lambda _: connected(),
    "SUBSCRIBE": lambda said: command_frame("SUCCESS", request_id=said.request_id),
    "CLOSE_CONSUMER": lambda said: command_frame("SUCCESS", request_id=said.request_id),
    "ACK": lambda said: (  # an ACK without a request id has no answer
        command_frame("ACK_RESPONSE", request_id=said.request_id, consumer_id=said.consumer_id)
        if said.request_id
        else b""
    ),
    "FLOW": lambda _: b"",
    "PING": lambda _: command_frame("PONG"),
    "PONG": lambda _: b"",
    "AUTH_RESPONSE": lambda _: b"",
}


UNREACHABLE: None = None  # in place of a broker's answers: nothing answers an attempt to connect


def silent(_: Any) -> bytes:
    """Answer nothing."""
    return b""


class PlayedTransport:
    """A connection to a simulated broker.

    Attributes:
        requests: Requests in order: names and messages.
        coming: Pieces of data to be received; an empty piece is silence until the timeout.
        ends_with: How the connection ends after the last piece; None: silence.
    """

    def __init__(self, address: Address, clock: ManualClock, answers: Mapping[str, Answering]) -> None:
        self.address = address
        self._clock = clock
        self._answers = {**USUAL, **answers}
        self.requests: list[tuple[str, Any]] = []
        self.coming: list[bytes] = []
        self.is_closed = False
        self.ends_with: str | None = None

    def send(self, data: bytes, timeout_ms: int) -> None:
        assert timeout_ms > 0
        assert not self.is_closed, "nothing is sent behind the end"
        for name, said in read_request(data):
            self.requests.append((name, said))
            if answer := self._answers[name](said):
                self.coming.append(answer)

    def receive(self, timeout_ms: int) -> bytes:
        assert not self.is_closed, "nothing is awaited behind the end"
        data = self.coming.pop(0) if self.coming else b""
        if not data and not self.coming and self.ends_with is not None:
            raise BrokerLost(str(self.address), self.ends_with)
        if not data:
            self._clock.advance(timeout_ms)
        return data

    def close(self) -> None:
        self.is_closed = True

    def names(self) -> list[str]:
        return [name for name, _ in self.requests]


class PlayedBrokers:
    """A cluster of simulated brokers.

    Args:
        answers: Unusual answers of each broker, by its address, or `UNREACHABLE`; ``LOOKUP`` has no usual answer.
    """

    def __init__(self, clock: ManualClock, answers: Mapping[str, Mapping[str, Answering] | None]) -> None:
        self._clock = clock
        self.answers = dict(answers)
        self.opened: list[PlayedTransport] = []

    def open(self, address: Address, timeout_ms: int) -> PlayedTransport:
        if str(address) not in self.answers:
            raise BrokerLost(str(address), "nobody is there")
        answers = self.answers[str(address)]
        if answers is None:
            self._clock.advance(timeout_ms)
            raise BrokerLost(str(address), "it did not answer in time") from TimeoutError()
        self.opened.append(PlayedTransport(address, self._clock, answers))
        return self.opened[-1]


def found_at(url: str, **more: Any) -> Answering:
    """Answer a lookup: the topic is served at this URL."""
    return lambda said: command_frame(
        "LOOKUP_RESPONSE", request_id=said.request_id, **{"response": 1, "brokerServiceUrl": url, **more}
    )
