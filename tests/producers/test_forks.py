from __future__ import annotations

import os

from timewheel.producers.sending.forks import ForkGuard


def test_a_guard_knows_whether_it_is_in_a_child() -> None:
    guard = ForkGuard()
    child = os.fork()
    if child == 0:
        # A guard that is made in the child belongs to it.
        os._exit(10 * guard.is_child + ForkGuard().is_child)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 10
    assert not guard.is_child
