"""A thin and typed client of a Pulsar cluster's admin API: it calls brokers and decides nothing."""

from timewheel.broker.admin.client import AdminClient

__all__ = ["AdminClient"]
