"""The admin API of a Pulsar cluster, thin and typed: it speaks to a broker and decides nothing."""

from timewheel.admin.client import AdminClient

__all__ = ["AdminClient"]
