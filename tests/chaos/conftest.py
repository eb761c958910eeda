"""What all chaos tests share: brokers of their own, seeds that are said, and a stage."""

from __future__ import annotations

import os
import re
import uuid
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.support.chaos_audit import AUDIT
from tests.support.chaos_stage import BUSINESS, QUICK_TAKEOVER, Stage
from tests.support.own_broker import own_broker
from timewheel.core.plan import Plan, Scheme
from timewheel.testing.settings import version_asked_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from timewheel.testing import LocalPulsar

SEED_VARIABLE = "TIMEWHEEL_CHAOS_SEED"
"""Another seed than the test's own; or "random"."""


class MakeStage(Protocol):
    """What the fixture `stage` gives."""

    def __call__(self, broker: LocalPulsar, scheme: Scheme, **plan: Any) -> Stage:
        """Provision a plan and return its stage, entered."""
        ...


@pytest.fixture(scope="session")
def chaos_broker() -> Iterator[LocalPulsar]:
    """A broker that lives through all tests but those that kill it."""
    with own_broker(QUICK_TAKEOVER) as broker:
        yield broker


@pytest.fixture
def seed(request: pytest.FixtureRequest, say: Callable[[object], None]) -> int:
    """The test's seed, said together with the command that replays it."""
    given = os.environ.get(SEED_VARIABLE)
    name = request.node.nodeid
    if given == "random":
        chosen = int.from_bytes(os.urandom(4), "big")
    else:
        chosen = int(given) if given else zlib.crc32(name.encode())
    say("")
    say(
        f"seed {chosen}; replay: {SEED_VARIABLE}={chosen} TIMEWHEEL_PULSAR_VERSION={version_asked_for()} "
        f".venv/bin/python -m pytest '{name}'"
    )
    return chosen


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> Iterator[MakeStage]:
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
            return stack.enter_context(Stage(broker, whole, folder, seed))

        yield make
