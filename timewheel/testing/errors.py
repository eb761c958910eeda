"""What can go wrong with a local broker."""


class BrokerUnavailable(RuntimeError):
    """No broker can be had here; the message says what is missing and how to get it."""


class BrokerFailed(RuntimeError):
    """A broker was started and did not become healthy, or ended by itself; the message ends with its log."""
