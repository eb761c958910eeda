"""A token that expires under a relay, and a file that is away when the client asks for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import Stage, plan_of
from tests.support.secured import Secured
from tests.support.tokens import token_for
from timewheel.testing import eventually

LIFE_S = 20
"""Long enough for the process to start with it, on a busy machine too."""


@pytest.mark.short
@pytest.mark.timeout(240)
def test_a_relay_tells_that_its_token_has_expired_and_goes_on_with_the_next(secured: Secured, tmp_path: Path) -> None:
    """The broker says nothing, and an exception where the client asks for the token would end the process."""
    token_file = tmp_path / "token"
    expires_s = int(time.time()) + LIFE_S
    token_file.write_text(token_for("admin", expires_s=expires_s))
    with (
        Stage(secured.broker, plan_of()) as stage,
        RelayProcess(secured.broker, stage.plan, tmp_path, more=["--token-file", str(token_file)]) as relay,
    ):
        relay.await_ready()
        token_file.unlink()
        eventually(lambda: relay.told("connection_lost"), LIFE_S + 40, message=relay.log.read_text())
        assert relay.told("token_unreadable")
        (expired,) = relay.told("token_expired")
        assert (expired["source"], expired["expired_at_ms"]) == (str(token_file), expires_s * 1000)
        assert relay.status()["ready"] is False
        assert relay.process.poll() is None

        stage.hold([2_100])
        assert stage.copies() == {}, "nobody is there to move it"
        token_file.write_text(token_for("admin"))
        relay.await_ready()
        stage.await_due(1)
        assert relay.told("connection_back")
        assert relay.terminate() == 0, relay.log.read_text()
