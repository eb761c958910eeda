"""A thin and typed client of a Pulsar cluster's admin API: it calls brokers and decides nothing."""

from timewheel.core.extras import need_extras

need_extras("the admin API's client", "cli")

from timewheel.broker.admin.client import AdminClient  # noqa: E402

__all__ = ["AdminClient"]
