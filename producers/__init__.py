"""Producer SDK: sends timers of one plan to the topics in which they wait.

`DelayedProducer` blocks, `AsyncDelayedProducer` awaits; both use the caller's ``pulsar.Client`` and a plan.
"""

from timewheel.producers.aio import AsyncDelayedProducer
from timewheel.producers.producer import CancelCallback, DelayedProducer, TimerCallback
from timewheel.producers.send_options import SendOptions
from timewheel.producers.sending.counters import ProducerCounts
from timewheel.producers.timer import Timer

__all__ = [
    "AsyncDelayedProducer",
    "CancelCallback",
    "DelayedProducer",
    "ProducerCounts",
    "SendOptions",
    "Timer",
    "TimerCallback",
]
