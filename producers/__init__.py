"""Producer SDK: sends timers of one plan to the topics in which they wait.

`DelayedProducer` blocks, `AsyncDelayedProducer` awaits; both use the caller's ``pulsar.Client`` and a plan.
"""

from typing import TYPE_CHECKING

from timewheel.core.extras import names_on_first_use

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

# asyncio is a quarter of this package's import time.
__getattr__ = names_on_first_use(__name__, {".aio": "AsyncDelayedProducer"})
