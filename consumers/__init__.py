"""The consumer SDK: `DelayedConsumer` hands out every timer once, at its due time."""

from timewheel.consumers.aio import AsyncDelayedConsumer
from timewheel.consumers.async_running import AsyncHandler
from timewheel.consumers.base_consumer import BaseConsumer
from timewheel.consumers.consumer import DelayedConsumer
from timewheel.consumers.counts import ConsumerCounts
from timewheel.consumers.delivery_policy import Overdue
from timewheel.consumers.errors import ReceiveTimeout, SubscribeRefused
from timewheel.consumers.handlers import Handler
from timewheel.consumers.lateness import Lateness, LatenessCounts
from timewheel.consumers.message import DelayedMessage
from timewheel.consumers.middleware import Middleware, Postpone, SkipTimer
from timewheel.consumers.retry import Backoff, ExponentialBackoff, FixedBackoff, ParkTimer, RetryLater, RetryPolicy

__all__ = [
    "AsyncDelayedConsumer",
    "AsyncHandler",
    "Backoff",
    "BaseConsumer",
    "ConsumerCounts",
    "DelayedConsumer",
    "DelayedMessage",
    "ExponentialBackoff",
    "FixedBackoff",
    "Handler",
    "Lateness",
    "LatenessCounts",
    "Middleware",
    "Overdue",
    "ParkTimer",
    "Postpone",
    "ReceiveTimeout",
    "RetryLater",
    "RetryPolicy",
    "SkipTimer",
    "SubscribeRefused",
]
