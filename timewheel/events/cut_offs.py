"""Events about the log of cut-offs, by which timers are cancelled and replaced."""

from __future__ import annotations

from timewheel.events.kind import event
from timewheel.hooks import Alarm, Event

__all__ = [
    "CutOffUnknown",
    "CutOffsMany",
    "CutOffsNotPacked",
    "CutOffsNotRead",
    "CutOffsPacked",
    "CutOffsReadAgain",
    "CutOffsRefused",
    "TimersWaitForCutOffs",
]


@event(
    "cut_offs_not_read",
    "error",
    means="The log of cut-offs cannot be read; consumers hold due timers, relays go on without dropping any.",
    do="See the error and the broker; run `timewheel topics ensure PLAN`.",
)
class CutOffsNotRead(Event):
    topic: str
    error: str


@event(
    "cut_offs_read_again",
    "info",
    means="The log of cut-offs is read again, up to its end.",
    do="Nothing.",
)
class CutOffsReadAgain(Event):
    topic: str


@event(
    "timers_wait_for_cut_offs",
    "error",
    means="The log of cut-offs has not answered for two seconds whether due timers were cancelled.",
    do="See the broker that serves the log; the plan's `when_blind` holds or delivers them.",
)
class TimersWaitForCutOffs(Alarm):
    topic: str
    waited_ms: int


@event(
    "cut_offs_many",
    "warning",
    means="Cut-offs exceed four fifths of a process's limit.",
    do="Cut off groups, hand the timer and not only its id to `cancel`, or keep cut-offs shorter.",
)
class CutOffsMany(Event):
    topic: str
    live: int
    limit: int


@event(
    "cut_offs_refused",
    "error",
    means="A process remembers as many cut-offs as it can, and passes new ones over: their timers are handed out.",
    do="Find their writer; cut off groups, or hand the timer and not only its id to `cancel`.",
)
class CutOffsRefused(Alarm):
    topic: str
    refused: int
    limit: int


@event(
    "cut_offs_packed",
    "info",
    means="The log of cut-offs was compacted: processes start sooner.",
    do="Nothing.",
)
class CutOffsPacked(Event):
    topic: str
    live: int


@event(
    "cut_offs_not_packed",
    "warning",
    means="The log of cut-offs could not be compacted; it grows, and processes start later.",
    do="See the error and the broker's log; `timewheel cuts compact PLAN` compacts it.",
)
class CutOffsNotPacked(Event):
    topic: str
    error: str


@event(
    "cut_off_unknown",
    "warning",
    means="An entry in the log of cut-offs is foreign, or of a later version; it is passed over.",
    do="Find its writer; upgrade this process.",
)
class CutOffUnknown(Alarm):
    topic: str
    error: str
