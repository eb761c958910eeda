"""Producer SDK: sends timers of one plan to the topics in which they wait.

`DelayedProducer` blocks, `AsyncDelayedProducer` awaits; both use the caller's ``pulsar.Client`` and a plan.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base_producer import ProducerCounts
from .producer import CancelCallback, DelayedProducer, TimerCallback
from .timer import SendOptions, Timer

if TYPE_CHECKING:
    from .aio import AsyncDelayedProducer

__all__ = [
    "AsyncDelayedProducer",
    "CancelCallback",
    "DelayedProducer",
    "ProducerCounts",
    "SendOptions",
    "Timer",
    "TimerCallback",
]


def __getattr__(name: str) -> Any:
    """Import `AsyncDelayedProducer` at its first use: asyncio is a quarter of this package's import time."""
    if name != "AsyncDelayedProducer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = import_module(f"{__name__}.aio").AsyncDelayedProducer
    return found
