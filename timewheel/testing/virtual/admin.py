"""The admin API of a virtual cluster, as a transport of httpx: `timewheel.AdminClient` runs on it unchanged."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any
from urllib.parse import quote_plus, unquote

import httpx

from timewheel.broker.admin import policies as policy_table
from timewheel.broker.admin.policies import Policy
from timewheel.client.positions import EntryPosition
from timewheel.core.names import namespace_of, partition_of
from timewheel.testing.virtual.brokers import Cluster, Topic
from timewheel.testing.virtual.ledgers import Cursor
from timewheel.testing.virtual.subscriptions import Refused, Subscription

CLUSTER = "virtual"
_POLICIES: tuple[Policy[Any], ...] = tuple(found for found in vars(policy_table).values() if isinstance(found, Policy))
_BOUNDLESS = 2**63 - 1


class _Failed(Exception):
    """An answer that refuses."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


_FIXED: dict[str, Any] = {
    "/brokers/configuration": [],
    "/brokers/health": httpx.Response(200, text="ok"),
    "/clusters": [CLUSTER],
    "/bookies/all": {"bookies": [{"bookieId": f"virtual-{number}:3181"} for number in range(3)]},
}
"""Answers that are always the same."""

Handler = Callable[..., Any]
_ROUTES: list[tuple[str, re.Pattern[str], Handler]] = []
_TOPIC = r"/persistent/(?P<topic>[^/]+/[^/]+/[^/]+)"


