"""Roles, tokens and TLS on a real broker: what a role may not do or see is said, with the right that it takes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.behaviour.test_shadow_look import plan_for
from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import Stage, plan_of
from tests.support.command_line import timewheel, well
from tests.support.secured import Secured
from tests.support.tokens import token_for
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.http import tls_context
from timewheel.broker.admin.policies import MESSAGE_TTL_S
from timewheel.broker.protocol.consumers import EntryAcknowledger, EntryReader
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BrokerLost, BrokerRefused
from timewheel.broker.protocol.session import Authentication
from timewheel.cli.connecting import Access
from timewheel.core.connection import DEFAULTS, Connection, Secret
from timewheel.core.errors import AdminDenied, AdminUnreachable
from timewheel.core.plan import Native, Plan, Tiered
from timewheel.core.planfile import save_plan
from timewheel.errors import NothingToSample
from timewheel.hooks import Event
from timewheel.inspect.profile import profile_of
from timewheel.provision.provisioning import ensure
from timewheel.testing import eventually
from timewheel.watch import check

LIFE_S = 20  # of a token: long enough for the process to start with it, on a busy machine too


def admin_of(secured: Secured, role: str, hook: Callable[[Event], None] = lambda _: None) -> AdminClient:
    return AdminClient(secured.broker.admin_url, token=token_for(role), hooks=(hook,))


def told(secured: Secured, role: str, *words: str, service: bool = False) -> subprocess.CompletedProcess[str]:
    """What a command says to a role."""
    urls = ["--admin-url", secured.broker.admin_url]
    urls += ["--service-url", secured.broker.service_url] if service else []
    return timewheel(*words, *urls, "--token", token_for(role), timeout=300)


def own_and_other(root: AdminClient, name: str) -> tuple[str, str]:
    """A namespace of a tenant that the role `ops` administers, and one of a tenant of others."""
    for end, role in (("own", "ops"), ("other", "others")):
        assert root.tenants.create(f"{name}-{end}", admin_roles=[role])
        assert root.namespaces.create(f"{name}-{end}/crm")
    return f"{name}-own/crm", f"{name}-other/crm"


def test_a_token_opens_what_its_role_may_and_nothing_else(secured: Secured) -> None:
    with admin_of(secured, "admin") as admin:
        assert admin.tenants.create("acme", admin_roles=["ops"]) is True
        assert admin.tenants.create("other") is True

    with AdminClient(secured.broker.admin_url, token=lambda: token_for("ops") + "\n") as ops:
        assert ops.namespaces.create("acme/crm") is True
        assert ops.topics.create("persistent://acme/crm/reminders", 2) is True
        assert ops.subscriptions.create("persistent://acme/crm/reminders", "billing") is True
        with pytest.raises(AdminDenied) as denied:
            ops.namespaces.create("other/crm")
        with pytest.raises(AdminDenied, match="superuser"):
            ops.tenants.list()

    assert denied.value.endpoint == "PUT /admin/v2/namespaces/other/crm"
    assert "the token's role is 'ops'" in denied.value.reason
    assert "admin of tenant 'other'" in denied.value.reason


def test_without_the_right_to_read_settings_there_are_none_and_a_warning(secured: Secured) -> None:
    warnings: list[Event] = []
    with admin_of(secured, "ops", warnings.append) as ops:
        assert ops.brokers.runtime_configuration() is None
        with pytest.raises(AdminDenied):
            ops.brokers.is_healthy()  # not allowed to ask is not the same as sick
    assert [(warning.name, warning.level) for warning in warnings] == [("broker_configuration_denied", "warning")]
    assert warnings[0].fields["endpoint"] == "GET /admin/v2/brokers/configuration/runtime"


def test_token_and_tls_work_together_and_an_unknown_authority_is_refused(secured: Secured) -> None:
    tls = tls_context(ca_path=secured.ca_path)

    with AdminClient(secured.tls_url, token=token_for("admin"), tls=tls) as admin:
        assert admin.brokers.is_healthy() is True
        assert "public" in admin.tenants.list()
    with AdminClient(secured.tls_url, token=token_for("ops"), tls=tls) as ops, pytest.raises(AdminDenied):
        ops.tenants.list()
    with AdminClient(secured.tls_url, token=token_for("admin"), retry_for_s=0) as stranger:  # noqa: SIM117
        with pytest.raises(AdminUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            stranger.tenants.list()


def test_gaps_show_what_a_role_may_see_and_name_the_rest(secured: Secured) -> None:
    with admin_of(secured, "admin") as root:
        own_topic, other_topic = (f"persistent://{namespace}/t" for namespace in own_and_other(root, "gaps"))
        for topic in (own_topic, other_topic):
            root.topics.create_unpartitioned(topic)
            root.subscriptions.create(topic, "billing")

    both = told(secured, "ops", "gaps", own_topic, other_topic, "--fail-at", "alarm")
    assert both.returncode == 1, "not all was seen"
    assert "all is well with 1 subscription of 1 topic or partition; 1 target not seen" in both.stdout
    assert f"Not seen: {other_topic} (" in both.stdout
    unasked = told(secured, "ops", "gaps", own_topic, "gaps-none", "gaps-other/crm")
    assert unasked.returncode == 1, "what was named and not seen is no success, whatever --fail-at"
    assert "1 subscription of 1 topic or partition; 2 targets not seen" in unasked.stdout
    assert "gaps-none (there is no such tenant)" in " ".join(unasked.stdout.split())
    other = told(secured, "ops", "gaps", "gaps-other")
    assert (other.returncode, "the token's role is 'ops'" in other.stderr) == (1, True)
    own = told(secured, "ops", "gaps", "gaps-own", "--fail-at", "alarm")
    assert (own.returncode, "all is well" in own.stdout) == (0, True), own.stderr
    assert "since this role may not read the broker's settings" in own.stdout
    everything = told(secured, "ops", "gaps", "--all")
    assert everything.returncode == 1
    assert "only a superuser may list them" in everything.stderr
    root_sees = well(told(secured, "admin", "gaps", "--all", "--fail-at", "alarm", "--json"))
    assert {own_topic, other_topic} <= {one["topic"] for one in json.loads(root_sees.stdout)["subscriptions"]}


def test_what_a_role_may_not_provision_or_check_is_named_with_the_step_that_needs_it(secured: Secured) -> None:
    plan = Plan(
        due_topic="persistent://umbrella/crm/reminders",
        subscriptions=("billing",),
        scheme=Tiered(window_ms=86_400_000, tiers_ms=(86_400_000,)),
        holding_namespace="umbrella/held",
    )
    native = replace(plan, scheme=Native(), holding_namespace=None)
    events: list[Event] = []
    admin, ops, stranger = (admin_of(secured, role, events.append) for role in ("admin", "ops", "stranger"))
    with admin, ops, stranger:
        assert admin.tenants.create("umbrella", admin_roles=["ops"])

        with pytest.raises(AdminDenied) as denied:
            ensure(stranger, plan, now_ms=now_ms(), create_namespaces=True)
        assert "role is 'stranger'" in str(denied.value)
        assert "admin of tenant 'umbrella'" in str(denied.value)
        assert "while looking into namespace umbrella/crm" in str(denied.value)

        # A tenant admin is enough (broker-facts: policies-of-topics); what takes a superuser is guessed, and said.
        report = ensure(ops, plan, now_ms=now_ms(), create_namespaces=True)
        assert {str(step) for step in report.steps[:2]} == {"create namespace"}
        assert ensure(ops, plan, now_ms=now_ms()).steps == ()
        assert {event.name for event in events} == {"broker_configuration_denied"}

        with pytest.raises(AdminDenied):
            check(stranger, native, profile_of(stranger))
        events.clear()
        with pytest.raises(NothingToSample, match="stores an entry"):
            check(ops, native, profile_of(ops))
        # Its limit takes a superuser: the version's default is taken, and that is said.
        assert {event.name for event in events} == {"broker_configuration_denied"}


def test_status_and_whereis_say_what_a_role_may_not_see(secured: Secured, tmp_path: Path) -> None:
    with admin_of(secured, "admin") as root:
        own, other = own_and_other(root, "looks")
        plan = replace(plan_of(), due_topic=f"persistent://{own}/t", holding_namespace=other)
        ensure(root, plan, now_ms=now_ms())
    save_plan(plan, tmp_path / "plan.toml")
    file = str(tmp_path / "plan.toml")

    status = told(secured, "ops", "status", file, "--fail-late", "1m", "--json")
    assert status.returncode == 1, status.stdout + status.stderr
    facts = json.loads(status.stdout)
    assert [one["topic"] for one in facts["topics"]] == [plan.due_topic]
    not_seen = {one["what"] for one in facts["unseen"]}
    assert f"topics of earlier plans in {other}" in not_seen
    assert {what.rpartition("/")[0] for what in not_seen if what.startswith("p")} == {f"persistent://{other}"}

    sought = told(secured, "ops", "whereis", file, "x", "--sent-at", str(now_ms()), "--due", str(now_ms() + 30_000))
    assert sought.returncode == 1, sought.stdout + sought.stderr
    assert "not found" in sought.stdout
    assert f"not seen persistent://{other}/" in sought.stdout


def test_the_doctor_says_what_a_role_does_not_see(secured: Secured, tmp_path: Path) -> None:
    with admin_of(secured, "admin") as root:
        own, _ = own_and_other(root, "doctor")
        plan = Plan(due_topic=f"persistent://{own}/reminders", subscriptions=("billing",))
        ensure(root, plan, now_ms=now_ms())
        root.topic_policies.remove(plan.due_topic, MESSAGE_TTL_S)
        root.namespaces.set_policy(own, MESSAGE_TTL_S, 60)
    save_plan(plan, tmp_path / "plan.toml")

    def seen(role: str) -> tuple[int, dict[str, Any]]:
        answer = told(secured, role, "doctor", str(tmp_path / "plan.toml"), "--json")
        return answer.returncode, json.loads(answer.stdout)

    status, ops = seen("ops")
    assert status == 4
    notes = [one["read"] for one in ops["findings"] if one["slug"] == "not-seen"]
    assert [note.partition(":")[0] for note in notes] == [
        "the broker's settings",
        "the list of bookies",
        "the brokers' list and health",
    ]
    assert {"ttl-too-short", "one-copy-perhaps"} <= {one["slug"] for one in ops["findings"]}
    assert {"low-gap-limit", "one-copy"} <= set(ops["left_out"])
    status, stranger = seen("stranger")
    assert (status, stranger["is_blind"], stranger["errors"]) == (1, True, 0)


def test_a_shadow_names_what_a_role_may_not_see(secured: Secured, tmp_path: Path) -> None:
    with admin_of(secured, "admin") as root:
        own, _ = own_and_other(root, "shadow")
        topic = f"persistent://{own}/t"
        root.topics.create_unpartitioned(topic)
        root.subscriptions.create(topic, "billing")
    save_plan(plan_for(topic), tmp_path / "plan.toml")
    plan_file = str(tmp_path / "plan.toml")

    def shadow(role: str, *words: str) -> subprocess.CompletedProcess[str]:
        return told(secured, role, "shadow", *words, plan_file, service=True)

    survey = well(shadow("ops", "start", "--dry-run", "--json"))
    (unseen,) = [one for one in json.loads(survey.stdout)["findings"] if one["subject"] == "the broker"][:1]
    assert (unseen["slug"], unseen["cure"]) == ("not-seen-of-broker", "it takes a superuser's role")
    stranger = shadow("stranger", "start", "--dry-run")
    assert stranger.returncode == 1
    assert "the token's role is 'stranger'" in stranger.stderr
    for look in ("status", "verify"):
        done = shadow("ops", look)
        assert done.returncode == 1, done.stdout
        assert ".tw.journal" in done.stderr, "it is not there: nobody has begun"
        assert f"to start one: timewheel shadow start {plan_file}" in done.stderr
    well(shadow("ops", "start"))
    for look in ("status", "verify"):
        done = shadow("ops", look)
        assert done.returncode == (3 if look == "status" else 0), done.stderr + done.stdout
    assert "no mover" in shadow("ops", "status").stdout


@pytest.mark.short
@pytest.mark.timeout(240)
def test_a_relay_tells_that_its_token_has_expired_and_goes_on_with_the_next(secured: Secured, tmp_path: Path) -> None:
    """The broker says nothing, and an exception where the client asks for the token would end the process."""
    token_file = tmp_path / "token"
    expires_s = int(time.time()) + LIFE_S
    token_file.write_text(token_for("admin", expires_s=expires_s))
    with (
        Stage(secured.broker, plan_of()) as stage,
        RelayProcess(secured.broker, stage.plan, tmp_path, more=["--token-file", str(token_file)]) as relay,
    ):
        relay.await_ready()
        token_file.unlink()
        eventually(lambda: relay.told("connection_lost"), LIFE_S + 40, message=relay.log.read_text())
        assert relay.told("token_unreadable")
        (expired,) = relay.told("token_expired")
        assert (expired["source"], expired["expired_at_ms"]) == (str(token_file), expires_s * 1000)
        assert relay.status()["ready"] is False
        assert relay.process.poll() is None

        stage.hold([2_100])
        assert stage.copies() == {}, "nobody is there to move it"
        token_file.write_text(token_for("admin"))
        relay.await_ready()
        stage.await_due(1)
        assert relay.told("connection_back")
        assert relay.terminate() == 0, relay.log.read_text()


HOUR_MS = 3_600_000
TIMEOUT_MS = 20_000
GROUP = "billing"


@pytest.fixture
def delivered_later(secured: Secured, topic: str) -> tuple[str, int]:
    """A topic with a subscription and one delayed message, and when that is to be delivered."""
    with AdminClient(secured.broker.admin_url, token=token_for("admin")) as admin:
        admin.topics.create_unpartitioned(topic)
        admin.subscriptions.create(topic, GROUP)
    deliver_at_ms = now_ms() + HOUR_MS
    store_delayed(secured, topic, deliver_at_ms)
    return topic, deliver_at_ms


def store_delayed(secured: Secured, topic: str, deliver_at_ms: int) -> None:
    client = pulsar.Client(
        secured.broker.service_url,
        authentication=pulsar.AuthenticationToken(token_for("admin")),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    client.create_producer(topic).send(b"x", deliver_at=deliver_at_ms)
    client.close()


def dialer_of(secured: Secured, **said: Any) -> Dialer:
    """As a command makes it, of what its connection's file says."""
    told: list[Event] = []
    given: dict[str, Any] = {"service_url": secured.tls_service_url, "tls_trust_certs_file_path": Path(secured.ca_path)}
    return Access(Connection(**{**given, **said}).over(DEFAULTS), (told.append,)).dialer()


