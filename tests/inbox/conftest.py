"""The servers that this folder's tests share: both start within a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.inbox_crew import Crew, crew
from tests.support.inbox_stages import MemoryStage, RedisStage, SqliteStage, Stage
from tests.support.kept import Kept
from tests.support.postgres_server import postgres_server
from tests.support.redis_server import RedisServer, redis_server


@pytest.fixture
def redis_shared(kept: Kept) -> RedisServer:
    """One that nobody kills."""
    return kept.get("redis", redis_server)


@pytest.fixture
def postgres(kept: Kept) -> str:
    """The address of one that nobody kills."""
    return kept.get("postgres", postgres_server)


@pytest.fixture
def workers(kept: Kept) -> Crew:
    """A process whose children are killed."""
    return kept.get("crew", crew)


@pytest.fixture
def other_workers(kept: Kept) -> Crew:
    """Another one."""
    return kept.get("other crew", crew)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def make_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Stage]:
    """Makes an empty store."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_shared")
        return lambda: RedisStage(server)
    return MemoryStage if request.param == "memory" else lambda: SqliteStage(tmp_path)


@pytest.fixture
def stage(make_stage: Callable[[], Stage]) -> Iterator[Stage]:
    """One empty store."""
    made = make_stage()
    yield made
    made.close()
