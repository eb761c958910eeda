"""README's first screen, done as a newcomer does it: the built wheel, a clean environment, the blocks as they stand."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pulsar
import pytest

from tests.support.checkout import ROOT, files
from tests.support.pages import blocks, typed
from tests.support.processes import ran
from timewheel.testing import LocalPulsar, eventually

README = (ROOT / "README.md").read_text(encoding="utf-8")
SEE_GAPS = (ROOT / "docs" / "how-to" / "see-gaps.md").read_text(encoding="utf-8")
TIMEOUT_S = 60


@pytest.mark.usefixtures("broker_of_the_pages")
@pytest.mark.timeout(300)
def test_the_first_screen_works_unchanged(clean_python: Path, tmp_path: Path) -> None:
    for block in blocks(README, "toml", "python"):
        (tmp_path / block.named).write_text(block.content)
    ensure = next(command for command in typed(README) if command.startswith("timewheel topics ensure"))
    binary = clean_python.parent / "timewheel"
    run = ran([str(binary), *shlex.split(ensure)[1:]], cwd=tmp_path, timeout=TIMEOUT_S)
    assert run.returncode == 0, run.stderr

    output = tmp_path / "printed.txt"
    with output.open("wb") as file:
        running = subprocess.Popen([str(clean_python), "reminders.py"], cwd=tmp_path, stdout=file, stderr=file)
    try:
        eventually(lambda: "b'welcome' late by 0:00:0" in output.read_text(), TIMEOUT_S)
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(TIMEOUT_S)
    lines = output.read_text().splitlines()
    assert len(lines) == 2, "its own lines, and none of the SDK's or the client's"
    assert re.fullmatch(r"due 20\d\d-\S+ \S+", lines[0])


@pytest.mark.parametrize("partition_count", [0, 2])
def test_the_gaps_of_a_topic_are_read_as_it_says(broker_of_the_pages: LocalPulsar, partition_count: int) -> None:
    """10 messages in each partition, of which every other one is acknowledged: gaps at 1, 3, 5, 7 and 9."""
    name = f"gaps-of-{partition_count}"
    topic = f"persistent://public/default/{name}"
    partitions = [f"{topic}-partition-{number}" for number in range(partition_count)] or [topic]
    if partition_count:
        path = topic.replace("://", "/")
        made = httpx.put(f"{broker_of_the_pages.admin_url}/admin/v2/{path}/partitions", json=partition_count)
        made.raise_for_status()
    client = pulsar.Client(broker_of_the_pages.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for partition in partitions:
        consumer = client.subscribe(partition, "billing", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(partition)
        for _ in range(10):
            producer.send(b"")
        for message in [consumer.receive(10_000) for _ in range(10)][1::2]:
            consumer.acknowledge(message)
    client.close()

    (block,) = blocks(SEE_GAPS, "sh")
    shown = {f"5 gaps: billing {partition if partition_count else '(not partitioned)'}" for partition in partitions}

    def read() -> bool:
        command = block.content.replace("YOUR-TOPIC", name)
        told = ran(["bash", "-c", command], timeout=TIMEOUT_S)
        assert set(told.stdout.splitlines()) == shown, told
        return True

    eventually(read, TIMEOUT_S, poll=0.5)
    (typed_gaps,) = [command for command in typed(README) if command.startswith("timewheel gaps")]
    words = shlex.split(typed_gaps.replace("YOUR-TOPIC", name), comments=True)[1:]
    told = ran([sys.executable, "-m", "timewheel", *words], timeout=TIMEOUT_S)
    assert re.search(r"^gaps +5", told.stdout, re.MULTILINE), told


def test_the_set_up_commands_are_the_makefile_s() -> None:
    made = [command for command in typed(README) if command.startswith("make ")]
    assert made == ["make demo", "make test"]
    targets = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{command.removeprefix('make ')}:", targets, re.MULTILINE) for command in made)


def test_every_link_to_a_file_leads_somewhere() -> None:
    missing = [
        (page, link)
        for page in files()
        if page.suffix == ".md"
        for link in re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text(encoding="utf-8"))
        if "://" not in link and not (ROOT / page.parent / link).exists()
    ]
    assert missing == []
