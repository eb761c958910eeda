"""The admin API of a virtual cluster, as a transport of httpx: `timewheel.AdminClient` runs on it unchanged."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from email.utils import formatdate
from itertools import chain, islice
from operator import attrgetter
from typing import Any, TypeVar
from urllib.parse import quote_plus, unquote

import httpx

from timewheel.broker.admin import policies as policy_table
from timewheel.broker.admin.policies import Policy
from timewheel.client.positions import EntryPosition
from timewheel.core.names import namespace_of, partition_of
from timewheel.testing.virtual.brokers import Cluster, Topic
from timewheel.testing.virtual.ledgers import Cursor, Entry
from timewheel.testing.virtual.subscriptions import Refused, Subscription

CLUSTER = "virtual"
_POLICIES: tuple[Policy[Any], ...] = tuple(found for found in vars(policy_table).values() if isinstance(found, Policy))
_BOUNDLESS = 2**63 - 1


class _Failed(Exception):
    """An answer that refuses: its status, and the reason."""


_PLAIN: dict[str, Callable[[Cluster], Any]] = {  # answers to questions that name nothing
    "/bookies/all": lambda _: {"bookies": [{"bookieId": f"virtual-{number}:3181"} for number in range(3)]},
    "/brokers": lambda cluster: [f"{broker.name}:8080" for broker in cluster.brokers if broker.is_up],
    "/brokers/configuration": lambda _: [],
    "/brokers/configuration/runtime": Cluster.settings,
    "/brokers/health": lambda _: httpx.Response(200, text="ok"),
    "/brokers/version": attrgetter("version"),
    "/clusters": lambda _: [CLUSTER],
    "/tenants": lambda cluster: sorted(cluster.tenants),
}

Handler = TypeVar("Handler", bound=Callable[..., Any])
_ROUTES: list[tuple[str, re.Pattern[str], Callable[..., Any]]] = []
_PLACES = {"topic": "[^/]+/[^/]+/[^/]+", "namespace": "[^/]+/[^/]+"}  # other names in a path are words


def _route(method: str, path: str) -> Callable[[Handler], Handler]:
    """Have a method of `_Request` answer requests; it is given the names in the path."""
    pattern = re.sub(r"{(\w+)}", lambda name: f"(?P<{name[1]}>{_PLACES.get(name[1], '[^/]+')})", path)

    def add(handler: Handler) -> Handler:
        _ROUTES.append((method, re.compile(pattern), handler))
        return handler

    return add


class VirtualAdmin(httpx.BaseTransport):
    """Answers the admin API's requests from a cluster's state."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            self.cluster.scheduler.happen()
        path = request.url.raw_path.decode().partition("?")[0].removeprefix("/admin/v2")
        body = json.loads(request.read() or b"null")
        try:
            answer = _answer(_Request(self.cluster, dict(request.url.params), body), request.method, path)
        except _Failed as failed:
            status, reason = failed.args
            return self._response(status, {"reason": reason})
        except Refused as refused:
            return self._response(404 if refused.result == "TopicNotFound" else 503, {"reason": refused.result})
        return answer if isinstance(answer, httpx.Response) else self._response(200, answer)

    def _response(self, status: int, answer: Any) -> httpx.Response:
        headers = {"Date": formatdate(self.cluster.scheduler.now_ns / 1e9, usegmt=True)}
        if answer is None:
            return httpx.Response(204, headers=headers)
        return httpx.Response(status, json=answer, headers=headers)


def _answer(request: _Request, method: str, path: str) -> Any:
    if method == "GET" and path in _PLAIN:
        return _PLAIN[path](request.cluster)
    for of_method, pattern, handler in _ROUTES:
        if of_method == method and (found := pattern.fullmatch(path)):
            named = {name: unquote(value) for name, value in found.groupdict().items()}
            if "topic" in named:
                named["topic"] = f"persistent://{named['topic']}"
            return handler(request, **named)
    raise _Failed(404, f"a virtual broker has no {method} {path}")


