"""A run that ends in order at SIGTERM and SIGINT, and leaves alone what is the service's."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from timewheel.consumers.base_consumer import stopping_on_signals

Number = signal.Signals


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_stops_and_everything_is_as_before(number: Number) -> None:
    stops: list[int] = []
    with stopping_on_signals(lambda: stops.append(1)):
        os.kill(os.getpid(), number)
        assert stops == [1]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a second one ends the process"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_a_signal_it_leaves_no_trace() -> None:
    with stopping_on_signals(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_handler_of_the_services_own_stays(handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)
    with stopping_on_signals(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.getsignal(signal.SIGTERM) is handler


def test_on_another_thread_it_does_nothing() -> None:
    seen: list[Any] = []

    def run() -> None:
        with stopping_on_signals(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
