"""Lookups and openings whose failures report the call, the topic and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar

from timewheel.client.surface import ClientLike
from timewheel.core.errors import TimewheelError, TopologyError, says
from timewheel.core.escapes import pulsar_admin
from timewheel.core.names import Names, partition_of

LOOKUP = "a lookup"  # the first call of every role


@says("no broker answered {call} of {topic}: {cause}; {remedy}")
class BrokerUnreachable(TimewheelError, pulsar.Timeout, pulsar.ConnectError, ConnectionError):  # type: ignore[misc]  # pulsar ships no types
    """No broker answered the client's call or its repetitions in time.

    A subclass of both errors of pulsar-client that mean this, so that code written for either continues to work.
    """

    call: str
    """The call that failed, such as "a lookup"."""
    topic: str
    """Topic of the call."""
    cause: str
    """The client's error, and facts about the address if they are known."""
    remedy: str
    """The next check."""


@says("the client's role may not open {call} of {topic}: {cause}; {remedy}")
class RoleRefused(TimewheelError, pulsar.AuthorizationError, PermissionError):  # type: ignore[misc]  # pulsar ships no types
    """The brokers refused the client's role a lookup, a producer or a consumer.

    A subclass of pulsar-client's error, so that code written for it continues to work.
    """

    call: str
    """The call that was refused, such as "a new consumer"."""
    topic: str
    """Topic of the call."""
    cause: str
    """The client's error."""
    remedy: str
    """The permission that the role needs."""


RIGHT_OF = {"a new producer": "produce", "a new consumer": "consume", "a new reader": "consume"}
"""The permission that a call takes; a lookup takes either."""


def _refused(call: str, topic: str, error: Exception) -> RoleRefused:
    needed = RIGHT_OF.get(call, "produce or consume")
    topic, _ = partition_of(topic)
    grant = pulsar_admin("topics", "grant-permission", "--role", "ROLE", "--actions", needed.split()[0], topic)
    return RoleRefused(call, topic, str(error), f"it takes the permission {needed}: {grant}")


Explain = Callable[[str, str, Exception], BrokerUnreachable]
"""Makes the error of a failed call from the call, the topic and the client's error."""


def _unknown_url(call: str, topic: str, error: Exception) -> BrokerUnreachable:
    """Return the error if the service URL is not known: a client does not tell it."""
    return BrokerUnreachable(
        call,
        topic,
        f"{error}, within the client's operation_timeout_seconds (30 unless it has another)",
        "is the service URL of pulsar.Client that of a broker, pulsar://HOST:6650 or with TLS pulsar+ssl://HOST:6651? "
        "Try from this host: nc -vz HOST 6650",
    )


class ReachingClient:
    """Passes all calls on; if no broker answers a lookup or an opening, the error says what to check.

    Once a broker has answered, the service URL is right, and a later failure is that of another address: the address
    that a topic's broker advertises.
    """

    def __init__(self, client: ClientLike, explain: Explain = _unknown_url) -> None:
        self._reached = client
        self._explain = explain
        self._has_answered = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reached, name)

    def get_topic_partitions(self, topic: str) -> list[str]:
        """See `pulsar.Client`."""
        found: list[str] = self._called(LOOKUP, topic, self._reached.get_topic_partitions, topic)
        return found

    def create_producer(self, topic: str, *args: Any, **options: Any) -> Any:
        """See `pulsar.Client`."""
        return self._called("a new producer", topic, self._reached.create_producer, topic, *args, **options)

    def subscribe(self, topic: Any, subscription_name: str, *args: Any, **options: Any) -> Any:
        """See `pulsar.Client`."""
        name = topic if isinstance(topic, str) else topic[0]
        return self._called("a new consumer", name, self._reached.subscribe, topic, subscription_name, *args, **options)

    def create_reader(self, topic: str, start_message_id: Any, *args: Any, **options: Any) -> Any:
        """See `pulsar.Client`."""
        create = self._reached.create_reader
        return self._called("a new reader", topic, create, topic, start_message_id, *args, **options)

    def _called(self, call: str, topic: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            answer = function(*args, **options)
        except pulsar.AuthorizationError as error:
            raise _refused(call, topic, error) from error
        except (pulsar.Timeout, pulsar.ConnectError) as error:
            if self._has_answered and call != LOOKUP:
                raise BrokerUnreachable(
                    call,
                    topic,
                    f"{error}, though a broker has answered lookups",
                    "does this host reach the address that the topic's broker advertises? It is shown by: "
                    f"{pulsar_admin('topics', 'lookup', topic)}",
                ) from error
            raise self._explain(call, topic, error) from error
        self._has_answered = True
        return answer


def reaching(client: ClientLike) -> ReachingClient:
    """Return a client with explained errors; a client that has them already is returned as it is."""
    return client if isinstance(client, ReachingClient) else ReachingClient(client)


def partition_count(client: ClientLike, topic: str) -> int:
    """Return the number of partitions of a topic; 0: the topic does not exist, or is not partitioned."""
    try:
        # For an unpartitioned or missing topic the answer is the topic's own name.
        names = client.get_topic_partitions(topic)
    except pulsar.TopicNotFound:
        return 0
    return sum(partition_of(name)[1] >= 0 for name in names)


def unpartitioned_problem(client: ClientLike, names: Names, topic: str) -> TopologyError | None:
    """Return the problem of a due topic that the plan declares unpartitioned; None: the topic is usable.

    No client can detect whether an unpartitioned topic exists (broker-facts: unpartitioned-topics). So this checks for
    the dead-letter topic, which provisioning creates after it.
    """
    if not partition_count(client, names.dead_letter):
        return TopologyError(
            topic,
            f"was not made for this plan: {names.dead_letter}, which is made after it, does not exist",
            "run: timewheel topics ensure PLAN",
        )
    partitions = partition_count(client, topic)
    if not partitions:
        return None
    return TopologyError(
        topic,
        f"has {partitions} partition{'s' if partitions > 1 else ''}, and the plan says partitions = 0: that it is not "
        "partitioned",
        f"write partitions = {partitions} in the plan",
    )
