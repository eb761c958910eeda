"""The site of `make docs`, as a hook of mkdocs: pages in the repository's own places, so that their links hold.

Files that pages link to are on the site too. GitHub's Markdown becomes Python-Markdown's: lists are indented by four
spaces and have an empty line before them. Links to folders, of which a site has no page, become their text.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tests.support.checkout import ROOT, files, package_folders
from tests.support.public_api import DOORS

INDEX = "docs/README.md"
_LINK = re.compile(r"\[([^][]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_ITEM = re.compile(r"( *)([-*]|\d+\.) +")
_FENCE = re.compile(r" *(```+|~~~+)")


def pages() -> list[str]:
    """Return the pages by their paths from the root."""
    return sorted(str(path) for path in files() if path.suffix == ".md")


def _target(page: str, link: str) -> str:
    """Return a link's file by its path from the root."""
    return str((ROOT / page).parent.joinpath(link).resolve().relative_to(ROOT))


def _linked(page: str) -> list[str]:
    """Return the files of the repository that a page links to, in its order."""
    links = (match[2] for match in _LINK.finditer((ROOT / page).read_text(encoding="utf-8")))
    return list(dict.fromkeys(_target(page, link) for link in links if "://" not in link))


def _api() -> dict[str, str]:
    """Return a page for each package that has public names: mkdocstrings fills it."""
    found: dict[str, str] = {}
    for package in sorted((*package_folders(), *DOORS)):
        folder = package_folders().get(package)
        source = ROOT / (folder / "__init__.py" if folder else package.replace(".", "/") + ".py")
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = sorted(ast.literal_eval(node.value))
                text = f"# {package}\n\n::: {package}\n    options:\n        members: {names}\n"
                found |= {f"api/{package}.md": text} if names else {}
    return found


def on_config(config: Any) -> Any:
    """Make the navigation: the rows of the index, then all other pages, then the public names."""
    rows = re.findall(r"^\| \*\*(.+?)\*\*.*? \| (.*) \|$", (ROOT / INDEX).read_text(encoding="utf-8"), re.MULTILINE)
    sections = {name.capitalize(): [_target(INDEX, match[2]) for match in _LINK.finditer(cell)] for name, cell in rows}
    named = {"README.md", INDEX, *(page for section in sections.values() for page in section)}
    rest = [page for page in pages() if page not in named]
    for section in sections.values():  # a folder's index stands for the folder
        section += [page for page in rest if f"{Path(page).parent}/README.md" in section]
    config.nav = [
        "README.md",
        INDEX,
        *({name: section} for name, section in sections.items()),
        {"Change timewheel": [page for page in rest if not any(page in section for section in sections.values())]},
        {"Public names": [{page[4:-3]: page} for page in _api()]},
    ]
    return config


def on_files(found: Files, *, config: Any) -> Files:
    """Replace the files of one folder by all pages of the repository and the files that they link to."""
    for file in [file for file in found if file.src_dir == config.docs_dir]:
        found.remove(file)
    linked = {path for page in pages() for path in _linked(page) if (ROOT / path).is_file()}
    for path in sorted({*pages(), *linked}):
        found.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for path, text in _api().items():
        found.append(File.generated(config, path, content=text))
    return found


def on_page_markdown(text: str, *, page: Any, **_: Any) -> str:
    """Adapt a page to Python-Markdown."""
    path = page.file.src_uri
    return text if path.startswith("api/") else adapted(text, path)


def adapted(text: str, path: str) -> str:
    """Return a page for Python-Markdown."""
    lines: list[str] = []
    open_items: list[tuple[int, int, int]] = []  # columns of marker and text; the line
    fence = ""
    for line in text.splitlines():
        column = len(line) - len(line.lstrip())
        mark, item = _FENCE.match(line), None if fence else _ITEM.match(line)
        is_joined = False  # to an item before it, of one paragraph
        is_behind = item or mark or (lines and not lines[-1].strip())  # else it continues a paragraph
        while not fence and line.strip() and is_behind and open_items and column < open_items[-1][1]:
            start, _, number = open_items.pop()
            is_joined = start == column and "" not in lines[number:]
        if item and not is_joined and lines and lines[-1].strip():
            lines.append("")
        if line.strip():
            text_column = open_items[-1][1] if open_items else 0
            adapted_line = " " * 4 * len(open_items) + line[min(column, text_column) :]
        else:
            adapted_line = ""
        if item:
            open_items.append((column, item.end(), len(lines)))
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            adapted_line = _LINK.sub(lambda match: match[1] if _is_folder(path, match[2]) else match[0], adapted_line)
        lines.append(adapted_line)
    return "\n".join(lines) + "\n"


def _is_folder(page: str, link: str) -> bool:
    return "://" not in link and (ROOT / page).parent.joinpath(link).is_dir()
