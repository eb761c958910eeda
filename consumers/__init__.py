"""The consumer SDK: `DelayedConsumer` hands out every timer once, at its due time."""

from .aio import AsyncDelayedConsumer, AsyncHandler
from .base_consumer import BaseConsumer
from .consumer import DelayedConsumer, Handler
from .counts import ConsumerCounts, Lateness, LatenessCounts
from .engine import Overdue
from .errors import ReceiveTimeout, SubscribeRefused
from .message import DelayedMessage
from .middleware import Middleware, Postpone, SkipTimer
from .retry import Backoff, ExponentialBackoff, FixedBackoff, ParkTimer, RetryLater, RetryPolicy

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
