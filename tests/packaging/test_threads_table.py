"""The table of threads in docs/internals.md names those that the code starts, and no others."""

from __future__ import annotations

import re

from tests.support.checkout import ROOT, package_modules

ROLES = ("producers/", "consumers/", "timewheel/broker/admin/", "timewheel/dead_letters/", "timewheel/inspect/",
         "timewheel/provision/", "timewheel/relay/", "timewheel/shadow/", "timewheel/client/", "timewheel/core/",
         "timewheel/serving.py")  # fmt: skip
CODE = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in package_modules() if str(path).startswith(ROLES))
STARTED = re.compile(r"""(?:\bname=|\bname = |thread_name_prefix=|ThreadPoolExecutor\([^\n]*, )f?"(timewheel-[^"{]*)""")
"""The name of a thread, up to where it varies."""


def in_table() -> list[str]:
    text = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    table = text[text.index("## Threads") : text.index("### Order of stopping")]
    return re.findall(r"`(timewheel-[^`]*)`", "\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row))


def test_every_thread_of_a_role_stands_in_the_table() -> None:
    started = set(STARTED.findall(CODE))
    assert len(started) > 10
    assert {name for name in started if not any(row.startswith(name) for row in in_table())} == set()


def test_every_name_in_the_table_is_one_of_the_code() -> None:
    for row in in_table():
        head = re.split(r" TOPIC|INTERVAL|_?-?N$", row)[0]
        assert f'"{head}' in CODE or f'"{head.rstrip("-")}' in CODE, row
