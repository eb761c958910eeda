"""Reports to an orchestrator whether a relay service is alive and ready: two pages, a file, or both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from timewheel.serving import JSON, LIVE_PATH, READY_PATH, Answer, Page

Reported = tuple[bool, Mapping[str, Any]]
"""True if all is well; and the details, for JSON."""


def reported_of(stories: Sequence[Mapping[str, Any]]) -> Reported:
    """Return whether all relays are ready, and ``{"ready": ..., "relays": [...]}``.

    Args:
        stories: The report of each relay, which contains ``ready``.
    """
    ready = all(story["ready"] for story in stories)
    return ready, {"ready": ready, "relays": list(stories)}


def health_pages(live: Callable[[], Reported], ready: Callable[[], Reported]) -> dict[str, Page]:
    """Return the pages for an orchestrator's probes: 200 while all is well, else 503; the body has the details.

    Args:
        live: Called for every request of `LIVE_PATH`.
        ready: Called for every request of `READY_PATH`.
    """
    return {LIVE_PATH: _page(live), READY_PATH: _page(ready)}


def _page(ask: Callable[[], Reported]) -> Page:
    def answer() -> Answer:
        well, story = ask()
        return Answer(200 if well else 503, json.dumps(story).encode(), JSON)

    return answer


class ReadyFile:
    """A file that exists exactly while all relays are ready.

    Args:
        path: Path in an existing folder; a file left by an earlier process is removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.show(ready=False)

    def show(self, *, ready: bool) -> None:
        """Create or remove the file."""
        if ready:
            self._path.touch()
        else:
            self._path.unlink(missing_ok=True)
