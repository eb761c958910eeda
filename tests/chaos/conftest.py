"""What all chaos tests share: brokers of their own, and a stage."""

from __future__ import annotations

import re
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.support.chaos_audit import AUDIT
from tests.support.chaos_stage import BUSINESS, QUICK_TAKEOVER, Stage
from tests.support.kept import Kept
from tests.support.own_broker import own_broker
from timewheel.core.plan import Plan, Scheme

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from timewheel.testing import LocalPulsar


class MakeStage(Protocol):
    """What the fixture `stage` gives."""

    def __call__(self, broker: LocalPulsar, scheme: Scheme, **plan: Any) -> Stage:
        """Provision a plan and return its stage, entered."""
        ...


@pytest.fixture
def chaos_broker(kept: Kept) -> LocalPulsar:
    """A broker that lives through all tests but those that kill it."""
    return kept.get("chaos", lambda: own_broker(QUICK_TAKEOVER))


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, tmp_path: Path, seed: int, say: Callable[[object], None]
) -> Iterator[MakeStage]:
    """A factory of stages; each has a due topic of its own."""
    with ExitStack() as stack:

        def make(broker: LocalPulsar, scheme: Scheme, **plan: Any) -> Stage:
            name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40]
            suffix = uuid.uuid4().hex[:6]
            folder = tmp_path / suffix
            folder.mkdir()
            whole = Plan(
                due_topic=f"persistent://public/default/{name}-{suffix}",
                subscriptions=(BUSINESS, AUDIT),
                scheme=scheme,
                relay="service",
                **{"max_delay_ms": 60_000, **plan},
            )
            return stack.enter_context(Stage(broker, whole, folder, seed, say))

        yield make