class _Request:
    """A request that is answered: its routes are its methods."""

    def __init__(self, cluster: Cluster, query: dict[str, str], body: Any) -> None:
        self.cluster = cluster
        self.query = query
        self.body = body

    # Tenants and namespaces

    @_route("PUT", "/tenants/{tenant}")
    def make_tenant(self, tenant: str) -> None:
        if tenant in self.cluster.tenants:
            raise _Failed(409, "Tenant already exist")
        self.cluster.tenants.add(tenant)

    @_route("DELETE", "/tenants/{tenant}")
    def remove_tenant(self, tenant: str) -> None:
        self._check_tenant(tenant)
        self.cluster.tenants.discard(tenant)

    def _check_tenant(self, tenant: str) -> None:
        if tenant not in self.cluster.tenants:
            raise _Failed(404, "Tenant does not exist")

    @_route("GET", "/namespaces/{tenant}")
    def namespaces(self, tenant: str) -> list[str]:
        self._check_tenant(tenant)
        return sorted(name for name in self.cluster.namespaces if name.startswith(f"{tenant}/"))

    def _policies_of(self, namespace: str) -> dict[str, Any]:
        found = self.cluster.namespaces.get(namespace)
        if found is None:
            raise _Failed(404, "Namespace does not exist")
        return found

    @_route("PUT", "/namespaces/{namespace}")
    def make_namespace(self, namespace: str) -> None:
        self._check_tenant(namespace.partition("/")[0])
        if namespace in self.cluster.namespaces:
            raise _Failed(409, "Namespace already exists")
        self.cluster.namespaces[namespace] = {}

    @_route("GET", "/namespaces/{namespace}")
    def namespace_document(self, namespace: str) -> dict[str, Any]:
        return {"replication_clusters": [CLUSTER], "bundles": {"numBundles": 4}, **self._policies_of(namespace)}

    @_route("DELETE", "/namespaces/{namespace}")
    def remove_namespace(self, namespace: str) -> None:
        self._policies_of(namespace)
        if any(namespace_of(topic) == namespace for topic in self.cluster.topics):
            raise _Failed(409, "Cannot delete non empty namespace")
        del self.cluster.namespaces[namespace]

    @_route("POST", "/namespaces/{namespace}/{policy}")
    def set_of_namespace(self, namespace: str, policy: str) -> None:
        self._store(self._policies_of(namespace), self._policy("namespace_name", policy))

    @_route("DELETE", "/namespaces/{namespace}/{policy}")
    def unset_of_namespace(self, namespace: str, policy: str) -> None:
        _unset(self._policies_of(namespace), self._policy("namespace_name", policy))

    def _policy(self, kind_of_name: str, name: str) -> Policy[Any]:
        kind = self.query.get("backlogQuotaType", "destination_storage")
        for policy in _POLICIES:
            if getattr(policy, kind_of_name) == name and policy.quota in (None, kind):
                return policy
        raise _Failed(404, f"a virtual broker has no policy {name}")

    def _store(self, policies: dict[str, Any], policy: Policy[Any]) -> None:
        body, name = self.body, str(policy.name)
        if policy.topic_query and name in self.query:
            body = json.loads(self.query[name])
        if policy.quota is not None:
            policies.setdefault(_key(policy), {})[policy.quota] = body
        else:
            policies[_key(policy)] = True if body is None else body
        self.cluster.watch()

    # Topics

    @_route("GET", "/persistent/{namespace}")
    def topics(self, namespace: str) -> list[str]:
        self._policies_of(namespace)
        found = {*self.cluster.topics, *chain.from_iterable(map(self.cluster.partitions, self.cluster.partitioned))}
        return sorted(topic for topic in found if namespace_of(topic) == namespace)

    @_route("GET", "/persistent/{namespace}/partitioned")
    def partitioned(self, namespace: str) -> list[str]:
        self._policies_of(namespace)
        return sorted(topic for topic in self.cluster.partitioned if namespace_of(topic) == namespace)

    def _parts(self, topic: str) -> list[Topic]:
        """Return the topic's partitions, or itself; 404 if it does not exist."""
        cluster = self.cluster
        if topic not in cluster.partitioned and topic not in cluster.topics:
            base, _ = partition_of(topic)
            if base not in cluster.partitioned or topic not in cluster.partitions(base):
                raise _Failed(404, "Topic not found")
        return [cluster.topic(name) for name in cluster.partitions(topic)]

    def _part(self, topic: str) -> Topic:
        """Return a topic without partitions, or a partition."""
        (part,) = self._parts(topic)
        return part

    @_route("GET", "/persistent/{topic}/partitions")
    def partitions(self, topic: str) -> dict[str, int]:
        if topic not in self.cluster.partitioned:
            self._parts(topic)
        return {"partitions": self.cluster.partitioned.get(topic, 0)}

    @_route("PUT", "/persistent/{topic}/partitions")
    def make_partitioned(self, topic: str) -> None:
        self._check_new(topic)
        self.cluster.partitioned[topic] = int(self.body)
        self._parts(topic)

    @_route("PUT", "/persistent/{topic}")
    def make_topic(self, topic: str) -> None:
        self._check_new(topic)
        self.cluster.topic(topic)

    def _check_new(self, topic: str) -> None:
        self._policies_of(namespace_of(topic))
        if topic in self.cluster.partitioned or topic in self.cluster.topics:
            raise _Failed(409, "This topic already exists")

    @_route("POST", "/persistent/{topic}/partitions")
    def make_more_partitions(self, topic: str) -> None:
        before = self._parts(topic)
        if topic not in self.cluster.partitioned:
            raise _Failed(409, "Topic is not partitioned topic")
        if int(self.body) < len(before):
            raise _Failed(422, "The number of partitions must not be lower than before")
        self.cluster.partitioned[topic] = int(self.body)
        for part in self._parts(topic)[len(before) :]:
            for subscription in before[0].subscriptions.values():
                if subscription.is_durable:
                    part.subscription(subscription.name, part.log.beginning)

    @_route("DELETE", "/persistent/{topic}/partitions")
    @_route("DELETE", "/persistent/{topic}")
    def remove(self, topic: str) -> None:
        cluster, parts = self.cluster, self._parts(topic)
        is_used = any(part.producers or any(one.consumers for one in part.subscriptions.values()) for part in parts)
        if is_used and self.query.get("force") != "true":
            raise _Failed(412, "Topic has active producers/subscriptions")
        for part in parts:
            cluster.topics.pop(part.name).unload()
        for known in (cluster.partitioned, cluster.topic_policies, cluster.topic_properties, cluster.schemas):
            known.pop(topic, None)

    @_route("POST", "/persistent/{topic}/createMissedPartitions")
    def make_missed(self, topic: str) -> None:
        self._parts(topic)

    @_route("GET", "/persistent/{topic}/properties")
    def properties(self, topic: str) -> dict[str, str]:
        self._parts(topic)
        return self.cluster.topic_properties.get(topic, {})

    @_route("PUT", "/persistent/{topic}/properties")
    def update_properties(self, topic: str) -> None:
        self._parts(topic)
        self.cluster.topic_properties.setdefault(topic, {}).update(self.body)

    @_route("POST", "/persistent/{topic}/terminate/partitions")
    def terminate_all(self, topic: str) -> dict[str, Any]:
        return {str(index): self.terminate(part.name) for index, part in enumerate(self._parts(topic))}

    @_route("POST", "/persistent/{topic}/terminate")
    def terminate(self, topic: str) -> dict[str, int]:
        self._part(topic).terminate()
        return self.last(topic)

    @_route("PUT", "/persistent/{topic}/unload")
    def unload(self, topic: str) -> None:
        self._parts(topic)
        self.cluster.unload(topic)

    @_route("GET", "/lookup/v2/topic/persistent/{topic}")
    def lookup(self, topic: str) -> dict[str, str]:
        return {"brokerUrl": f"pulsar://{self.cluster.topic(topic).owner.name}:6650"}

    @_route("GET", "/persistent/{topic}/lastMessageId")
    def last(self, topic: str) -> dict[str, int]:
        return _position(self._part(topic).log.last_confirmed)

    @_route("GET", "/persistent/{topic}/messageid/{at_ms}")
    def position_at(self, topic: str, at_ms: str) -> dict[str, int]:
        log = self._part(topic).log
        before = log.published_before(int(at_ms))
        found = log.after(before)
        return _position(EntryPosition(before.ledger, before.entry + 1) if found is None else found.position)

    @_route("GET", "/persistent/{topic}/ledger/{ledger}/entry/{entry}")
    def stored_entry(self, topic: str, ledger: str, entry: str) -> httpx.Response:
        found = self._part(topic).log.read(EntryPosition(int(ledger), int(entry)))
        if found is None:
            raise _Failed(404, "Message not found")
        encoded = [(name.encode(), text.encode("iso-8859-1", "replace")) for name, text in _headers(found).items()]
        return httpx.Response(200, headers=encoded, content=found.payload)

    # Statistics

    @_route("GET", "/persistent/{topic}/stats")
    def stats(self, topic: str) -> dict[str, Any]:
        return _stats_of(self._unpartitioned(topic))

    @_route("GET", "/persistent/{topic}/internalStats")
    def internal_stats(self, topic: str) -> dict[str, Any]:
        return _internal_of(self._unpartitioned(topic))

    def _unpartitioned(self, topic: str) -> Topic:
        if topic in self.cluster.partitioned:
            raise _Failed(404, "Topic not found")
        return self._part(topic)

    @_route("GET", "/persistent/{topic}/partitioned-stats")
    def partitioned_stats(self, topic: str) -> dict[str, Any]:
        if topic not in self.cluster.partitioned:
            raise _Failed(404, "Partitioned Topic not found")
        parts = {part.name: _stats_of(part) for part in self._parts(topic)}
        total: dict[str, Any] = {"subscriptions": {}, "publishers": []}
        for stats in parts.values():
            _add(total, stats)
        total["metadata"] = {"partitions": self.cluster.partitioned[topic]}
        total["partitions"] = parts if self.query.get("perPartition", "true") == "true" else {}
        total["deduplicationStatus"] = total["ownerBroker"] = ""
        return total

    @_route("GET", "/persistent/{topic}/partitioned-internalStats")
    def partitioned_internal_stats(self, topic: str) -> dict[str, Any]:
        return {"partitions": {part.name: _internal_of(part) for part in self._parts(topic)}}

    # Subscriptions

    @_route("GET", "/persistent/{topic}/subscriptions")
    def subscriptions(self, topic: str) -> list[str]:
        return sorted({name for part in self._parts(topic) for name in part.subscriptions})

    @_route("PUT", "/persistent/{topic}/subscription/{name}")
    def make_subscription(self, topic: str, name: str) -> None:
        parts = self._parts(topic)
        if all(name in part.subscriptions for part in parts):
            raise _Failed(409, "Subscription already exists for topic")
        is_latest = self.body is not None and self.body.get("ledgerId", 0) >= _BOUNDLESS
        for part in parts:
            part.subscription(name, part.log.last_confirmed if is_latest else part.log.beginning)

    def _of_topic(self, topic: str, name: str) -> list[Subscription]:
        """Return a subscription of each partition; 404 if no partition has it."""
        found = [part.subscriptions[name] for part in self._parts(topic) if name in part.subscriptions]
        if not found:
            raise _Failed(404, "Subscription not found")
        return found

    @_route("DELETE", "/persistent/{topic}/subscription/{name}")
    def remove_subscription(self, topic: str, name: str) -> None:
        found = self._of_topic(topic, name)
        if any(one.consumers for one in found) and self.query.get("force") != "true":
            raise _Failed(412, "Subscription has active connected consumers")
        for one in found:
            one.topic.subscriptions.pop(name, None)
            one.close()

    @_route("POST", "/persistent/{topic}/subscription/{name}/skip_all")
    def skip_all(self, topic: str, name: str) -> None:
        for one in self._of_topic(topic, name):
            one.skip_all()

    @_route("POST", "/persistent/{topic}/subscription/{name}/expireMessages/{seconds}")
    def expire(self, topic: str, name: str, seconds: str) -> None:
        expired = [one.expire(int(seconds)) for one in self._of_topic(topic, name)]
        if not all(expired):
            raise _Failed(409, "Expire message not issued: subscription almost catch up")

    @_route("POST", "/persistent/{topic}/subscription/{name}/skip/{messages}")
    def skip(self, topic: str, name: str, messages: str) -> None:
        (one,) = self._of_topic(topic, name)
        for entry in islice(one.unacknowledged(), int(messages)):
            one.cursor.acknowledge(entry.position)

    # Policies of topics: last, since their names are any word behind a topic.

    @_route("GET", "/persistent/{topic}/{policy}")
    def policy_of_topic(self, topic: str, policy: str) -> Any:
        key = _key(self._policy("name", policy.removesuffix("Map")))
        if self.query.get("applied") == "true":
            return self.cluster.policy(topic, key)
        return self.cluster.topic_policies.get(topic, {}).get(key)

    @_route("POST", "/persistent/{topic}/{policy}")
    def set_of_topic(self, topic: str, policy: str) -> None:
        found = self._policy("name", policy)
        self._parts(topic)
        self._store(self.cluster.topic_policies.setdefault(topic, {}), found)

    @_route("DELETE", "/persistent/{topic}/{policy}")
    def unset_of_topic(self, topic: str, policy: str) -> None:
        _unset(self.cluster.topic_policies.get(topic, {}), self._policy("name", policy))