def identity_of(secured: Secured, role: str) -> dict[str, Any]:
    identity = secured.certificate_of(role)
    return {
        "tls_certificate_file_path": Path(identity.certificate_path),
        "tls_private_key_file_path": Path(identity.key_path),
    }


@pytest.mark.parametrize("way", ["token", "token file", "certificate", "token without TLS"])
def test_whoever_the_connection_says_we_are_reads_and_acknowledges(
    secured: Secured, delivered_later: tuple[str, int], way: str, tmp_path: Path
) -> None:
    topic, deliver_at_ms = delivered_later
    (tmp_path / "token").write_text(token_for("admin"))
    ways: dict[str, dict[str, Any]] = {
        "token": {"token": Secret(token_for("admin"))},
        "token file": {"token_file": tmp_path / "token"},
        "certificate": identity_of(secured, "admin"),
        "token without TLS": {"token": Secret(token_for("admin")), "service_url": secured.broker.service_url},
    }
    dialer = dialer_of(secured, **ways[way])
    with EntryReader(dialer, topic) as reader:
        (entry,) = reader.read(TIMEOUT_MS)
    with EntryAcknowledger(dialer, topic, GROUP) as acknowledger:
        acknowledger.acknowledge([entry.position])

    assert entry.deliver_at_ms == deliver_at_ms
    with AdminClient(secured.broker.admin_url, token=token_for("admin")) as admin:
        assert admin.topics.stats(topic, precise_backlog=True).subscriptions[GROUP].backlog == 0


