"""The checksum is the one that Pulsar writes."""

from __future__ import annotations

import sys

import pytest

from tests.support.checkout import ROOT
from tests.support.processes import ran
from timewheel.broker.protocol.wire import crc32c


@pytest.mark.parametrize(
    ("data", "checksum"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],  # of RFC 3720
)
def test_the_checksum_is_crc_32c(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum


def test_importing_the_package_costs_nothing() -> None:
    code = (
        "import sys, timewheel.broker.protocol; "
        "assert not {'google_crc32c', 'socket', 'ssl', 'pulsar', '_pulsar'} & set(sys.modules), sys.modules.keys()"
    )
    done = ran([sys.executable, "-c", code], cwd=ROOT)

    assert done.returncode == 0, done.stderr


def test_reading_loads_no_client_of_pulsar() -> None:
    code = "import sys, timewheel.broker.protocol.consumers; assert not {'pulsar', '_pulsar'} & set(sys.modules)"
    done = ran([sys.executable, "-c", code], cwd=ROOT)

    assert done.returncode == 0, done.stderr
