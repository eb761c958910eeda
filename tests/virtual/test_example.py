"""What the how-to shows is true: its test, the example's tests, one of unittest, each as a stranger would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "test-your-service.md"
SERVICE = ROOT / "examples" / "renewals.py"
BY_UNITTEST = """
import datetime as dt
import unittest

from renewals import Renewals, provision, send_mails
from timewheel.testing.virtual import VirtualPulsar


class RenewalsTest(unittest.TestCase):
    def setUp(self):
        self.virtual_pulsar = self.enterContext(VirtualPulsar())

    def test_a_mail_is_sent(self):
        sent = []
        with self.virtual_pulsar.admin() as admin:
            provision(admin)
        self.virtual_pulsar.start(send_mails, self.virtual_pulsar.client(), sent.append)
        with Renewals(self.virtual_pulsar.client()) as shop:
            shop.subscribed("Zoe", dt.timedelta(days=20))
        self.virtual_pulsar.advance(days=17)
        self.assertEqual(sent, ["Zoe"])
"""


def run(*arguments: str, folder: Path) -> str:
    ran = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_the_tests_of_the_example_pass() -> None:
    assert "4 passed" in run("-m", "pytest", "-q", "examples/test_renewals.py", folder=ROOT)


def test_the_first_test_of_the_how_to_passes_as_it_is_printed(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "renewals.py").write_text(SERVICE.read_text())
    (tmp_path / "test_mails.py").write_text(found[1])
    assert "1 passed" in run("-m", "pytest", "-q", folder=tmp_path)


def test_unittest_has_it_too(tmp_path: Path) -> None:
    (tmp_path / "renewals.py").write_text(SERVICE.read_text())
    (tmp_path / "test_mails.py").write_text(BY_UNITTEST)
    assert "OK" in run("-m", "unittest", "-q", "test_mails", folder=tmp_path)
