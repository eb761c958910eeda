"""Operations on the policies of a topic."""

from __future__ import annotations

from typing import Any, TypeVar

from timewheel.broker.admin.http import AdminHttp
from timewheel.broker.admin.names import topic_path
from timewheel.broker.admin.policies import Policy
from timewheel.core.clock import Clock, pause
from timewheel.core.errors import TopologyError

T = TypeVar("T")

DEFAULT_WAIT_S = 10.0
POLL_MS = 50


class TopicPolicies:
    """Policies on the topic itself; of a partitioned topic by its own name, never by that of a partition.

    The topic must exist. A policy travels through a system topic of its namespace, so that other brokers, and the
    loaded topic itself, apply it a moment after `set` returned: `await_value` waits for that.
    """

    def __init__(self, http: AdminHttp, clock: Clock) -> None:
        self._http = http
        self._clock = clock

    def get(self, topic: str, policy: Policy[T], *, applied: bool = False) -> T | None:
        """Return the policy's value.

        Args:
            topic: Full name.
            policy: A policy of `timewheel.broker.admin.policies`.
            applied: False: the value that is set on the topic, or None. True: the value in force, from the topic, its
                namespace or the broker.
        """
        path = _path(topic, policy)
        if policy.quota is not None:
            path += "Map"  # both quotas are read at once
        return policy.read(self._http.get(path, {"applied": "true"} if applied else None))

    def set(self, topic: str, policy: Policy[T], value: T) -> None:
        """Set the policy on the topic."""
        body = policy.encode(value)
        if policy.topic_query:
            self._http.call("POST", _path(topic, policy), query={str(policy.name): str(body)})
        else:
            self._http.call("POST", _path(topic, policy), query=_quota_query(policy), body=body)

    def remove(self, topic: str, policy: Policy[Any]) -> None:
        """Remove the policy from the topic, so that its namespace's policy applies again; no error if it is not set."""
        self._http.call("DELETE", _path(topic, policy), query=_quota_query(policy))

    def await_value(
        self,
        topic: str,
        policy: Policy[T],
        value: T | None,
        *,
        timeout_s: float = DEFAULT_WAIT_S,
        applied: bool = False,
    ) -> None:
        """Read the policy until it has this value.

        Raises:
            TopologyError: It has another value after ``timeout_s`` seconds.
        """
        deadline_ms = self._clock.monotonic_ms() + int(timeout_s * 1000)
        while (found := self.get(topic, policy, applied=applied)) != value:
            if self._clock.monotonic_ms() >= deadline_ms:
                raise TopologyError(
                    topic,
                    f"its policy {policy} is {found!r}, not {value!r}, {timeout_s:g} s after it was set",
                    "see whether another program sets it, and whether topicLevelPoliciesEnabled is on",
                )
            pause(self._clock, POLL_MS)


def _path(topic: str, policy: Policy[Any]) -> str:
    if policy.name is None:
        raise ValueError(f"{policy} has no topic level: set it on the namespace")
    return f"{topic_path(topic)}/{policy.name}"


def _quota_query(policy: Policy[Any]) -> dict[str, str] | None:
    return None if policy.quota is None else {"backlogQuotaType": policy.quota}