# Policies are stored under the keys of a namespace's document, for topics too.


def _key(policy: Policy[Any]) -> str:
    return policy.document_key or str(policy.name)


def _unset(policies: dict[str, Any], policy: Policy[Any]) -> None:
    if policy.quota is not None:
        policies.get(_key(policy), {}).pop(policy.quota, None)
    else:
        policies.pop(_key(policy), None)


# Documents


def _position(position: EntryPosition) -> dict[str, int]:
    return {"ledgerId": position.ledger, "entryId": position.entry, "partitionIndex": -1}


def _headers(entry: Entry) -> dict[str, str]:
    message = entry.messages[0]
    found = {
        "Message-ID": entry.position.text,
        "producer-name": entry.producer_name,
        "sequence-id": str(entry.sequence_id),
        "publish-time": _iso(entry.publish_ms),
    }
    if entry.is_batch:
        found["num-batch-message"] = str(len(entry.messages))
    else:
        found |= {
            "PROPERTY": json.dumps(message.properties),
            "event-time": _iso(message.event_ms),
            "deliver-at-time": _iso(message.deliver_at_ms),
            "partition-key": message.key.decode(),
            "null-value": "true" if message.payload is None else "",
        }
    return {f"X-Pulsar-{name}": text for name, text in found.items() if text}


