"""All checks, in the order in which their findings are reported."""

from timewheel.inspect.doctor.checks.clients import CLIENTS, CLOCKS
from timewheel.inspect.doctor.checks.cursors import CURSORS, DELAYS
from timewheel.inspect.doctor.checks.layout import LAYOUT, PLACES, SIGHT
from timewheel.inspect.doctor.checks.relays import HOPS, RELAYS, SHADOWS
from timewheel.inspect.doctor.checks.storage import EXPIRY, KEEPING, QUOTAS, STORAGE
from timewheel.inspect.doctor.seen import Check

CHECKS: tuple[Check, ...] = (
    *LAYOUT,
    *EXPIRY,
    *QUOTAS,
    *KEEPING,
    *DELAYS,
    *CURSORS,
    *STORAGE,
    *HOPS,
    *CLIENTS,
    *RELAYS,
    *SHADOWS,
    *PLACES,
    *CLOCKS,
    *SIGHT,
)
