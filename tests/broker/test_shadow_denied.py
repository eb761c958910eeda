"""A shadow is looked at by roles that may not see all: what they may not is named, with the right that it needs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.broker.test_shadow_look import plan_for, run, saved
from tests.support.tokens import token_for
from timewheel.broker.admin.client import AdminClient

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.support.secured import Secured


def test_what_a_role_may_not_see_is_named(secured: Secured, tmp_path: Path) -> None:
    topic = "persistent://shadow-own/crm/t"
    with AdminClient(secured.broker.admin_url, token=token_for("admin"), hooks=(lambda _: None,)) as root:
        assert root.tenants.create("shadow-own", admin_roles=["ops"])
        assert root.namespaces.create("shadow-own/crm")
        root.topics.create_unpartitioned(topic)
        root.subscriptions.create(topic, "billing")
    plan_file = saved(plan_for(topic), tmp_path)

    def told(role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(secured.broker, *arguments, "--token", token_for(role))

    survey = told("ops", "start", "--dry-run", "--json", plan_file)
    assert survey.returncode == 0, survey.stderr + survey.stdout
    (unseen,) = [one for one in json.loads(survey.stdout)["findings"] if one["subject"] == "the broker"][:1]
    assert (unseen["slug"], unseen["cure"]) == ("not-seen-of-broker", "it takes a superuser's role")
    stranger = told("stranger", "start", "--dry-run", plan_file)
    assert stranger.returncode == 1
    assert "the token's role is 'stranger'" in stranger.stderr
    for look in ("status", "verify"):
        done = told("ops", look, plan_file)
        assert done.returncode == 1, done.stdout
        assert ".tw.journal" in done.stderr, "it is not there: nobody has begun"
        assert f"to start one: timewheel shadow start {plan_file}" in done.stderr
    begun = told("ops", "start", plan_file)
    assert begun.returncode == 0, begun.stderr
    for look in ("status", "verify"):
        done = told("ops", look, plan_file)
        assert done.returncode == (3 if look == "status" else 0), done.stderr + done.stdout
    assert "nobody moves" in told("ops", "status", plan_file).stdout