def _route(method: str, pattern: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        _ROUTES.append((method, re.compile(pattern + "$"), handler))
        return handler

    return add


class VirtualAdmin(httpx.BaseTransport):
    """Answers the admin API's requests from a cluster's state."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        scheduler = self.cluster.scheduler
        if request.method != "GET":
            scheduler.happen()
        path = request.url.raw_path.decode().partition("?")[0]
        body = json.loads(request.read() or b"null")
        try:
            answer = self._answer(request.method, path, dict(request.url.params), body)
        except _Failed as failed:
            return self._response(failed.status, {"reason": failed.reason})
        except Refused as refused:
            return self._response(404 if refused.result == "TopicNotFound" else 503, {"reason": refused.result})
        return answer if isinstance(answer, httpx.Response) else self._response(200, answer)

    def _response(self, status: int, answer: Any) -> httpx.Response:
        headers = {"Date": formatdate(self.cluster.scheduler.now_ns / 1e9, usegmt=True)}
        if answer is None:
            return httpx.Response(204, headers=headers)
        return httpx.Response(status, json=answer, headers=headers)

    def _answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        _, is_admin, place = path.partition("/admin/v2")
        if not is_admin:
            place = path
        if method == "GET" and place in _FIXED:
            return _FIXED[place]
        for of_method, pattern, handler in _ROUTES:
            if of_method == method and (found := pattern.match(place)):
                named = {name: unquote(value) for name, value in found.groupdict().items()}
                if "topic" in named:
                    named["topic"] = f"persistent://{named['topic']}"
                return handler(self.cluster, **named, query=query, body=body)
        raise _Failed(404, f"a virtual broker has no {method} {place}")


# Brokers


@_route("GET", "/brokers")
def _brokers(cluster: Cluster, **_: Any) -> list[str]:
    return [f"{broker.name}:8080" for broker in cluster.brokers if broker.is_up]


@_route("GET", "/brokers/version")
def _version(cluster: Cluster, **_: Any) -> httpx.Response:
    date = formatdate(cluster.scheduler.now_ns / 1e9, usegmt=True)
    return httpx.Response(200, text=cluster.version, headers={"Date": date})


@_route("GET", "/brokers/configuration/runtime")
def _runtime(cluster: Cluster, **_: Any) -> dict[str, str]:
    return cluster.settings()


# Tenants and namespaces


@_route("GET", "/tenants")
def _tenants(cluster: Cluster, **_: Any) -> list[str]:
    return sorted(cluster.tenants)


@_route("PUT", "/tenants/(?P<tenant>[^/]+)")
def _make_tenant(cluster: Cluster, tenant: str, **_: Any) -> None:
    if tenant in cluster.tenants:
        raise _Failed(409, "Tenant already exist")
    cluster.tenants.add(tenant)


@_route("DELETE", "/tenants/(?P<tenant>[^/]+)")
def _remove_tenant(cluster: Cluster, tenant: str, **_: Any) -> None:
    if tenant not in cluster.tenants:
        raise _Failed(404, "The tenant doesn't exist")
    cluster.tenants.discard(tenant)


@_route("GET", "/namespaces/(?P<tenant>[^/]+)")
def _namespaces(cluster: Cluster, tenant: str, **_: Any) -> list[str]:
    if tenant not in cluster.tenants:
        raise _Failed(404, "Tenant does not exist")
    return sorted(name for name in cluster.namespaces if name.startswith(f"{tenant}/"))


def _namespace(cluster: Cluster, name: str) -> dict[str, Any]:
    found = cluster.namespaces.get(name)
    if found is None:
        raise _Failed(404, "Namespace does not exist")
    return found


@_route("PUT", "/namespaces/(?P<name>[^/]+/[^/]+)")
def _make_namespace(cluster: Cluster, name: str, **_: Any) -> None:
    if name.partition("/")[0] not in cluster.tenants:
        raise _Failed(404, "Tenant does not exist")
    if name in cluster.namespaces:
        raise _Failed(409, "Namespace already exists")
    cluster.namespaces[name] = {}


@_route("GET", "/namespaces/(?P<name>[^/]+/[^/]+)")
def _namespace_document(cluster: Cluster, name: str, **_: Any) -> dict[str, Any]:
    own = _namespace(cluster, name)
    return {"replication_clusters": [CLUSTER], "bundles": {"numBundles": 4}, **own}


@_route("DELETE", "/namespaces/(?P<name>[^/]+/[^/]+)")
def _remove_namespace(cluster: Cluster, name: str, **_: Any) -> None:
    _namespace(cluster, name)
    if any(namespace_of(topic) == name for topic in cluster.topics):
        raise _Failed(409, "Cannot delete non empty namespace")
    del cluster.namespaces[name]


@_route("POST", "/namespaces/(?P<name>[^/]+/[^/]+)/(?P<policy>[^/]+)")
def _set_of_namespace(cluster: Cluster, name: str, policy: str, query: dict[str, str], body: Any) -> None:
    found = _policy_named(policy, of_namespace=True, query=query)
    _store(_namespace(cluster, name), found, query, body)


@_route("DELETE", "/namespaces/(?P<name>[^/]+/[^/]+)/(?P<policy>[^/]+)")
def _unset_of_namespace(cluster: Cluster, name: str, policy: str, query: dict[str, str], **_: Any) -> None:
    _unset(_namespace(cluster, name), _policy_named(policy, of_namespace=True, query=query))


# Policies are stored under the keys of a namespace's document, for topics too.


def _policy_named(name: str, *, of_namespace: bool, query: dict[str, str]) -> Policy[Any]:
    kind = query.get("backlogQuotaType", "destination_storage")
    for policy in _POLICIES:
        if (policy.namespace_name if of_namespace else policy.name) == name and policy.quota in (None, kind):
            return policy
    raise _Failed(404, f"a virtual broker has no policy {name}")


def _key(policy: Policy[Any]) -> str:
    return policy.document_key or str(policy.name)


def _store(policies: dict[str, Any], policy: Policy[Any], query: dict[str, str], body: Any) -> None:
    if policy.topic_query and policy.name in query:
        body = json.loads(query[str(policy.name)])
    if policy.quota is not None:
        policies.setdefault(_key(policy), {})[policy.quota] = body
    else:
        policies[_key(policy)] = True if body is None else body


def _unset(policies: dict[str, Any], policy: Policy[Any]) -> None:
    if policy.quota is not None:
        policies.get(_key(policy), {}).pop(policy.quota, None)
    else:
        policies.pop(_key(policy), None)


# Topics


@_route("GET", "/persistent/(?P<name>[^/]+/[^/]+)")
def _topics(cluster: Cluster, name: str, **_: Any) -> list[str]:
    _namespace(cluster, name)
    made = {topic for topic in cluster.topics if namespace_of(topic) == name}
    of_partitioned = {
        part for topic in cluster.partitioned if namespace_of(topic) == name for part in cluster.partitions(topic)
    }
    return sorted(made | of_partitioned)


@_route("GET", "/persistent/(?P<name>[^/]+/[^/]+)/partitioned")
def _partitioned(cluster: Cluster, name: str, **_: Any) -> list[str]:
    _namespace(cluster, name)
    return sorted(topic for topic in cluster.partitioned if namespace_of(topic) == name)


def _parts(cluster: Cluster, topic: str) -> list[Topic]:
    """Return the topic's partitions, or itself; 404 if it does not exist."""
    if topic not in cluster.partitioned and topic not in cluster.topics:
        base, _ = partition_of(topic)
        if base not in cluster.partitioned or topic not in cluster.partitions(base):
            raise _Failed(404, "Topic not found")
    return [cluster.topic(name) for name in cluster.partitions(topic)]


@_route("GET", _TOPIC + "/partitions")
def _partitions(cluster: Cluster, topic: str, **_: Any) -> dict[str, int]:
    if topic in cluster.partitioned:
        return {"partitions": cluster.partitioned[topic]}
    _parts(cluster, topic)
    return {"partitions": 0}


@_route("PUT", _TOPIC + "/partitions")
def _make_partitioned(cluster: Cluster, topic: str, body: Any, **_: Any) -> None:
    _namespace(cluster, namespace_of(topic))
    if topic in cluster.partitioned or topic in cluster.topics:
        raise _Failed(409, "This topic already exists")
    cluster.partitioned[topic] = int(body)
    for name in cluster.partitions(topic):
        cluster.topic(name)


@_route("POST", _TOPIC + "/partitions")
def _more_partitions(cluster: Cluster, topic: str, body: Any, **_: Any) -> None:
    before = _parts(cluster, topic)
    if topic not in cluster.partitioned:
        raise _Failed(409, "Topic is not partitioned topic")
    if int(body) < cluster.partitioned[topic]:
        raise _Failed(422, "The number of partitions must not be lower than before")
    cluster.partitioned[topic] = int(body)
    for name in cluster.partitions(topic)[len(before) :]:
        for subscription in before[0].subscriptions.values():
            if subscription.is_durable:
                cluster.topic(name).subscription(subscription.name, from_earliest=True)


@_route("DELETE", _TOPIC + "/partitions")
def _remove_partitioned(cluster: Cluster, topic: str, query: dict[str, str], **_: Any) -> None:
    _remove(cluster, topic, query)


@_route("PUT", _TOPIC)
def _make_topic(cluster: Cluster, topic: str, **_: Any) -> None:
    _namespace(cluster, namespace_of(topic))
    if topic in cluster.partitioned or topic in cluster.topics:
        raise _Failed(409, "This topic already exists")
    cluster.topic(topic)


@_route("DELETE", _TOPIC)
def _remove(cluster: Cluster, topic: str, query: dict[str, str], **_: Any) -> None:
    parts = _parts(cluster, topic)
    is_used = any(part.producers or any(one.consumers for one in part.subscriptions.values()) for part in parts)
    if is_used and query.get("force") != "true":
        raise _Failed(412, "Topic has active producers/subscriptions")
    for part in parts:
        cluster.delete(part.name)
    cluster.partitioned.pop(topic, None)
    cluster.topic_policies.pop(topic, None)
    cluster.topic_properties.pop(topic, None)
    cluster.schemas.pop(topic, None)


@_route("POST", _TOPIC + "/createMissedPartitions")
def _make_missed(cluster: Cluster, topic: str, **_: Any) -> None:
    _parts(cluster, topic)


@_route("GET", _TOPIC + "/properties")
def _properties(cluster: Cluster, topic: str, **_: Any) -> dict[str, str]:
    _parts(cluster, topic)
    return cluster.topic_properties.get(topic, {})


@_route("PUT", _TOPIC + "/properties")
def _update_properties(cluster: Cluster, topic: str, body: Any, **_: Any) -> None:
    _parts(cluster, topic)
    cluster.topic_properties.setdefault(topic, {}).update(body)


@_route("POST", _TOPIC + "/terminate/partitions")
def _terminate(cluster: Cluster, topic: str, **_: Any) -> dict[str, Any]:
    ends = {}
    for index, part in enumerate(_parts(cluster, topic)):
        part.terminate()
        ends[str(index)] = _position(part.log.last_confirmed)
    return ends


@_route("POST", _TOPIC + "/terminate")
def _terminate_one(cluster: Cluster, topic: str, **_: Any) -> dict[str, Any]:
    (part,) = _parts(cluster, topic)
    part.terminate()
    return _position(part.log.last_confirmed)


@_route("PUT", _TOPIC + "/unload")
def _unload(cluster: Cluster, topic: str, **_: Any) -> None:
    _parts(cluster, topic)
    cluster.unload(topic)


@_route("GET", "/lookup/v2/topic" + _TOPIC)
def _lookup(cluster: Cluster, topic: str, **_: Any) -> dict[str, str]:
    return {"brokerUrl": f"pulsar://{cluster.brokers[cluster.topic(topic).owner].name}:6650"}


def _position(position: EntryPosition) -> dict[str, int]:
    return {"ledgerId": position.ledger, "entryId": position.entry, "partitionIndex": -1}


@_route("GET", _TOPIC + "/lastMessageId")
def _last(cluster: Cluster, topic: str, **_: Any) -> dict[str, int]:
    (part,) = _parts(cluster, topic)
    return _position(part.log.last_confirmed)


@_route("GET", _TOPIC + r"/messageid/(?P<at_ms>\d+)")
def _position_at(cluster: Cluster, topic: str, at_ms: str, **_: Any) -> dict[str, int]:
    (part,) = _parts(cluster, topic)
    log = part.log
    for entry in log.all_after(log.beginning):
        if entry.publish_ms >= int(at_ms):
            return _position(entry.position)
    return _position(EntryPosition(log.last_confirmed.ledger, log.last_confirmed.entry + 1))


@_route("GET", _TOPIC + r"/ledger/(?P<ledger>\d+)/entry/(?P<entry>\d+)")
def _stored_entry(cluster: Cluster, topic: str, ledger: str, entry: str, **_: Any) -> httpx.Response:
    (part,) = _parts(cluster, topic)
    found = part.log.read(EntryPosition(int(ledger), int(entry)))
    if found is None:
        raise _Failed(404, "Message not found")
    message = found.messages[0]
    headers = {
        "X-Pulsar-Message-ID": found.position.text,
        "X-Pulsar-producer-name": found.producer_name,
        "X-Pulsar-sequence-id": str(found.sequence_id),
        "X-Pulsar-publish-time": _iso(found.publish_ms),
    }
    if found.is_batch:
        headers["X-Pulsar-num-batch-message"] = str(len(found.messages))
        return httpx.Response(200, headers=headers, content=found.payload)
    headers["X-Pulsar-PROPERTY"] = json.dumps(message.properties)
    if message.event_ms:
        headers["X-Pulsar-event-time"] = _iso(message.event_ms)
    if message.deliver_at_ms:
        headers["X-Pulsar-deliver-at-time"] = _iso(message.deliver_at_ms)
    if message.key:
        headers["X-Pulsar-partition-key"] = message.key if isinstance(message.key, str) else message.key.decode()
    if message.payload is None:
        headers["X-Pulsar-null-value"] = "true"
    encoded = [(name.encode(), text.encode("iso-8859-1", "replace")) for name, text in headers.items()]
    return httpx.Response(200, headers=encoded, content=found.payload)


def _iso(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Statistics


@_route("GET", _TOPIC + "/stats")
def _stats(cluster: Cluster, topic: str, **_: Any) -> dict[str, Any]:
    if topic in cluster.partitioned:
        raise _Failed(404, "Topic not found")
    (part,) = _parts(cluster, topic)
    return _stats_of(part)


@_route("GET", _TOPIC + "/partitioned-stats")
def _partitioned_stats(cluster: Cluster, topic: str, query: dict[str, str], **_: Any) -> dict[str, Any]:
    if topic not in cluster.partitioned:
        raise _Failed(404, "Partitioned Topic not found")
    parts = {part.name: _stats_of(part) for part in _parts(cluster, topic)}
    total: dict[str, Any] = {"subscriptions": {}, "publishers": []}
    for stats in parts.values():
        _add(total, stats)
    total["metadata"] = {"partitions": cluster.partitioned[topic]}
    total["partitions"] = parts if query.get("perPartition", "true") == "true" else {}
    total["deduplicationStatus"] = total["ownerBroker"] = ""
    return total


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
        "delayedMessageIndexSizeInBytes": 0,
        "deduplicationStatus": "Enabled" if topic.deduplicates else "Disabled",
        "ownerBroker": topic.cluster.brokers[topic.owner].name,
        "publishers": [{"producerName": name, "msgRateIn": 0.0} for name in topic.producers],
        "subscriptions": {name: _subscription(one) for name, one in topic.subscriptions.items()},
    }


def _subscription(subscription: Subscription) -> dict[str, Any]:
    active = subscription.dispatcher.active
    return {
        "type": subscription.kind.name.replace("KeyShared", "Key_Shared") if subscription.consumers else "None",
        "activeConsumerName": active.name if active is not None else "",
        "msgBacklog": subscription.cursor.backlog,
        "msgDelayed": subscription.dispatcher.delayed,
        "delayedMessageIndexSizeInBytes": 0,
        "unackedMessages": sum(one.unacked for one in subscription.consumers),
        "totalMsgExpired": 0,
        "msgRateExpired": 0.0,
        "msgRateRedeliver": 0.0,
        "msgOutCounter": subscription.delivered,
        "blockedSubscriptionOnUnackedMsgs": False,
        "nonContiguousDeletedMessagesRanges": len(subscription.cursor.ranges()),
        "durable": subscription.is_durable,
        "lastConsumedFlowTimestamp": subscription.asked_ms,
        "consumers": [
            {
                "consumerName": one.name,
                "availablePermits": one.permits,
                "unackedMessages": one.unacked,
                "metadata": one.properties,
                "keyHashRanges": None,
                "blockedConsumerOnUnackedMsgs": False,
                "msgRateOut": 0.0,
                "address": "/127.0.0.1:1",
            }
            for one in subscription.consumers
        ],
    }


@_route("GET", _TOPIC + "/internalStats")
def _internal(cluster: Cluster, topic: str, **_: Any) -> dict[str, Any]:
    if topic in cluster.partitioned:
        raise _Failed(404, "Topic not found")
    (part,) = _parts(cluster, topic)
    return _internal_of(part)


@_route("GET", _TOPIC + "/partitioned-internalStats")
def _partitioned_internal(cluster: Cluster, topic: str, **_: Any) -> dict[str, Any]:
    return {"partitions": {part.name: _internal_of(part) for part in _parts(cluster, topic)}}


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
        "pendingReadOps": 0,
        "messagesConsumedCounter": stats.consumed,
        "cursorLedger": stats.cursor_ledger,
        "individuallyDeletedMessages": stats.acked_text,
        "numberOfEntriesSinceFirstNotAckedMessage": stats.entries_since_mark_delete,
        "totalNonContiguousDeletedMessagesRange": stats.gap_count,
        "state": stats.state,
        "properties": {},
    }


