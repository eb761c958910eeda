"""All errors that timewheel raises on purpose, to be caught by name or by family.

`TimewheelError` is the root. The type shows the party at fault, attributes hold the facts, the message states the
remedy. Most errors also derive from the fitting builtin: ``except ValueError`` and ``except TimeoutError`` work as
expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    CancellationUnreadable,
    CancelOutcomeUnknown,
    CancelRefused,
    ClientMisuse,
    DurationError,
    EnvelopeError,
    EnvelopeTooNew,
    OwnerUnreachable,
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
from timewheel.core.extras import ExtraMissing, names_on_first_use
from timewheel.core.plan import DelayTooLong
from timewheel.core.topology import UndrainedTopics

if TYPE_CHECKING:
    from timewheel.broker.protocol.errors import (
        BinaryProtocolError,
        BrokerLost,
        BrokerRefused,
        BrokerSilent,
        BrokerTooOld,
        ConsumerLost,
        FrameTooLarge,
        LookupFailed,
        ProtocolViolation,
        TooManyRequests,
    )
    from timewheel.client.reaching import BrokerUnreachable, RoleRefused
    from timewheel.consumers.errors import ReceiveTimeout, SubscribeRefused
    from timewheel.consumers.inbox.protocol import BadInbox, InboxFull, InboxKeyTooLong, InboxUnavailable
    from timewheel.inspect.errors import (
        GapLogUnreadable,
        LogUnreadable,
        NoSuchTarget,
        NothingToSample,
        NotOfThisPlan,
        ReplayFailed,
        SendTimeUnknown,
    )
    from timewheel.spark_planner.errors import (
        BadColumnMapping,
        DaysAlreadyStored,
        EmptyHistory,
        HistoryUnreadable,
        MaxDelayTooShort,
        MissingColumn,
        NoSuchTopic,
        NoValidRows,
        PlannerError,
        SeveralTopics,
        StatisticUnreadable,
        TooManyTopics,
        UnitUnknown,
        WrongTimeUnit,
    )
    from timewheel.testing.errors import BrokerFailed, BrokerUnavailable

__all__ = [
    "AdminDenied", "AdminError", "AdminMissing", "AdminUnreachable", "BadArgument", "BadColumnMapping",
    "BadConnection", "BadDueTime", "BadInbox", "BadName", "BadTimerId", "BinaryProtocolError", "BrokerFailed",
    "BrokerLost", "BrokerRefused", "BrokerSilent", "BrokerTooOld", "BrokerUnavailable", "BrokerUnreachable",
    "CancelFailed", "CancelOutcomeUnknown", "CancelRefused", "CancellationUnreadable", "ClientMisuse",
    "ConsumerLost", "DaysAlreadyStored", "DelayTooLong", "DurationError", "EmptyHistory", "EnvelopeError",
    "EnvelopeTooNew", "ExtraMissing", "FrameTooLarge", "GapLogUnreadable", "HistoryUnreadable", "InboxFull",
    "InboxKeyTooLong", "InboxUnavailable", "LogUnreadable", "LookupFailed", "MaxDelayTooShort", "MissingColumn",
    "NoSuchTarget", "NoSuchTopic", "NoValidRows", "NotOfThisPlan", "NothingToSample", "OwnerUnreachable",
    "PayloadTooLarge", "PlanError", "PlannerError", "ProfileError", "ProtocolViolation", "ReceiveTimeout",
    "ReplayFailed", "ReservedProperty", "RoleRefused", "SendFailed", "SendOutcomeUnknown", "SendRefused",
    "SendTimeUnknown", "SeveralTopics", "StatisticUnreadable", "SubscribeRefused", "TimewheelError",
    "TokenNotGiven", "TooManyRequests", "TooManyTopics", "TopologyError", "UndrainedTopics", "UnitUnknown",
    "UnsupportedAcknowledgement", "WrongTimeUnit",
]  # fmt: skip

# Loaded on first use: catching a refused send should not load the planner, nor the planner the Pulsar client.
__getattr__ = names_on_first_use(
    __name__,
    {
        "timewheel.broker.protocol.errors": "BinaryProtocolError BrokerLost BrokerRefused BrokerSilent BrokerTooOld "
        "ConsumerLost FrameTooLarge LookupFailed ProtocolViolation TooManyRequests",
        "timewheel.client.reaching": "BrokerUnreachable RoleRefused",
        "timewheel.consumers.errors": "ReceiveTimeout SubscribeRefused",
        "timewheel.consumers.inbox.protocol": "BadInbox InboxFull InboxKeyTooLong InboxUnavailable",
        "timewheel.inspect.errors": "GapLogUnreadable LogUnreadable NoSuchTarget NotOfThisPlan NothingToSample "
        "ReplayFailed SendTimeUnknown",
        "timewheel.spark_planner.errors": "BadColumnMapping DaysAlreadyStored EmptyHistory HistoryUnreadable "
        "MaxDelayTooShort MissingColumn NoSuchTopic NoValidRows PlannerError SeveralTopics StatisticUnreadable "
        "TooManyTopics UnitUnknown WrongTimeUnit",
        "timewheel.testing.errors": "BrokerFailed BrokerUnavailable",
    },
)
