"""The players' processes, seen from the parent: started, directed, listened to, and never left running."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Self

from timewheel.core.errors import TimewheelError
from timewheel.demo.player import play
from timewheel.demo.settings import SchemeName, Settings
from timewheel.testing.evidence.messages import Connect, Done, Failed, Finish, Progress, Publish, Ready
from timewheel.testing.process import exit_words

JOIN_TIMEOUT_S = 5.0


class PlayerFailed(TimewheelError, RuntimeError):
    """A scheme's process ended before it was done; the message holds its traceback."""

    def __init__(self, scheme: str, text: str) -> None:
        self.scheme = scheme
        super().__init__(f"the player of {scheme} failed:\n{text}")


class _Player:
    def __init__(self, settings: Settings, scheme: SchemeName) -> None:
        context = multiprocessing.get_context("spawn")  # a fork after a Pulsar client exists can deadlock
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=play, args=(theirs, settings, scheme), name=f"demo-{scheme}", daemon=True)
        self.process.start()
        theirs.close()
        self.scheme = scheme
        self.ready = False
        self.start_ms: int | None = None
        self.progress = Progress(attempted=0, confirmed=0, handled=0, last_due_ms=0)
        self.finishing = False
        self.done: Done | None = None


class Players:
    """All players of a run.

    Args:
        settings: Settings of the run.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._players: dict[SchemeName, _Player] = {}

    def start(self, schemes: Sequence[SchemeName]) -> None:
        """Start processes; they wait for `connect`."""
        for scheme in schemes:
            if scheme not in self._players:
                self._players[scheme] = _Player(self._settings, scheme)

    def connect(self, scheme: SchemeName, service_url: str, admin_url: str) -> None:
        """Make a scheme's player connect; its topics must exist."""
        self._players[scheme].connection.send(Connect(service_url=service_url, admin_url=admin_url))

    def is_ready(self, scheme: SchemeName) -> bool:
        """Return whether a scheme's player is connected."""
        return self._players[scheme].ready

    def publish(self, scheme: SchemeName, start_ms: int) -> None:
        """Make a scheme's player publish from ``start_ms`` on."""
        player = self._players[scheme]
        player.start_ms = start_ms
        player.connection.send(Publish(start_ms=start_ms))

    def finish(self, scheme: SchemeName) -> None:
        """Ask a player for its results, once."""
        player = self._players[scheme]
        if not player.finishing:
            player.finishing = True
            player.connection.send(Finish())

    def listen(self, timeout_s: float) -> None:
        """Process the players' reports, waiting at most ``timeout_s`` for the first report.

        Raises:
            PlayerFailed: A player failed or ended.
        """
        waiting: dict[Connection, _Player] = {
            player.connection: player for player in self._players.values() if player.done is None
        }
        for ready in wait(list(waiting), timeout_s):
            assert isinstance(ready, Connection)
            self._take(waiting[ready])

    def progress(self, scheme: SchemeName) -> Progress:
        """Return the last progress that a player reported."""
        return self._players[scheme].progress

    def start_ms(self, scheme: SchemeName) -> int | None:
        """Return the start time that a player was given; None: not yet."""
        player = self._players.get(scheme)
        return player.start_ms if player is not None else None

    def results(self) -> dict[SchemeName, Done]:
        """Return the results of the players that are done."""
        return {scheme: player.done for scheme, player in self._players.items() if player.done is not None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for player in self._players.values():
            player.connection.close()  # players that still run see the end of the pipe and end
        for player in self._players.values():
            player.process.join(JOIN_TIMEOUT_S if player.done is not None else 0)
            if player.process.is_alive():
                player.process.kill()
                player.process.join()
            player.process.close()

    def _take(self, player: _Player) -> None:
        try:
            report = player.connection.recv()
        except EOFError:
            player.process.join(JOIN_TIMEOUT_S)
            raise PlayerFailed(player.scheme, f"its process {exit_words(player.process.exitcode)}") from None
        match report:
            case Ready():
                player.ready = True
            case Progress():
                player.progress = report
            case Done():
                player.done = report
            case Failed(text=text):
                raise PlayerFailed(player.scheme, text)
