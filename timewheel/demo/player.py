"""The process of a scheme: publishes the trace, consumes it, and records the history of every timer.

Each scheme has its own process, so that its load never delays another scheme through a shared interpreter. The parent
holds the other end of a pipe; when that closes, for any reason, the process ends.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from timewheel.core.envelope import ID_PROPERTY
from timewheel.demo.connecting import connect
from timewheel.demo.settings import PLAIN, SUBSCRIPTION, SchemeName, Settings
from timewheel.demo.ways import NAME_PROPERTY, Way, way_of
from timewheel.testing.evidence.journal import Journal, now_ms
from timewheel.testing.evidence.ledger import Entry
from timewheel.testing.evidence.messages import Connect, Done, Failed, Publish, Ready
from timewheel.testing.evidence.recorder import Deliveries, RecordingClient
from timewheel.testing.evidence.trace import delays_ms, timer_id, timer_index

BEAT_S = 0.25
"""Interval of progress reports."""
PACE_S = 0.004
"""Wait of a publisher that is ahead of its pace."""
MAX_BEHIND_MS = 250
"""Delay that a publisher catches up. A longer delay shifts the rest of the burst: it is never sent faster."""


def play(connection: Connection, settings: Settings, scheme: SchemeName) -> None:
    """Run the process: `Connect` and answer `Ready`, `Publish`, answer `Finish` with `Done`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent handles it
    try:
        _play(connection, settings, scheme)
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the parent is gone: a client's threads must not keep the process alive
    except BaseException:  # noqa: BLE001 - the parent reports it; a second traceback would only be noise
        connection.send(Failed(text=traceback.format_exc()))
        os._exit(1)


def _play(connection: Connection, settings: Settings, scheme: SchemeName) -> None:
    delays = delays_ms(messages=settings.messages, span_ms=settings.span_ms, seed=settings.seed)
    order = connection.recv()
    if not isinstance(order, Connect):
        return
    client = connect(order.service_url, settings.out)
    recorded = RecordingClient(client, SUBSCRIPTION, NAME_PROPERTY if scheme in PLAIN else ID_PROPERTY)
    journal = Journal(settings.messages)
    way = way_of(recorded, settings.plan(scheme), journal, order, settings.out)
    connection.send(Ready())
    begin = connection.recv()
    assert isinstance(begin, Publish)
    _publish(connection, way, journal, delays, begin.start_ms, settings.publish_ms(scheme))
    while not connection.poll(BEAT_S):
        _beat(connection, journal)
    connection.recv()
    way.close()
    client.close()
    connection.send(_done(journal, recorded))


def _beat(connection: Connection, journal: Journal) -> None:
    if journal.fatal is not None:
        raise journal.fatal
    connection.send(journal.progress())


def _publish(
    connection: Connection, way: Way, journal: Journal, delays: tuple[int, ...], start_ms: int, publish_ms: int
) -> None:
    """Send the whole trace at an even pace; a timer's due time counts from its own send."""
    pace = len(delays) / publish_ms
    next_beat = time.monotonic()
    index = 0
    while index < len(delays):
        at_ms = now_ms()
        if time.monotonic() >= next_beat:
            _beat(connection, journal)
            next_beat += BEAT_S
        turn_ms = start_ms + index / pace
        if at_ms < turn_ms:
            if connection.poll(PACE_S):
                return
            continue
        start_ms += max(0, int(at_ms - turn_ms) - MAX_BEHIND_MS)
        due_ms = at_ms + delays[index]
        journal.attempt(index, at_ms, due_ms)
        way.send(index, due_ms)
        index += 1


def _done(journal: Journal, recorded: RecordingClient) -> Done:
    """Combine journal and recorder into rows."""
    business = recorded.business
    entries = [
        Entry(timer=timer_id(index), due_ms=journal.due_ms[index], attempted_ms=at_ms, confirmed_ms=confirmed_ms)
        for index, (at_ms, confirmed_ms) in enumerate(zip(journal.attempted_ms, journal.confirmed_ms, strict=True))
        if at_ms
    ]
    strangers: dict[str, Entry] = {}

    def entry_of(timer: str) -> Entry:
        index = timer_index(timer)
        if 0 <= index < len(entries) and entries[index].timer == timer:
            return entries[index]
        return strangers.setdefault(timer, Entry(timer=timer))

    _fill_deliveries(business, entry_of)
    lateness_ms, hops = [], 0
    counted: set[str] = set()
    for timer, handled_ms, timer_hops in journal.handlings:
        entry = entry_of(timer)
        entry.handled += 1
        entry.handled_ms = entry.handled_ms or handled_ms
        lateness_ms.append(handled_ms - entry.due_ms)
        if timer not in counted:
            counted.add(timer)
            hops += timer_hops
    times = os.times()
    return Done(
        entries=[*entries, *strangers.values()],
        lateness_ms=sorted(lateness_ms),
        hops=hops,
        redelivered_due=business.redelivered,
        redelivered_holding=recorded.redelivered_in_holding,
        cpu_s=times.user + times.system,
        errors=(journal.failed, journal.last_error),
        events=dict(journal.events),
    )


def _fill_deliveries(business: Deliveries, entry_of: Callable[[str], Entry]) -> None:
    for timer, times_ms in business.times_of.items():
        entry = entry_of(timer)
        entry.delivered = len(times_ms)
        entry.delivered_ms = times_ms[0]
        entry.redelivered = business.redelivered_of.get(timer, 0)
