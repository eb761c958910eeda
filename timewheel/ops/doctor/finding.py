"""What the doctor says: kinds of findings, which are known beforehand, and findings, which are seen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from timewheel.ops.provision_steps import Step

__all__ = ["Finding", "Kind", "Severity"]


class Severity(IntEnum):
    """How bad it is, the worst last."""

    INFO = 0
    """True and worth knowing; nothing must be done."""
    WARNING = 1
    """Timers are late or doubled, or are lost once something else fails too."""
    ERROR = 2
    """Timers are lost, refused or early, or stay where they are, as soon as they come."""

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One thing that can be wrong; the table of docs/how-to/check-a-setup.md is drawn from these.

    Args:
        slug: Its name, which stays the same.
        severity: Of every finding of this kind.
        why: Why it matters: one sentence.
        do: What to do about it; each finding has the command.
    """

    slug: str
    severity: Severity
    why: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that was seen.

    Args:
        kind: What it is.
        subject: The topic, namespace or broker that has it.
        read: What was read, and where.
        cure: The command, or the line of a file, that cures it.
        fix: What `--fix` does about it; None: it leaves that to somebody who knows more.
    """

    kind: Kind
    subject: str
    read: str
    cure: str
    fix: Step | None = None

    @property
    def slug(self) -> str:
        return self.kind.slug

    @property
    def severity(self) -> Severity:
        return self.kind.severity

    @property
    def why(self) -> str:
        return self.kind.why
