"""Findings about a setup: what provisioning and the doctor warn of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timewheel.provision.provision_steps import Step


class Severity(IntEnum):
    """Severity of a finding, the worst last."""

    INFO = 0
    """Worth knowing; no action is needed."""
    WARNING = 1
    """Timers are late or duplicated, or are lost if something else fails too."""
    ERROR = 2
    """Timers are lost, refused, early or stuck, as soon as they are sent."""

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of finding; the list in docs/how-to/check-a-setup.md is generated from the kinds.

    Args:
        slug: Stable name.
        severity: Severity of every finding of this kind.
        why: Consequence, in a sentence.
        do: Remedy in general; each finding has the exact command.
    """

    slug: str
    severity: Severity
    why: str
    do: str

    def at(self, subject: str, *, read: str, cure: str, fix: Step | None = None) -> Finding:
        """Return a finding of this kind; for the arguments see `Finding`."""
        return Finding(kind=self, subject=subject, read=read, cure=cure, fix=fix)


error_kind = partial(Kind, severity=Severity.ERROR)
warning_kind = partial(Kind, severity=Severity.WARNING)
note_kind = partial(Kind, severity=Severity.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding in a setup.

    Args:
        kind: Kind of the finding.
        subject: The topic, namespace or broker concerned.
        read: The value that was read, and its place.
        cure: The command, or the line of a file, that repairs it.
        fix: The step that `--fix` takes; None if the repair needs a decision by an operator.
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

    def __str__(self) -> str:
        return f"{self.severity.word}: {self.subject}: {self.read}. {self.why} Cure: {self.cure}"

    def facts(self) -> dict[str, str | None]:
        """Return the finding as plain values, for JSON."""
        return {
            "slug": self.slug,
            "severity": self.severity.word,
            "subject": self.subject,
            "read": self.read,
            "why": self.why,
            "cure": self.cure,
            "fix": None if self.fix is None else str(self.fix),
        }
