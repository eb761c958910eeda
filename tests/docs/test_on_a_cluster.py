"""The page about clusters, done as a newcomer does it: the owner of a partition is killed, and the service goes on."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.pages import blocks, typed
from tests.support.reader import Reader
from timewheel.testing import eventually

PAGE = (ROOT / "docs" / "how-to" / "on-a-cluster.md").read_text(encoding="utf-8")
START_S, SERVED_AGAIN_S = 180, 150
BEFORE, AFTER = 10, 10  # timers handled before the kill, and sent after it


@pytest.mark.short
@pytest.mark.timeout(500)
def test_the_service_goes_on_when_the_owner_of_a_partition_is_killed(tmp_path: Path) -> None:
    start, kill = typed(PAGE)
    service, killer = blocks(PAGE, "python")
    reader = Reader(tmp_path, Path(sys.executable).parent)
    for file in (service, killer):
        reader.write(file)
    cluster = tmp_path / "cluster.json"
    with reader.started(start):
        eventually(lambda: cluster.exists() and cluster.read_text().endswith("\n"), START_S)
        with reader.started(f"python {service.named}") as (process, output):

            def came(last: int) -> bool:
                if process.poll() is not None:
                    pytest.fail(output.read_text())
                return set(range(last + 1)) <= handled(output)

            eventually(lambda: came(BEFORE), START_S)
            with reader.started(kill) as (killing, killed):
                assert killing.wait(START_S) == 0, killed.read_text()
            assert re.fullmatch(r"broker-\d killed\n", killed.read_text())
            last = max(handled(output)) + AFTER
            eventually(lambda: came(last), SERVED_AGAIN_S)
            assert re.search(r"late by \d+:\d+:(?!00)", output.read_text()), "the killed broker served nothing of it"


def handled(output: Path) -> set[int]:
    """Return the numbers of the timers that the service has printed."""
    return {int(number) for number in re.findall(r"^timer-(\d+) late by", output.read_text(), re.MULTILINE)}
