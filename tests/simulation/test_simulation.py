"""A seed has one history; the simulation keeps its promises, and finds every protocol that is known to be wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import CAUGHT
from tests.simulation.mutations import MUTATIONS
from tests.simulation.scenario import SCHEMES, Scenario

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("seed", [3, 9])
def test_a_seed_has_the_same_history_byte_for_byte_in_every_process(seed: int) -> None:
    first, second = simulate(str(seed)), simulate(str(seed))
    assert first.stdout == second.stdout
    assert "is sent, due at" in first.stdout
    assert first.stdout.splitlines()[-1].startswith("history ")


def test_a_seed_has_no_other_history_after_others() -> None:
    """Nothing of a play is left in the process for the next."""
    alone = simulate("12").stdout.splitlines()[-1]
    code = (
        "from tests.simulation.play import played\n"
        "for seed in (10, 11): played(seed)\n"
        "print('history', played(12)[1].print)"
    )
    after = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert after.stdout.splitlines()[-1] == alone


def test_seeds_keep_their_promises() -> None:
    """`make simulate` plays more of them, and CI 300."""
    played = simulate("--seeds", "5", "--table")
    assert played.returncode == 0, played.stdout + played.stderr
    assert "0 failed" in played.stdout


def test_seeds_draw_all_schemes_and_faults() -> None:
    scenarios = [Scenario.drawn(seed) for seed in range(300)]
    assert {one.scheme for one in scenarios} == {*SCHEMES}
    assert len({(fault.kind, fault.step) for one in scenarios for fault in one.faults}) > 40


def test_a_wrong_protocol_is_found_by_the_seed_that_is_kept() -> None:
    """All of them: `make simulate ARGS="--mutations --kept"`, as CI does."""
    name = "a hop is acknowledged before it is stored"
    found = simulate("--mutations", name, "--kept")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 of 1 mutations found" in found.stdout


def test_seeds_are_kept_of_known_mutations() -> None:
    assert json.loads(CAUGHT.read_text(encoding="utf-8")).keys() <= MUTATIONS.keys()


def test_without_a_fixed_hash_seed_nothing_is_played() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "1"], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "PYTHONHASHSEED=0" in ran.stderr
