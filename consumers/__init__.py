"""The consumer SDK: `DelayedConsumer` hands out every timer once, at its due time."""

from timewheel.consumers.consumer import DelayedConsumer
from timewheel.consumers.engine import ConsumerCounts
from timewheel.consumers.errors import ReceiveTimeout, SubscribeRefused
from timewheel.consumers.handlers import Handler
from timewheel.consumers.lateness import Lateness, LatenessCounts
from timewheel.consumers.message import DelayedMessage

__all__ = [
    "ConsumerCounts",
    "DelayedConsumer",
    "DelayedMessage",
    "Handler",
    "Lateness",
    "LatenessCounts",
    "ReceiveTimeout",
    "SubscribeRefused",
]
