"""The consumer SDK: `DelayedConsumer` hands out every timer once, at its due time."""

from timewheel.consumers.aio import AsyncDelayedConsumer
from timewheel.consumers.around import Around, Later, Skip
from timewheel.consumers.async_running import AsyncHandler
from timewheel.consumers.consumer import DelayedConsumer
from timewheel.consumers.consuming import Consuming
from timewheel.consumers.counts import ConsumerCounts
from timewheel.consumers.errors import ReceiveTimeout, SubscribeRefused
from timewheel.consumers.handlers import Handler
from timewheel.consumers.judging import Overdue
from timewheel.consumers.lateness import Lateness, LatenessCounts
from timewheel.consumers.message import DelayedMessage
from timewheel.consumers.retry import Backoff, Exponential, Fixed, Park, RetryLater, RetryPolicy

__all__ = [
    "Around",
    "AsyncDelayedConsumer",
    "AsyncHandler",
    "Backoff",
    "ConsumerCounts",
    "Consuming",
    "DelayedConsumer",
    "DelayedMessage",
    "Exponential",
    "Fixed",
    "Handler",
    "Lateness",
    "LatenessCounts",
    "Later",
    "Overdue",
    "Park",
    "ReceiveTimeout",
    "RetryLater",
    "RetryPolicy",
    "Skip",
    "SubscribeRefused",
]
