"""What all chaos tests share: brokers of their own, and a stage."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.conftest import Evidence
from tests.support.chaos_audit import AUDIT
from tests.support.chaos_stage import BUSINESS, QUICK_TAKEOVER, Stage
from tests.support.kept import Kept
from tests.support.own_broker import own_broker
from tests.support.shadow_play import ShadowPlay
from timewheel.core.plan import Plan, Scheme
from timewheel.testing import Broker, LocalPulsar


class MakeStage(Protocol):
    """What the fixture `stage` gives."""

    def __call__(self, scheme: Scheme, *, broker: Broker | None = None, **plan: Any) -> Stage:
        """Provision a plan and return its stage, entered; on the broker of all chaos tests if none is given."""
        ...


class MakePlay(Protocol):
    """What the fixture `shadow_play` gives."""

    def __call__(self, plan: Plan, *, broker: Broker | None = None, **options: Any) -> ShadowPlay:
        """Provision a plan and return its play, entered; on the broker of all chaos tests if none is given."""
        ...


@pytest.fixture
def chaos_broker(kept: Kept) -> LocalPulsar:
    """A broker that lives through all tests but those that kill it."""
    return kept.get("chaos", lambda: own_broker(QUICK_TAKEOVER))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def stage(
    request: pytest.FixtureRequest,
    stack: ExitStack,
    tmp_path: Path,
    seed: int,
    say: Callable[[object], None],
    evidence: Evidence,
) -> MakeStage:
    """A factory of stages; each has a due topic of its own."""

    def make(scheme: Scheme, *, broker: Broker | None = None, **plan: Any) -> Stage:
        name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40]
        suffix = uuid.uuid4().hex[:6]
        given = {"subscriptions": (BUSINESS, AUDIT), "relay": "service", "max_delay_ms": 60_000, **plan}
        whole = Plan(due_topic=f"persistent://public/default/{name}-{suffix}", scheme=scheme, **given)
        on = broker or request.getfixturevalue("chaos_broker")
        return stack.enter_context(Stage(on, whole, tmp_path / suffix, seed, say, evidence))

    return make


@pytest.fixture
def shadow_play(
    request: pytest.FixtureRequest,
    stack: ExitStack,
    tmp_path: Path,
    seed: int,
    say: Callable[[object], None],
    evidence: Evidence,
) -> MakePlay:
    """A factory of shadow plays, each in a folder of its own."""

    def make(plan: Plan, *, broker: Broker | None = None, **options: Any) -> ShadowPlay:
        on, folder = broker or request.getfixturevalue("chaos_broker"), tmp_path / uuid.uuid4().hex[:6]
        return stack.enter_context(ShadowPlay(on, plan, folder, seed, say, evidence, **options))

    return make
