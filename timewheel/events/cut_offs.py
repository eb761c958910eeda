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
    means="The log of cut-offs cannot be read; consumers hold what is due, relays go on without dropping anything.",
    do="See the error, the broker, and whether `timewheel topics ensure PLAN` was run for this plan.",
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
    means="Timers are due, and the log of cut-offs has not answered for two seconds whether they were cancelled.",
    do="See the broker that serves the log; the plan's `when_blind` says whether they are held or delivered.",
)
class TimersWaitForCutOffs(Alarm):
    topic: str
    waited_ms: int


@event(
    "cut_offs_many",
    "warning",
    means="More timers and groups are cut off than four fifths of what a process is made for.",
    do="Cancel groups by one cut-off, hand the timer to `cancel` and not its id alone, or keep cut-offs shorter.",
)
class CutOffsMany(Event):
    topic: str
    live: int
    limit: int


@event(
    "cut_offs_refused",
    "error",
    means="A process remembers as many cut-offs as it can, and passes new ones over: their timers are handed out.",
    do="Find out who writes so many; cancel groups by one cut-off, or hand the timer to `cancel` and not its id alone.",
)
class CutOffsRefused(Alarm):
    topic: str
    refused: int
    limit: int


@event(
    "cut_offs_packed",
    "info",
    means="The log of cut-offs was written anew, in packs: whoever starts now reads less.",
    do="Nothing.",
)
class CutOffsPacked(Event):
    topic: str
    live: int


@event(
    "cut_offs_not_packed",
    "warning",
    means="The log of cut-offs could not be packed; it grows until it can be, and whoever starts reads longer.",
    do="See the error and the broker's log; `timewheel cuts compact PLAN` does it by hand.",
)
class CutOffsNotPacked(Event):
    topic: str
    error: str


@event(
    "cut_off_unknown",
    "warning",
    means="Something in the log of cut-offs is none of timewheel's, or of a later version; it is passed over.",
    do="Find out who wrote it; bring this process to that version.",
)
class CutOffUnknown(Alarm):
    topic: str
    error: str