@pytest.mark.parametrize("way", ["token", "certificate"])
def test_a_role_without_the_right_is_refused_by_name(
    secured: Secured, delivered_later: tuple[str, int], way: str
) -> None:
    said = {"token": Secret(token_for("guest"))} if way == "token" else identity_of(secured, "guest")
    with pytest.raises(BrokerRefused, match="AuthorizationError") as refused:
        EntryReader(dialer_of(secured, **said), delivered_later[0])
    assert not refused.value.is_passing


def test_a_token_that_is_none_is_refused_and_not_repeated(secured: Secured, delivered_later: tuple[str, int]) -> None:
    forged = token_for("admin")[:-8] + "AAAAAAAA"
    with pytest.raises(BrokerRefused, match=r"refused to take the connection .AuthenticationError.") as refused:
        EntryReader(dialer_of(secured, token=Secret(forged)), delivered_later[0])
    assert forged not in str(refused.value)


def test_a_broker_whose_certificate_names_another_host_is_not_spoken_to(
    secured: Secured, delivered_later: tuple[str, int]
) -> None:
    url = secured.tls_service_url.replace("127.0.0.1", "localhost")
    with pytest.raises(BrokerLost, match="use a host that its certificate names"):
        EntryReader(dialer_of(secured, service_url=url, token=Secret(token_for("admin"))), delivered_later[0])
    unchecked = dialer_of(secured, service_url=url, token=Secret(token_for("admin")), tls_validate_hostname=False)
    with EntryReader(unchecked, delivered_later[0]) as reader:
        assert len(reader.read(TIMEOUT_MS)) == 1


