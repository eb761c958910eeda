"""What a consumer has seen and done."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.consumers.in_hand import Mark

__all__ = ["ConsumerCounts"]


@dataclass(slots=True)
class ConsumerCounts:
    """What a consumer has seen and done since it was made; all but ``held`` only grow.

    Args:
        received: Messages taken from the client.
        handed: Given out, or about to be; a timer that was given out twice counts twice. One that was overdue
            or cancelled when a handler would have begun counts here and there.
        early: Received before their due time.
        far_too_early: Received earlier than anything we asked for (broker-facts: bounded-local-hold); somebody should
            look.
        republished: Of those, published again under their due time.
        already_handled: Delivered again after they were handled; dropped.
        redelivered: Delivered again from the same position while in hand; dropped.
        extra_copies: Delivered from another position while in hand; dropped.
        timed_out: Handed out again after the ack time-out.
        foreign: Without an envelope, also those that are known by their place, beside a shadow; handed out at once.
        envelope_errors: With an unreadable one; handed out at once.
        too_new: Written by a later version of timewheel; given back to the broker, or parked.
        stirs: A shadow's own, for the broker's sake; dropped.
        done: Handled.
        failed: Negatively acknowledged.
        postponed: Put off by what stands around their handler, or by it; handed out again.
        skipped: Acknowledged without being handled, since what stands around their handler, or it, said so.
        cancelled: Dropped when they were due or their handler would have begun: they were cancelled or replaced.
        overdue: Dropped when they came, since they were too late to be of use.
        unjudged: Handed out though the log of cut-offs did not answer (``when_blind = "deliver"``).
        tried_again: Published to be handled again later, as their handler or its policy wanted.
        parked: Published to wait for an operator: their handler or its policy wanted that, they were overdue, or they
            came so late that nobody could say whether they were cancelled; or this consumer could not read them, nor
            publish them again.
        held: In hand and waiting now.
    """

    received: int = 0
    handed: int = 0
    early: int = 0
    far_too_early: int = 0
    republished: int = 0
    already_handled: int = 0
    redelivered: int = 0
    extra_copies: int = 0
    timed_out: int = 0
    foreign: int = 0
    envelope_errors: int = 0
    too_new: int = 0
    stirs: int = 0
    done: int = 0
    failed: int = 0
    postponed: int = 0
    skipped: int = 0
    cancelled: int = 0
    overdue: int = 0
    unjudged: int = 0
    tried_again: int = 0
    parked: int = 0
    held: int = 0

    def came(self, mark_or_error: Mark | str | None) -> None:
        """Count a message that is no timer of an SDK that can be read here.

        Args:
            mark_or_error: What sets it apart; or why its envelope is unreadable, None: it has none.
        """
        match mark_or_error:
            case Mark.TOO_NEW:
                self.too_new += 1
            case Mark.STIR:
                self.stirs += 1
            case Mark.NATIVE | None:
                self.foreign += 1
            case str():
                self.envelope_errors += 1
