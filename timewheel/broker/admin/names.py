"""Names as paths of the admin API.

A name that is quoted wrongly reaches another topic or another endpoint: ``..`` as a topic's local name would turn a
call about a topic into a call about its namespace. So all paths are built here.
"""

from __future__ import annotations

from urllib.parse import quote, quote_plus, unquote_plus

from timewheel.core.errors import BadName

DOMAINS = ("persistent", "non-persistent")


def tenant_path(tenant: str) -> str:
    """Quote a tenant: ``acme`` -> ``acme``. BadName: it is empty, a dot name, or contains a slash."""
    return _segment("tenant", tenant)


def namespace_path(namespace: str) -> str:
    """Quote both parts of a namespace: ``acme/crm`` -> ``acme/crm``. BadName: it is not ``tenant/namespace``."""
    parts = namespace.split("/")
    if len(parts) != 2:
        raise BadName("namespace", namespace, "write it as tenant/namespace")
    return "/".join(_segment("namespace", part, namespace) for part in parts)


def topic_path(topic: str) -> str:
    """Quote all parts of a topic: ``persistent://acme/crm/reminders`` -> ``/persistent/acme/crm/reminders``.

    Raises:
        BadName: It is not a full name, or its last part contains a slash (4.0 accepts that, 4.2 refuses it).
    """
    domain, separator, rest = topic.partition("://")
    parts = rest.split("/")
    if not separator or domain not in DOMAINS or len(parts) != 3:
        raise BadName("topic", topic, "write it in full: persistent://tenant/namespace/topic")
    return f"/{domain}/" + "/".join(_segment("topic", part, topic) for part in parts)


def subscription_path(topic: str, subscription: str) -> str:
    """Build the path of a topic's subscription.

    The subscription is quoted twice, since brokers unquote this part twice (4.0.7 and 4.2.4: ``a+b`` quoted once
    becomes ``a b``, and ``a%b`` an error 500). They unquote the topic's name once.

    Raises:
        BadName: The topic's name is bad, or the subscription's is empty or a dot name.
    """
    if subscription in {"", ".", ".."}:
        raise BadName("subscription", subscription, "it is empty or a dot name")
    return f"{topic_path(topic)}/subscription/{_quoted(_quoted(subscription))}"


def subscription_of(cursor: str) -> str:
    """Return the subscription of a cursor, from the broker's name for it (broker-facts: names-of-cursors).

    A name that is not an encoded name stays as it is: a reader's cursor is listed under its plain name.
    """
    decoded = unquote_plus(cursor)
    # As Java's URLEncoder writes it, which differs from Python's encoding in two characters.
    return decoded if quote_plus(decoded, safe="*").replace("~", "%7E") == cursor else cursor


def _segment(kind: str, part: str, whole: str | None = None) -> str:
    name = part if whole is None else whole
    if part in {"", ".", ".."}:
        raise BadName(kind, name, "a part of it is empty or a dot name")
    if "/" in part:
        raise BadName(kind, name, "it has a slash")
    return _quoted(part)


def _quoted(part: str) -> str:
    try:
        return quote(part, safe="")
    except UnicodeEncodeError as error:
        raise BadName("name", part, "half of a character (a lone surrogate) is in it, which no broker takes") from error