# Subscriptions


@_route("GET", _TOPIC + "/subscriptions")
def _subscriptions(cluster: Cluster, topic: str, **_: Any) -> list[str]:
    return sorted({name for part in _parts(cluster, topic) for name in part.subscriptions})


@_route("PUT", _TOPIC + "/subscription/(?P<name>[^/]+)")
def _make_subscription(cluster: Cluster, topic: str, name: str, body: Any, **_: Any) -> None:
    parts = _parts(cluster, topic)
    if all(name in part.subscriptions for part in parts):
        raise _Failed(409, "Subscription already exists for topic")
    is_latest = body is not None and body.get("ledgerId", 0) >= _BOUNDLESS
    for part in parts:
        part.subscription(name, from_earliest=not is_latest)


def _of_topic(cluster: Cluster, topic: str, name: str) -> Iterator[Subscription]:
    found = [part.subscriptions[name] for part in _parts(cluster, topic) if name in part.subscriptions]
    if not found:
        raise _Failed(404, "Subscription not found")
    yield from found


@_route("DELETE", _TOPIC + "/subscription/(?P<name>[^/]+)")
def _remove_subscription(cluster: Cluster, topic: str, name: str, query: dict[str, str], **_: Any) -> None:
    found = [*_of_topic(cluster, topic, name)]
    if any(one.consumers for one in found) and query.get("force") != "true":
        raise _Failed(412, "Subscription has active connected consumers")
    for one in found:
        one.topic.subscriptions.pop(name, None)
        one.close()


