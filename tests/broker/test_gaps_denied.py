"""`timewheel gaps` by roles that may see some topics and not others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.broker.test_gaps import run
from tests.support.tokens import token_for
from timewheel.broker.admin.client import AdminClient

if TYPE_CHECKING:
    import subprocess

    from tests.support.secured import Secured


def test_a_role_sees_what_it_may_and_is_told_the_rest(secured: Secured) -> None:
    def client(role: str) -> AdminClient:
        return AdminClient(secured.broker.admin_url, token=token_for(role), hooks=(lambda _: None,))

    def told(role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(secured.broker, *arguments, "--token", token_for(role))

    with client("admin") as root:
        assert root.tenants.create("gaps-own", admin_roles=["ops"])
        assert root.tenants.create("gaps-other", admin_roles=["others"])
        for namespace in ("gaps-own/crm", "gaps-other/crm"):
            assert root.namespaces.create(namespace)
            topic = f"persistent://{namespace}/t"
            root.topics.create_unpartitioned(topic)
            root.subscriptions.create(topic, "billing")

    both = told("ops", "persistent://gaps-own/crm/t", "persistent://gaps-other/crm/t", "--fail-at", "alarm")
    assert both.returncode == 1, "not all was seen"
    assert "all is well with 1 subscription of 1 topic or partition; 1 target not seen" in both.stdout
    assert "Not seen: persistent://gaps-other/crm/t (" in both.stdout
    unasked = told("ops", "persistent://gaps-own/crm/t", "gaps-none", "gaps-other/crm")
    assert unasked.returncode == 1, "what was named and not seen is no success, whatever --fail-at"
    assert "1 subscription of 1 topic or partition; 2 targets not seen" in unasked.stdout
    assert "gaps-none (there is no such tenant)" in " ".join(unasked.stdout.split())
    other = told("ops", "gaps-other")
    assert (other.returncode, "the token's role is 'ops'" in other.stderr) == (1, True)
    own = told("ops", "gaps-own", "--fail-at", "alarm")
    assert (own.returncode, "all is well" in own.stdout) == (0, True), own.stderr
    assert "since this role may not read the broker's settings" in own.stdout
    everything = told("ops", "--all")
    assert everything.returncode == 1
    assert "only a superuser may list them" in everything.stderr
    root_sees = told("admin", "--all", "--fail-at", "alarm", "--json")
    assert root_sees.returncode == 0, root_sees.stderr
    topics = {one["topic"] for one in json.loads(root_sees.stdout)["subscriptions"]}
    assert {"persistent://gaps-own/crm/t", "persistent://gaps-other/crm/t"} <= topics
