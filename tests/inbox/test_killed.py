"""A handler's process is killed with -9 at every step, comes again, and its effects are counted."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Evidence
from tests.support.inbox_crew import Crew, Play, Verdict, verdict
from tests.support.inbox_stages import shift_time
from tests.support.inbox_worker import EFFECTS_TABLE, LEASE_MS
from tests.support.redis_server import RedisServer
from timewheel.consumers.inbox import SqlInbox

MESSAGE = "sub-42"
AHEAD = 2  # how many points a process may be ahead of the test that is about to kill it
_numbers = count()


@dataclass
class Scene:
    """One store, or none, and where effects go; every play is a new process."""

    kind: str  # as a worker knows it
    address: str  # likewise
    effects_file: Path  # where effects go that are in no database
    read_table: Callable[[], list[str]] | None = None  # reads those that are
    pass_in_store: Callable[[int], None] | None = None  # lets time pass for a store that has a clock of its own
    now_ms: int = 1_000_000
    owners: Iterator[int] = field(default_factory=count)

    def play(self, *keys: str) -> Play:
        """Of a new process."""
        owner = f"process-{next(self.owners)}"
        return Play(self.kind, self.address, keys, self.effects_file, owner, now_ms=self.now_ms)

    def pass_ms(self, duration_ms: int) -> None:
        """Let so much time pass."""
        self.now_ms += duration_ms
        if self.pass_in_store is not None:
            self.pass_in_store(duration_ms)

    def effects(self) -> list[str]:
        """Keys, as often as their effects happened."""
        if self.read_table is not None:
            return self.read_table()
        return self.effects_file.read_text().split() if self.effects_file.exists() else []


@pytest.fixture
def scene_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Scene]:
    """Makes an empty scene of a kind."""

    def make(kind: str) -> Scene:
        number = next(_numbers)
        file, effects = str(tmp_path / f"{number}.sqlite3"), tmp_path / f"{number}.effects"
        if kind == "redis":
            server: RedisServer = request.getfixturevalue("redis_shared")
            prefix = f"killed-{number}:"
            scene = Scene(kind, f"{server.url} {prefix}", effects)
            scene.pass_in_store = lambda duration_ms: shift_time(server, prefix, duration_ms)
            return scene
        if kind == "sql-postgres":
            return _postgres_scene(request.getfixturevalue("postgres"), effects)
        if kind in {"sql-sqlite", "sql-apart"}:
            with closing(sqlite3.connect(file)) as connection:
                SqlInbox("persistent://a/b/c", "billing").create(connection)
                connection.execute(EFFECTS_TABLE)
                connection.commit()
            return Scene(kind, file, effects, lambda: _sqlite_effects(file))
        return Scene(kind, file, effects)

    return make


def _sqlite_effects(file: str) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return [key for (key,) in connection.execute("SELECT key FROM effects")]


def _postgres_scene(address: str, effects: Path) -> Scene:
    with psycopg.connect(address) as connection:
        SqlInbox("persistent://a/b/c", "billing").create(connection)
        connection.execute(EFFECTS_TABLE)
        connection.execute("TRUNCATE effects, timewheel_inbox")

    def read() -> list[str]:
        with psycopg.connect(address) as reading:
            return [key for (key,) in reading.execute("SELECT key FROM effects").fetchall()]

    return Scene("sql-postgres", address, effects, read)


# What a kill at each point leads to: how often the effect happens in the end, after the message came again twice.
CLAIMS = {"begun": 1, "claim mine": 1, "effect": 2, "done": 1}
TOGETHER = {"begun": 1, "once": 1, "effect": 1, "committed": 1}
WITHOUT = {"begun": 2, "effect": 3}
APART = {"begun": 1, "once": 0, "effect": 0, "committed": 1}
STEPS = [
    *(("sqlite", point, times) for point, times in CLAIMS.items()),
    *(("redis", point, times) for point, times in CLAIMS.items()),
    *(("sql-sqlite", point, times) for point, times in TOGETHER.items()),
    *(("sql-postgres", point, times) for point, times in TOGETHER.items()),
    # Controls: what has to be found where nothing, or the wrong thing, is done about it.
    *(("none", point, times) for point, times in WITHOUT.items()),
    *(("sql-apart", point, times) for point, times in APART.items()),
]


@pytest.mark.parametrize(("kind", "point", "times"), STEPS)
def test_a_kill_at_each_step(
    scene_of: Callable[[str], Scene], workers: Crew, kind: str, point: str, times: int
) -> None:
    scene = scene_of(kind)
    workers.begin(scene.play(MESSAGE))
    workers.until(point)
    assert workers.kill() == []

    for _ in range(2):  # the second time, because an acknowledgement may be lost, too
        scene.pass_ms(LEASE_MS)
        workers.begin(scene.play(MESSAGE))
        assert workers.finish()[-1] == ("acknowledged", MESSAGE)

    assert scene.effects() == [MESSAGE] * times
    assert verdict(scene.effects(), [MESSAGE]) == Verdict(frozenset([] if times else [MESSAGE]), max(times - 1, 0))


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize("point", ["claim mine", "effect"])
def test_until_its_lease_ends_nobody_takes_what_a_killed_one_had(
    scene_of: Callable[[str], Scene], workers: Crew, kind: str, point: str
) -> None:
    scene = scene_of(kind)
    workers.begin(scene.play(MESSAGE))
    workers.until(point)
    workers.kill()
    scene.pass_ms(LEASE_MS // 2)
    workers.begin(scene.play(MESSAGE))

    assert [at for at, _ in workers.finish()] == ["begun", "claim taken"]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_one_that_slept_through_its_lease_is_told(
    scene_of: Callable[[str], Scene], workers: Crew, other_workers: Crew, kind: str
) -> None:
    scene = scene_of(kind)
    workers.begin(scene.play(MESSAGE))
    workers.until("claim mine")
    scene.pass_ms(LEASE_MS)
    other_workers.begin(scene.play(MESSAGE))
    assert [at for at, _ in other_workers.finish()] == ["begun", "claim mine", "effect", "done", "acknowledged"]

    workers.go()
    assert [at for at, _ in workers.finish()] == ["effect", "fenced", "acknowledged"]


@pytest.mark.parametrize("kind", ["sql-sqlite", "sql-postgres", "sqlite", "redis"])
@pytest.mark.parametrize(("messages", "kills"), [(40, 6), pytest.param(3_000, 300, marks=pytest.mark.proof, id="long")])
def test_kills_at_any_moment(
    scene_of: Callable[[str], Scene], workers: Crew, seed: int, evidence: Evidence, kind: str, messages: int, kills: int
) -> None:
    """Wherever the process happens to be: in the middle of a commit, too."""
    scene, rng = scene_of(kind), random.Random(seed)
    keys = [f"timer-{number}" for number in range(messages)]
    waiting = list(keys)
    for _ in range(kills):
        scene.pass_ms(LEASE_MS)
        workers.begin(scene.play(*waiting))
        # Each message has two points at least, so that it cannot come to its end.
        points = rng.randrange(min(4 * messages // kills, 2 * len(waiting) - AHEAD))
        workers.go(points + AHEAD)
        said = workers.read(points)
        said += workers.kill()  # while it does what comes next, or waits a little further on
        waiting = _left(waiting, said)
    scene.pass_ms(LEASE_MS)
    workers.begin(scene.play(*waiting))
    assert _left(waiting, workers.finish()) == []

    judged = verdict(scene.effects(), keys)
    assert judged.lost == frozenset()
    # A store beside the effect cannot know of it: each kill may repeat one.
    assert judged.extra <= (0 if kind.startswith("sql-") else kills)
    evidence(
        f"inbox killed, {kind}",
        {"messages": messages, "kills": kills, "lost": len(judged.lost), "effects twice": judged.extra},
        seed=seed,
        on_broker=False,
    )


def _left(waiting: list[str], said: list[tuple[str, str]]) -> list[str]:
    """What was not acknowledged, and so comes again."""
    acknowledged = {key for at, key in said if at == "acknowledged"}
    return [key for key in waiting if key not in acknowledged]


def test_the_checker_finds_what_is_lost_and_what_is_repeated() -> None:
    assert verdict(["a", "b"], ["a", "b"]) == Verdict(frozenset(), 0)
    assert verdict(["a", "a", "a"], ["a", "b"]) == Verdict(frozenset({"b"}), 2)
