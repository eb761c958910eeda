"""A broker that registers its bookie again and again tells so in its log, and is not taken for healthy."""

from __future__ import annotations

from pathlib import Path

from timewheel.testing.local_pulsar import _rounds

LOST = "2026-11-22T05:37:26,341 INFO [metadata] ResourceLockImpl - Lock on resource {} was invalidated. state {}\n"


def test_rounds_are_counted_from_where_the_last_start_began(tmp_path: Path) -> None:
    log = tmp_path / "pulsar.log"
    lost = LOST.format("/ledgers/available/127.0.0.1:29667", "Valid")
    log.write_text(lost * 7)
    begins = log.stat().st_size
    with log.open("a") as file:
        file.write(lost * 3)
        file.write(LOST.format("/namespace/public/default/0x40000000_0x80000000", "Released"))
        file.write(LOST.format("/ledgers/available/127.0.0.1:29667", "Released"))  # as it ends

    assert _rounds(log, begins) == 3
    assert _rounds(log, 0) == 10
