"""The catalogue of events: everything that timewheel tells of itself, each with what it means and what to do.

A new event is a new class in one of these modules; `make docs-tables` writes it into docs/events.md.
"""

from __future__ import annotations

from timewheel.events.calendars import (
    CalendarRollFailed,
    CalendarTopicClosed,
    CalendarTopicDeleted,
    CalendarTopicMissing,
    CalendarTopicNotOpened,
    CalendarTopicOpened,
    CalendarTopicStuck,
)
from timewheel.events.consumers import (
    AcknowledgeFailed,
    EnvelopeUnreadable,
    HandlerFailed,
    HandlersLeftBehind,
    RepublishFailed,
    TimerFarTooEarly,
    TimerTooNew,
)
from timewheel.events.cut_offs import (
    CutOffsMany,
    CutOffsNotPacked,
    CutOffsNotRead,
    CutOffsPacked,
    CutOffsReadAgain,
    CutOffsRefused,
    CutOffUnknown,
    TimersWaitForCutOffs,
)
from timewheel.events.handlers import AroundFailed, InboxDidNotAnswer, InboxLeaseLost, InboxNotTold, TimerParked
from timewheel.events.kind import kinds
from timewheel.events.operations import (
    BrokerConfigurationDenied,
    HookFailed,
    LookFailed,
    RelayProcessEnded,
    SecretFileOpen,
    TokenExpired,
    TokenUnreadable,
)
from timewheel.events.producers import (
    ProducerClosedWithUnknownOutcomes,
    ProducerCloseFailed,
    ProducerDispatcherFailed,
    SendCallbackFailed,
)
from timewheel.events.relays import (
    ConnectionBack,
    ConnectionLost,
    RelayDeadLetter,
    RelayDrainsFormerTopic,
    RelayFormerTopicsUnknown,
    RelayFormerTopicUnreadable,
    RelayGroupCut,
    RelayHopsBeyondPlan,
    RelayNamespaceDropped,
    RelayPlanDropped,
    RelayPlanNotStarted,
    RelayPlansChanged,
    RelayPlansRefused,
    RelayPositionJumped,
    RelaySessionCrashed,
    RelaySessionFailed,
    RelayWaitsForLease,
)
from timewheel.events.shadows import (
    ShadowCaughtUp,
    ShadowLiftFailed,
    ShadowLiftsAgain,
    ShadowLooksFail,
    ShadowMissesPartitions,
    ShadowRefuses,
    ShadowState,
    ShadowStaysNative,
    ShadowWaitsForLease,
)
from timewheel.hooks import Event

__all__ = [
    "CATALOGUE",
    "AcknowledgeFailed",
    "AroundFailed",
    "BrokerConfigurationDenied",
    "CalendarRollFailed",
    "CalendarTopicClosed",
    "CalendarTopicDeleted",
    "CalendarTopicMissing",
    "CalendarTopicNotOpened",
    "CalendarTopicOpened",
    "CalendarTopicStuck",
    "ConnectionBack",
    "ConnectionLost",
    "CutOffUnknown",
    "CutOffsMany",
    "CutOffsNotPacked",
    "CutOffsNotRead",
    "CutOffsPacked",
    "CutOffsReadAgain",
    "CutOffsRefused",
    "EnvelopeUnreadable",
    "HandlerFailed",
    "HandlersLeftBehind",
    "HookFailed",
    "InboxDidNotAnswer",
    "InboxLeaseLost",
    "InboxNotTold",
    "LookFailed",
    "ProducerCloseFailed",
    "ProducerClosedWithUnknownOutcomes",
    "ProducerDispatcherFailed",
    "RelayDeadLetter",
    "RelayDrainsFormerTopic",
    "RelayFormerTopicUnreadable",
    "RelayFormerTopicsUnknown",
    "RelayGroupCut",
    "RelayHopsBeyondPlan",
    "RelayNamespaceDropped",
    "RelayPlanDropped",
    "RelayPlanNotStarted",
    "RelayPlansChanged",
    "RelayPlansRefused",
    "RelayPositionJumped",
    "RelayProcessEnded",
    "RelaySessionCrashed",
    "RelaySessionFailed",
    "RelayWaitsForLease",
    "RepublishFailed",
    "SecretFileOpen",
    "SendCallbackFailed",
    "ShadowCaughtUp",
    "ShadowLiftFailed",
    "ShadowLiftsAgain",
    "ShadowLooksFail",
    "ShadowMissesPartitions",
    "ShadowRefuses",
    "ShadowState",
    "ShadowStaysNative",
    "ShadowWaitsForLease",
    "TimerFarTooEarly",
    "TimerParked",
    "TimerTooNew",
    "TimersWaitForCutOffs",
    "TokenExpired",
    "TokenUnreadable",
]

CATALOGUE: tuple[type[Event], ...] = tuple(kinds)
"""Every kind of event that timewheel emits."""
