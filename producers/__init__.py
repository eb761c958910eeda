"""The producer SDK: timers of one plan, sent to where they wait.

`DelayedProducer` blocks, `AsyncDelayedProducer` awaits; both take your own ``pulsar.Client`` and a plan.
"""

from timewheel.producers.aio import AsyncDelayedProducer
from timewheel.producers.producer import CancelCallback, DelayedProducer, TimerCallback
from timewheel.producers.send_options import SendOptions
from timewheel.producers.sending.tally import ProducerCounts
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
