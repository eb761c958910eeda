"""Producer SDK: sends timers of one plan to the topics in which they wait.

`DelayedProducer` blocks, `AsyncDelayedProducer` awaits; both use the caller's ``pulsar.Client`` and a plan.
"""

from .aio import AsyncDelayedProducer
from .base_producer import ProducerCounts
from .producer import CancelCallback, DelayedProducer, TimerCallback
from .timer import SendOptions, Timer

__all__ = [
    "AsyncDelayedProducer",
    "CancelCallback",
    "DelayedProducer",
    "ProducerCounts",
    "SendOptions",
    "Timer",
    "TimerCallback",
]
