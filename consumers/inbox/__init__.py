"""Inboxes: stores that let a handler's effect happen once, though its message may be redelivered.

`MemoryInbox` serves one process, `SqliteInbox` one host, `RedisInbox` several hosts. They store a *claim* while a
handler runs, and then a record that the key is done. `SqlInbox` differs: it writes into the transaction of the user's
own effect, and only with it does an effect happen exactly once.

Names are loaded on first use. `RedisInbox` needs the extra `redis`; without the extra, its first use raises
`timewheel.errors.ExtraMissing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.extras import missing_extra, names_on_first_use

if TYPE_CHECKING:
    from .memory import MemoryInbox
    from .protocol import DEFAULT_KEEP_MS, MAX_KEY_BYTES, Answer, Claim, Inbox, Owners, inbox_key, kept_for_ms
    from .redis import RedisInbox
    from .sql import SqlInbox
    from .sqlite import SqliteInbox

__all__ = [
    "DEFAULT_KEEP_MS",
    "MAX_KEY_BYTES",
    "Answer",
    "Claim",
    "Inbox",
    "MemoryInbox",
    "Owners",
    "RedisInbox",
    "SqlInbox",
    "SqliteInbox",
    "inbox_key",
    "kept_for_ms",
]

__getattr__ = names_on_first_use(
    __name__,
    {
        ".memory": "MemoryInbox",
        ".protocol": "DEFAULT_KEEP_MS MAX_KEY_BYTES Answer Claim Inbox Owners inbox_key kept_for_ms",
        ".redis": "RedisInbox",
        ".sql": "SqlInbox",
        ".sqlite": "SqliteInbox",
    },
    missing_extra("RedisInbox", "redis"),
)