@pytest.mark.parametrize("is_renewed", [True, False])
def test_a_token_that_expires_is_asked_for_again_and_without_a_newer_one_it_ends(
    secured: Secured, delivered_later: tuple[str, int], is_renewed: bool
) -> None:
    topic, deliver_at_ms = delivered_later
    expires_s = int(time.time()) + 4
    asked: list[str] = []

    def token() -> str:
        is_newer = is_renewed and time.time() >= expires_s
        asked.append(token_for("admin") if is_newer else token_for("admin", expires_s=expires_s))
        return asked[-1]

    dialer = Dialer(secured.broker.service_url, authentication=Authentication.by_token(token))
    with EntryReader(dialer, topic) as reader:
        assert len(reader.read(TIMEOUT_MS)) == 1
        opened = len(asked)
        if not is_renewed:
            with pytest.raises((BrokerLost, BrokerRefused)):
                eventually(lambda: reader.read(100) and False, 30)
            return
        # The broker asks within a second of the time, and closes the connection if it is not answered.
        eventually(lambda: reader.read(100) == [] and len(asked) > opened, 60)
        eventually(lambda: reader.read(100) == [] and time.time() > expires_s + 4, 60)
        store_delayed(secured, topic, deliver_at_ms + 1)
        (entry,) = reader.read(TIMEOUT_MS)
        assert entry.deliver_at_ms == deliver_at_ms + 1
