"""README's first screen, done as a newcomer does it: the built wheel, a clean environment, the blocks as they stand."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.support.checkout import ROOT
from timewheel.testing import LocalPulsar, eventually

README = (ROOT / "README.md").read_text(encoding="utf-8")
TIMEOUT_S = 60


def blocks(language: str) -> list[tuple[str, str]]:
    """Fenced blocks of a language, each with the last `name` in the text before it."""
    found: list[tuple[str, str]] = []
    named = ""
    for token in MarkdownIt().parse(README):
        if token.type == "inline":
            names = re.findall(r"`([\w.]+)`", token.content)
            named = names[-1] if names else named
        if token.type == "fence" and token.info == language:
            found.append((named, token.content))
    return found


def commands() -> list[str]:
    lines = "".join(content for _, content in blocks("console")).splitlines()
    return [line.removeprefix("$ ").partition("  #")[0].strip() for line in lines if line.startswith("$ ")]


@pytest.fixture
def _broker() -> Iterator[None]:
    # The addresses that README names, which are Pulsar's own defaults.
    with LocalPulsar(config={"brokerServicePort": "6650", "webServicePort": "8080"}):
        yield


@pytest.mark.usefixtures("_broker")
def test_the_first_screen_works_unchanged(clean_python: Path, tmp_path: Path) -> None:
    for name, content in blocks("toml") + blocks("python"):
        (tmp_path / name).write_text(content)
    ensure = next(command for command in commands() if command.startswith("timewheel topics ensure"))
    binary = clean_python.parent / "timewheel"
    run = subprocess.run(
        [str(binary), *shlex.split(ensure)[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr

    sent = subprocess.run(
        [str(clean_python), "send.py"], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert sent.returncode == 0, sent.stderr
    assert re.fullmatch(r"due 20\d\d-\S+ \S+\n", sent.stdout), "its own line, and nothing of the SDK's or the client's"
    assert sent.stderr == ""

    output = tmp_path / "handled.txt"
    with output.open("wb") as file:
        handling = subprocess.Popen([str(clean_python), "handle.py"], cwd=tmp_path, stdout=file, stderr=file)
    try:
        eventually(lambda: "b'welcome' late by 0:00:0" in output.read_text(), TIMEOUT_S)
    finally:
        handling.send_signal(signal.SIGTERM)
        handling.wait(TIMEOUT_S)
    assert "b'renew'" not in output.read_text()


def test_the_set_up_commands_are_the_makefile_s() -> None:
    made = [command for command in commands() if command.startswith("make ")]
    assert made == ["make demo", "make test"]
    targets = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{command.removeprefix('make ')}:", targets, re.MULTILINE) for command in made)


def test_every_local_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    missing = [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    assert missing == []
