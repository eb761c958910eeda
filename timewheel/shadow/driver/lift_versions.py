"""The schema versions of which copies are made: those that a partition's lifter met first, over all its sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from timewheel.binary_protocol.entries import Entry
from timewheel.shadow.machine.lifting import Fate
from timewheel.wire.native import NO_SCHEMA

__all__ = ["AHEAD_MS", "MAX_VERSIONS", "meet_versions", "refusal_of", "version_of"]

MAX_VERSIONS = 32
"""Each takes a producer and a fence whenever a session begins, and any number of versions can be registered."""

AHEAD_MS = 1_000
"""For so long a session that met a new version looks for more of them."""


def version_of(entry: Entry) -> int:
    """The schema version of an entry; -1: none."""
    return NO_SCHEMA if entry.schema_version is None else int.from_bytes(entry.schema_version, "big")


def meet_versions(
    met: set[int], entries: Iterable[Entry], fate: Callable[[Entry], Fate], can_have: Callable[[int], bool]
) -> bool:
    """Note the versions of entries that are to be lifted, up to `MAX_VERSIONS`.

    Args:
        met: They are noted there.
        entries: In the order of the topic.
        fate: Asked for entries of versions that are not noted yet.
        can_have: Whether there can be copies of a version.

    Returns:
        Whether there are any that were not noted before.
    """
    before = len(met)
    for entry in entries:
        if len(met) >= MAX_VERSIONS:
            break
        version = version_of(entry)
        if version != NO_SCHEMA and version not in met and _is_to_lift(entry, fate) and can_have(version):
            met.add(version)
    return len(met) > before


def _is_to_lift(entry: Entry, fate: Callable[[Entry], Fate]) -> bool:
    try:
        return fate(entry) is Fate.LIFT
    except Exception:  # noqa: BLE001 - it is that entry's, and told when it is its turn
        return False


def refusal_of(version: int, met: set[int]) -> str:
    """Why there are no copies of a version."""
    if version in met or len(met) < MAX_VERSIONS:
        return f"version {version}"
    return f"version {version}: copies are made of the {MAX_VERSIONS} versions that were met first"
