"""A Pulsar inside the test's own process, on a clock that jumps: weeks of delays pass in seconds."""

from timewheel.testing.virtual.pulsar import VirtualProcess, VirtualPulsar, Waiting
from timewheel.testing.virtual.scheduler import Killed, NothingToWaitFor

__all__ = ["Killed", "NothingToWaitFor", "VirtualProcess", "VirtualPulsar", "Waiting"]
