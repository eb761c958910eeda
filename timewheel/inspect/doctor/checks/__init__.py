"""All checks, in the order in which their findings are reported."""

from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.checks.clients import CLIENTS
from timewheel.inspect.doctor.checks.clocks import CLOCKS
from timewheel.inspect.doctor.checks.cursors import CURSORS
from timewheel.inspect.doctor.checks.delays import DELAYS
from timewheel.inspect.doctor.checks.expiry import EXPIRY
from timewheel.inspect.doctor.checks.hops import HOPS
from timewheel.inspect.doctor.checks.keeping import KEEPING
from timewheel.inspect.doctor.checks.layout import LAYOUT
from timewheel.inspect.doctor.checks.places import PLACES
from timewheel.inspect.doctor.checks.quotas import QUOTAS
from timewheel.inspect.doctor.checks.relays import RELAYS
from timewheel.inspect.doctor.checks.shadows import SHADOWS
from timewheel.inspect.doctor.checks.sight import SIGHT
from timewheel.inspect.doctor.checks.storage import STORAGE

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