def _iso(at_ms: int) -> str:
    text = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z") if at_ms else ""


def _add(total: dict[str, Any], stats: dict[str, Any]) -> None:
    """Add up counters, and those of subscriptions of the same name."""
    for key, value in stats.items():
        if isinstance(value, bool | str) or value is None:
            total.setdefault(key, value)
        elif isinstance(value, int | float):
            total[key] = total.get(key, 0) + value
        elif isinstance(value, list):
            total[key] = [*total.get(key, ()), *value]
        elif isinstance(value, dict):
            _add(total.setdefault(key, {}), value)


def _stats_of(topic: Topic) -> dict[str, Any]:
    log = topic.log
    return {
        "msgInCounter": log.added,
        "bytesInCounter": sum(ledger.size_bytes for ledger in log.ledgers),
        "storageSize": sum(ledger.size_bytes for ledger in log.ledgers),
        "deduplicationStatus": "Enabled" if topic.deduplicates else "Disabled",
        "ownerBroker": topic.owner.name,
        "publishers": [{"producerName": name} for name in topic.producers],
        "subscriptions": {name: _subscription(one) for name, one in topic.subscriptions.items()},
    }


def _subscription(subscription: Subscription) -> dict[str, Any]:
    active = subscription.dispatcher.active
    return {
        "type": subscription.kind.name.replace("KeyShared", "Key_Shared") if subscription.consumers else "None",
        "activeConsumerName": active.name if active is not None else "",
        "msgBacklog": subscription.cursor.backlog,
        "msgDelayed": len(subscription.dispatcher.tracker),
        "unackedMessages": sum(one.unacked for one in subscription.consumers),
        "totalMsgExpired": subscription.expired,
        "msgOutCounter": subscription.delivered,
        "nonContiguousDeletedMessagesRanges": len(subscription.cursor.ranges()),
        "durable": subscription.is_durable,
        "lastConsumedFlowTimestamp": subscription.asked_ms,
        "consumers": [
            {
                "consumerName": one.name,
                "availablePermits": one.permits,
                "unackedMessages": one.unacked,
                "metadata": one.properties,
                "address": "/127.0.0.1:1",
            }
            for one in subscription.consumers
        ],
    }


