"""Errors: one root, the fitting builtin beside it, facts as attributes, and a way across processes."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from timewheel.core import errors
from timewheel.core.durations import DAY_MS
from timewheel.core.errors import TimewheelError
from timewheel.core.extras import ExtraMissing
from timewheel.core.plan import DelayTooLong, Plan

EXAMPLES: list[tuple[TimewheelError, type[Exception]]] = [
    (errors.DurationError("5w", "no such unit"), ValueError),
    (errors.PlanError("tiered.window", "1ms", "at least 1s"), ValueError),
    (errors.EnvelopeError("garbled", "x y z"), ValueError),
    (errors.TopologyError("persistent://a/b/c", "is unpartitioned", "delete it"), TimewheelError),
    (errors.ClientMisuse("closed"), RuntimeError),
    (errors.UnsupportedAcknowledgement("Shared"), TypeError),
    (errors.SendRefused("no"), ValueError),
    (errors.BadDueTime("yesterday", "naive"), ValueError),
    (
        DelayTooLong(DAY_MS + 1, Plan(due_topic="persistent://a/b/c", subscriptions=("s",), max_delay_ms=DAY_MS)),
        ValueError,
    ),
    (errors.PayloadTooLarge(2, 1), ValueError),
    (errors.ReservedProperty("tw-x", "tw-"), ValueError),
    (errors.BadTimerId("", "empty"), ValueError),
    (errors.SendFailed("id", "topic", "refused"), ConnectionError),
    (errors.SendOutcomeUnknown("id", "topic", "timeout"), TimeoutError),
    (errors.AdminError(500, "GET /x", "broken"), TimewheelError),
    (errors.AdminDenied(403, "PUT /x", "not an admin"), PermissionError),
    (errors.AdminMissing(404, "GET /x", "no such topic"), LookupError),
    (errors.AdminUnreachable("GET /x", "refused", sent=False), ConnectionError),
    (errors.BadName("topic", "a b", "has a space"), ValueError),
]


_FILLER: dict[str, object] = {"str": "text", "int": 7, "bool": True, "object": "thing", "int | None": None}


def example_of(kind: type[TimewheelError]) -> TimewheelError:
    """An instance of any error of ours, made by its constructor's signature."""
    if not inspect.isfunction(kind.__init__):  # a builtin's, which takes the message
        return kind("message")
    parameters = [*inspect.signature(kind.__init__).parameters.values()][1:]
    values = {parameter: _FILLER.get(str(parameter.annotation), "text") for parameter in parameters}
    named = {parameter.name: value for parameter, value in values.items() if parameter.kind is parameter.KEYWORD_ONLY}
    placed = [value for parameter, value in values.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    return kind(*placed, **named)


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TimewheelError)]
ALL = [example_of(kind) for kind in KINDS]


@pytest.mark.parametrize(("error", "builtin"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_is_ours_and_the_builtin_that_a_reader_expects(
    error: TimewheelError, builtin: type[Exception]
) -> None:
    assert isinstance(error, TimewheelError)
    assert isinstance(error, builtin)
    assert str(error)


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_an_error_crosses_processes_with_its_facts(error: TimewheelError) -> None:
    error.add_note("seen in a worker")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


class _Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr for you")


@pytest.mark.parametrize("value", [10**5_000, "x" * 100_000, _Hostile()], ids=["huge int", "long text", "bad repr"])
def test_a_strange_value_neither_breaks_nor_floods_the_message(value: object) -> None:
    for error in (
        errors.PlanError("guard", value, "a duration"),
        errors.BadDueTime(value, "out of range"),
        errors.BadTimerId(value, "no text"),
        errors.EnvelopeError("garbled", value),
        errors.DurationError(value, "no text"),
    ):
        assert len(str(error)) < 500


def test_an_extra_that_is_missing_names_java_only_if_java_is_missing_too() -> None:
    assert "Java" not in str(ExtraMissing("the planner", ["pyspark>=4"]))
    assert "Java 17" in str(ExtraMissing("the planner", ["pyspark>=4"], java=True))
