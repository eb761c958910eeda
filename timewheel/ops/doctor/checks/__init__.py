"""All checks, in the order in which their findings are reported."""

from timewheel.ops.doctor.check import Check
from timewheel.ops.doctor.checks.clients import CLIENTS
from timewheel.ops.doctor.checks.clocks import CLOCKS
from timewheel.ops.doctor.checks.cursors import CURSORS
from timewheel.ops.doctor.checks.delays import DELAYS
from timewheel.ops.doctor.checks.expiry import EXPIRY
from timewheel.ops.doctor.checks.hops import HOPS
from timewheel.ops.doctor.checks.keeping import KEEPING
from timewheel.ops.doctor.checks.layout import LAYOUT
from timewheel.ops.doctor.checks.places import PLACES
from timewheel.ops.doctor.checks.quotas import QUOTAS
from timewheel.ops.doctor.checks.relays import RELAYS
from timewheel.ops.doctor.checks.shadows import SHADOWS
from timewheel.ops.doctor.checks.sight import SIGHT
from timewheel.ops.doctor.checks.storage import STORAGE

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
