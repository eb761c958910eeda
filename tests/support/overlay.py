"""The overlay on the page about deploying: the user's own plan and image on top of a folder of deploy/kubernetes."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkout import ROOT
from tests.support.pages import blocks, typed

KUBERNETES = ROOT / "deploy" / "kubernetes"
_PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
_SECTION = _PAGE.partition("\n### A plan of your own\n")[2].partition("\n## ")[0]
_EXAMPLES = {"base": "reminders", "with-monitoring": "reminders", "shadow": "orders", "calendar": "audits"}


def text() -> str:
    """Return its kustomization."""
    (block,) = blocks(_SECTION, "yaml")
    return block.content


def lines() -> list[str]:
    """Return the commands of this section."""
    return typed(_SECTION)


def example(own: str, name: str) -> str:
    """Return a user's plan, made from the plan of a folder."""
    other = _EXAMPLES.get(name, "renewals")
    folder = "base" if name == "with-monitoring" else name
    return (KUBERNETES / folder / "plans" / f"{other}.toml").read_text(encoding="utf-8").replace(other, own)


def write(folder: Path, kustomization: str, plan: str) -> Path:
    """Write the folder, beside a clone, as on the page."""
    folder.mkdir(parents=True)
    clone = folder.parent / "timewheel"
    if not clone.exists():
        clone.symlink_to(ROOT)
    (folder / "kustomization.yaml").write_text(kustomization, encoding="utf-8")
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    return folder