def _internal_of(topic: Topic) -> dict[str, Any]:
    log = topic.log
    ledgers = [
        {"ledgerId": ledger.ledger_id, "entries": ledger.entries, "size": ledger.size_bytes} for ledger in log.ledgers
    ]
    return {
        "numberOfEntries": sum(ledger.entries for ledger in log.ledgers),
        "entriesAddedCounter": log.added,
        "totalSize": sum(ledger.size_bytes for ledger in log.ledgers),
        "currentLedgerEntries": log.ledgers[-1].entries,
        "currentLedgerSize": log.ledgers[-1].size_bytes,
        "lastConfirmedEntry": log.last_confirmed.text,
        "state": "Terminated" if topic.is_terminated else "LedgerOpened",
        "ledgers": ledgers,
        "cursors": {quote_plus(name): _cursor(one.cursor) for name, one in topic.subscriptions.items()},
    }


def _cursor(cursor: Cursor) -> dict[str, Any]:
    stats = cursor.stats()
    return {
        "markDeletePosition": stats.mark_delete.text,
        "readPosition": stats.read.text,
        "waitingReadOp": True,
        "messagesConsumedCounter": stats.consumed,
        "cursorLedger": stats.cursor_ledger,
        "individuallyDeletedMessages": stats.acked_text,
        "numberOfEntriesSinceFirstNotAckedMessage": stats.entries_since_mark_delete,
        "totalNonContiguousDeletedMessagesRange": stats.gap_count,
        "state": stats.state,
    }
