from __future__ import annotations

import pulsar
import pytest
from pulsar import exceptions

from timewheel.client.results import (
    SEEN_BEFORE,
    Outcome,
    cause_of,
    is_producer_closed,
    outcome_of_error,
    outcome_of_result,
)

R = pulsar.Result


PLACE = pulsar.MessageId(-1, 7, 0, -1)
NOWHERE = pulsar.MessageId(-1, -1, -1, -1)


def test_ok_is_stored_only_where_it_has_a_place() -> None:
    assert outcome_of_result(R.Ok, PLACE) is Outcome.OK
    assert outcome_of_result(R.Ok, NOWHERE) is Outcome.DROPPED
    assert cause_of(R.Ok) == SEEN_BEFORE
    assert outcome_of_result(R.Timeout, NOWHERE) is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        # The client had it in flight, so it may have been written before the connection broke.
        (R.Timeout, Outcome.UNKNOWN),
        (R.AlreadyClosed, Outcome.UNKNOWN),
        (R.NotConnected, Outcome.UNKNOWN),
        (R.UnknownError, Outcome.UNKNOWN),
        (R.ProducerBlockedQuotaExceededException, Outcome.UNKNOWN),
        # What the client itself refuses was not written.
        (R.ProducerQueueIsFull, Outcome.REFUSED),
        (R.MemoryBufferIsFull, Outcome.REFUSED),
        (R.InvalidMessage, Outcome.REFUSED),
        (R.MessageTooBig, Outcome.TOO_LARGE),
        (R.TopicTerminated, Outcome.ROUTE_AGAIN),
        (R.ProducerFenced, Outcome.BUSY),
    ],
)
def test_results_of_what_was_handed_over(result: pulsar.Result, outcome: Outcome) -> None:
    assert outcome_of_result(result, PLACE) is outcome


def test_a_refusal_on_the_spot_is_definite() -> None:
    assert outcome_of_result(R.AlreadyClosed, PLACE, handed_over=False) is Outcome.REOPEN
    assert outcome_of_result(R.Timeout, PLACE, handed_over=False) is Outcome.REFUSED


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (exceptions.Timeout(), Outcome.REFUSED),
        (exceptions.AlreadyClosed(), Outcome.REFUSED),
        (exceptions.IncompatibleSchema(), Outcome.REFUSED),
        (exceptions.AuthorizationError(), Outcome.REFUSED),
        (exceptions.ProducerBusy(), Outcome.BUSY),
        (exceptions.TopicTerminated(), Outcome.ROUTE_AGAIN),
        (exceptions.TopicNotFound(), Outcome.ROUTE_AGAIN),
    ],
)
def test_what_could_not_be_opened_sent_nothing(error: Exception, outcome: Outcome) -> None:
    assert outcome_of_error(error) is outcome


def test_no_result_of_the_client_is_left_unread() -> None:
    every = [result for result in vars(R).values() if isinstance(result, R)]
    assert len(every) > 40
    for result in every:
        assert isinstance(outcome_of_result(result, PLACE), Outcome)
        # Whatever is not known for certain not to be stored is never called refused.
        if outcome_of_result(result, PLACE) is Outcome.UNKNOWN:
            assert outcome_of_result(result, PLACE, handed_over=False) in {Outcome.REFUSED, Outcome.REOPEN}


def test_producers_that_will_never_send_again() -> None:
    assert is_producer_closed(R.TopicTerminated)
    assert is_producer_closed(R.AlreadyClosed)
    assert not is_producer_closed(R.Timeout)
