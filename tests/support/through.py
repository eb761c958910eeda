"""Proxies around objects of the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Through:
    """Delegates all attributes to the client's own object; subclasses observe calls, or replace them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


Wrapper = Callable[[Any, Any, str], Any]
"""Returns what stands for a consumer or a producer: by the object, its topic, and its subscription or its name."""


class ThroughClient(Through):
    """A client whose consumers and producers are replaced by what stands for them."""

    def __init__(self, inner: Any, *, consumer: Wrapper | None = None, producer: Wrapper | None = None) -> None:
        super().__init__(inner)
        self._wrap_consumer, self._wrap_producer = consumer, producer

    def subscribe(self, topic: Any, subscription_name: str, **options: Any) -> Any:
        made = self._inner.subscribe(topic, subscription_name, **options)
        return made if self._wrap_consumer is None else self._wrap_consumer(made, topic, subscription_name)

    def create_producer(self, topic: str, **options: Any) -> Any:
        made = self._inner.create_producer(topic, **options)
        return (
            made if self._wrap_producer is None else self._wrap_producer(made, topic, options.get("producer_name", ""))
        )


class BeforeSends(Through):
    """A producer that calls ``passing`` with the options of each send before it."""

    def __init__(self, inner: Any, passing: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(inner)
        self._passing = passing

    def send_async(self, content: Any, callback: Any, **options: Any) -> None:
        self._passing(options)
        self._inner.send_async(content, callback, **options)


class AroundAcks(Through):
    """A consumer that calls ``before`` and ``after`` around each acknowledgement, with the message or its id."""

    def __init__(self, inner: Any, before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
        super().__init__(inner)
        self._before, self._after = before, after

    def acknowledge(self, receipt: Any) -> None:
        self._before(receipt)
        self._inner.acknowledge(receipt)
        self._after(receipt)

    def acknowledge_cumulative(self, receipt: Any) -> None:
        self._before(receipt)
        self._inner.acknowledge_cumulative(receipt)
        self._after(receipt)
