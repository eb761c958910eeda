"""The schema versions that are copied: the first that a partition's mover read, over all its sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from timewheel.broker.protocol.entries import Entry
from timewheel.client.native import NO_SCHEMA
from timewheel.shadow.machine.move_decider import MoveDecision

MAX_VERSIONS = 32
"""Each version takes a producer and a fence whenever a session begins, and any number of versions can be registered."""

AHEAD_MS = 1_000
"""Time for which a session that read a new version looks for more of them."""


def version_of(entry: Entry) -> int:
    """Return the schema version of an entry; -1: no schema."""
    return NO_SCHEMA if entry.schema_version is None else int.from_bytes(entry.schema_version, "big")


def meet_versions(
    met: set[int], entries: Iterable[Entry], decision: Callable[[Entry], MoveDecision], can_have: Callable[[int], bool]
) -> bool:
    """Record the versions of entries that are to be moved, up to `MAX_VERSIONS`.

    Args:
        met: The recorded versions; updated here.
        entries: In the order of the topic.
        decision: Called for entries of versions that are not recorded yet.
        can_have: Returns whether a version can be copied.

    Returns:
        True if a new version was recorded.
    """
    before = len(met)
    for entry in entries:
        if len(met) >= MAX_VERSIONS:
            break
        version = version_of(entry)
        if version != NO_SCHEMA and version not in met and _is_to_move(entry, decision) and can_have(version):
            met.add(version)
    return len(met) > before


def _is_to_move(entry: Entry, decision: Callable[[Entry], MoveDecision]) -> bool:
    try:
        return decision(entry) is MoveDecision.MOVE
    except Exception:  # noqa: BLE001 - it concerns that entry only, and is reported in its turn
        return False


def refusal_of(version: int, met: set[int]) -> str:
    """Return why a version is not copied."""
    if version in met or len(met) < MAX_VERSIONS:
        return f"version {version}"
    return f"version {version}: copies are made of the {MAX_VERSIONS} versions that were met first"