@_route("POST", _TOPIC + "/subscription/(?P<name>[^/]+)/skip_all")
def _clear(cluster: Cluster, topic: str, name: str, **_: Any) -> None:
    for one in _of_topic(cluster, topic, name):
        one.skip_all()


@_route("POST", _TOPIC + r"/subscription/(?P<name>[^/]+)/skip/(?P<messages>\d+)")
def _skip(cluster: Cluster, topic: str, name: str, messages: str, **_: Any) -> None:
    (one,) = _of_topic(cluster, topic, name)
    for _number in range(int(messages)):
        entry = next(
            (
                entry
                for entry in one.topic.log.all_after(one.cursor.mark_delete)
                if not one.cursor.is_acked(entry.position)
            ),
            None,
        )
        if entry is not None:
            one.cursor.acknowledge(entry.position)


# Policies of topics: last, since their names are any word behind a topic.


@_route("GET", _TOPIC + "/(?P<policy>[^/]+)")
def _policy_of_topic(cluster: Cluster, topic: str, policy: str, query: dict[str, str], **_: Any) -> Any:
    found = _policy_named(policy.removesuffix("Map"), of_namespace=False, query=query)
    own = cluster.topic_policies.get(topic, {}).get(_key(found))
    value = cluster.policy(topic, _key(found)) if query.get("applied") == "true" else own
    return httpx.Response(200, json=value) if value is not None else None


@_route("POST", _TOPIC + "/(?P<policy>[^/]+)")
def _set_of_topic(cluster: Cluster, topic: str, policy: str, query: dict[str, str], body: Any) -> None:
    found = _policy_named(policy, of_namespace=False, query=query)
    _parts(cluster, topic)
    _store(cluster.topic_policies.setdefault(topic, {}), found, query, body)


@_route("DELETE", _TOPIC + "/(?P<policy>[^/]+)")
def _unset_of_topic(cluster: Cluster, topic: str, policy: str, query: dict[str, str], **_: Any) -> None:
    _unset(cluster.topic_policies.get(topic, {}), _policy_named(policy, of_namespace=False, query=query))
