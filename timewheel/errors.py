"""Every error that timewheel raises on purpose, to be caught by name or by family.

`TimewheelError` is the root. The type says whose fault it is, attributes carry the facts, the message says what to do.
Most also inherit the fitting builtin: ``except ValueError`` and ``except TimeoutError`` do what a reader expects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.doors import names_on_first_use
from timewheel.core.errors import (
    AdminDenied,
    AdminError,
    AdminMissing,
    AdminUnreachable,
    BadArgument,
    BadConnection,
    BadDueTime,
    BadName,
    BadTimerId,
    CancelFailed,
    CancelOutcomeUnknown,
    CancelRefused,
    ClientMisuse,
    CutOffUnreadable,
    DelayTooLong,
    DurationError,
    EnvelopeError,
    EnvelopeTooNew,
    PayloadTooLarge,
    PlanError,
    ProfileError,
    ReservedProperty,
    SendFailed,
    SendOutcomeUnknown,
    SendRefused,
    TimewheelError,
    TokenNotGiven,
    TopologyError,
    UnsupportedAcknowledgement,
)
from timewheel.core.former_topics import TimersLeftBehind

if TYPE_CHECKING:
    from timewheel.consumers.errors import (
        ReceiveTimeout,
        SubscribeRefused,
    )
    from timewheel.consumers.inbox.errors import (
        BadInbox,
        InboxFull,
        InboxKeyTooLong,
        InboxMissing,
        InboxUnavailable,
    )
    from timewheel.metrics.errors import MetricsMissing
    from timewheel.ops.errors import (
        DealingFailed,
        GapLogUnreadable,
        NoSuchTarget,
        NothingToSample,
        NotOfThisPlan,
        SendTimeUnknown,
    )
    from timewheel.spark_planner.errors import (
        BadColumnMapping,
        DaysThere,
        EmptyHistory,
        HistoryUnreadable,
        MaxDelayTooShort,
        MissingColumn,
        NoSoundRow,
        NoSuchTopic,
        PlannerError,
        PlannerMissing,
        SeveralTopics,
        StatisticUnreadable,
        TooManyTopics,
        UnitUnknown,
        WrongTimeUnit,
    )
    from timewheel.testing.errors import (
        BrokerFailed,
        BrokerUnavailable,
    )
    from timewheel.tracing.errors import TracingMissing
    from timewheel.watch.errors import LogUnreadable

__all__ = [
    "AdminDenied",
    "AdminError",
    "AdminMissing",
    "AdminUnreachable",
    "BadArgument",
    "BadColumnMapping",
    "BadConnection",
    "BadDueTime",
    "BadInbox",
    "BadName",
    "BadTimerId",
    "BrokerFailed",
    "BrokerUnavailable",
    "CancelFailed",
    "CancelOutcomeUnknown",
    "CancelRefused",
    "ClientMisuse",
    "CutOffUnreadable",
    "DaysThere",
    "DealingFailed",
    "DelayTooLong",
    "DurationError",
    "EmptyHistory",
    "EnvelopeError",
    "EnvelopeTooNew",
    "GapLogUnreadable",
    "HistoryUnreadable",
    "InboxFull",
    "InboxKeyTooLong",
    "InboxMissing",
    "InboxUnavailable",
    "LogUnreadable",
    "MaxDelayTooShort",
    "MetricsMissing",
    "MissingColumn",
    "NoSoundRow",
    "NoSuchTarget",
    "NoSuchTopic",
    "NotOfThisPlan",
    "NothingToSample",
    "PayloadTooLarge",
    "PlanError",
    "PlannerError",
    "PlannerMissing",
    "ProfileError",
    "ReceiveTimeout",
    "ReservedProperty",
    "SendFailed",
    "SendOutcomeUnknown",
    "SendRefused",
    "SendTimeUnknown",
    "SeveralTopics",
    "StatisticUnreadable",
    "SubscribeRefused",
    "TimersLeftBehind",
    "TimewheelError",
    "TokenNotGiven",
    "TooManyTopics",
    "TopologyError",
    "TracingMissing",
    "UnitUnknown",
    "UnsupportedAcknowledgement",
    "WrongTimeUnit",
]

# Loaded on first use: whoever catches a refused send should not load the planner, nor the planner the Pulsar client.
_MODULE_OF = {
    "ReceiveTimeout": "timewheel.consumers.errors",
    "SubscribeRefused": "timewheel.consumers.errors",
    "BadInbox": "timewheel.consumers.inbox.errors",
    "InboxFull": "timewheel.consumers.inbox.errors",
    "InboxKeyTooLong": "timewheel.consumers.inbox.errors",
    "InboxMissing": "timewheel.consumers.inbox.errors",
    "InboxUnavailable": "timewheel.consumers.inbox.errors",
    "DealingFailed": "timewheel.ops.errors",
    "GapLogUnreadable": "timewheel.ops.errors",
    "NoSuchTarget": "timewheel.ops.errors",
    "NotOfThisPlan": "timewheel.ops.errors",
    "NothingToSample": "timewheel.ops.errors",
    "SendTimeUnknown": "timewheel.ops.errors",
    "MetricsMissing": "timewheel.metrics.errors",
    "LogUnreadable": "timewheel.watch.errors",
    "BadColumnMapping": "timewheel.spark_planner.errors",
    "DaysThere": "timewheel.spark_planner.errors",
    "EmptyHistory": "timewheel.spark_planner.errors",
    "HistoryUnreadable": "timewheel.spark_planner.errors",
    "MaxDelayTooShort": "timewheel.spark_planner.errors",
    "MissingColumn": "timewheel.spark_planner.errors",
    "NoSoundRow": "timewheel.spark_planner.errors",
    "NoSuchTopic": "timewheel.spark_planner.errors",
    "PlannerError": "timewheel.spark_planner.errors",
    "PlannerMissing": "timewheel.spark_planner.errors",
    "SeveralTopics": "timewheel.spark_planner.errors",
    "StatisticUnreadable": "timewheel.spark_planner.errors",
    "TooManyTopics": "timewheel.spark_planner.errors",
    "UnitUnknown": "timewheel.spark_planner.errors",
    "WrongTimeUnit": "timewheel.spark_planner.errors",
    "BrokerFailed": "timewheel.testing.errors",
    "BrokerUnavailable": "timewheel.testing.errors",
    "TracingMissing": "timewheel.tracing.errors",
}

__getattr__ = names_on_first_use(__name__, _MODULE_OF)
