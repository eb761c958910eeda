"""What stands in deploy/: every file is what its reader takes, and every command in it is one of ours."""

from __future__ import annotations

import configparser
import io
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dockerfile_parse
import kubernetes_validate
import pytest
import typer
import yaml

from tests.support import overlay
from tests.support.checkout import ROOT, files
from tests.support.processes import ran
from timewheel.cli.app import app
from timewheel.cli.relay_processes import GRACE_MS
from timewheel.core.connection_file import load_connection
from timewheel.core.durations import parse_duration
from timewheel.core.plan import Calendar, Plan
from timewheel.core.planfile import parse_plan

DEPLOY = ROOT / "deploy"
KUBERNETES_FOLDER = DEPLOY / "kubernetes"
BASE = KUBERNETES_FOLDER / "base"
MONITORING = KUBERNETES_FOLDER / "with-monitoring"
APPLIED = ("base", "with-monitoring", "shadow", "calendar", "embedded")
"""Folders that `kubectl apply -k` is given; `topics` is a part of them."""
FOLDERS = sorted(path.parent for path in KUBERNETES_FOLDER.glob("*/kustomization.yaml"))
SYSTEMD = DEPLOY / "systemd"
UNIT = SYSTEMD / "timewheel-relay.service"
OURS = "/opt/timewheel/bin/timewheel"
KUBERNETES = "1.32"  # the oldest that is tested; what is used here is in all later ones, too


def documents(folder: Path) -> list[dict[str, Any]]:
    return [found for path in sorted(folder.glob("*.yaml")) for found in yaml.safe_load_all(path.read_text()) if found]


def kind(name: str) -> list[dict[str, Any]]:
    return [found for folder in FOLDERS for found in documents(folder) if found["kind"] == name]


def the(name: str, of: str = "timewheel-relay") -> dict[str, Any]:
    (found,) = [one for one in kind(name) if one["metadata"]["name"] == of]
    return found


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod's specification, by the name of what makes it."""
    for found in (*kind("StatefulSet"), *kind("Deployment"), *kind("CronJob"), *kind("Job")):
        made = found["spec"]["jobTemplate"] if found["kind"] == "CronJob" else found
        yield found["metadata"]["name"], made["spec"]["template"]["spec"]


def given(arguments: list[str]) -> dict[str, Any]:
    """What the command line makes of it; a usage error if there is no such command or option."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("timewheel", list(arguments))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    found: dict[str, Any] = context.params
    return found


def commands() -> dict[str, list[str]]:
    """All that are run, by who runs them; the unit's path of the command is left out."""
    found = {
        name: [str(word) for word in pod["containers"][0]["args"]]
        for name, pod in pods()
        if "command" not in pod["containers"][0]
    }
    for path in sorted(SYSTEMD.glob("*.service")):
        program, *words = shlex.split(unit(path)["Service"]["ExecStart"])
        if program == OURS:
            found[path.name] = words
    return found


def unit(path: Path = UNIT) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return {section: dict(parser[section]) for section in parser.sections()}


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(found, id=f"{folder.name}-{found['kind']}-{found['metadata']['name']}")
        for folder in FOLDERS
        for found in documents(folder)
        if found["kind"] not in ("Kustomization", "ServiceMonitor")
    ],
)
def test_every_manifest_is_what_kubernetes_takes(found: dict[str, Any]) -> None:
    kubernetes_validate.validate(found, KUBERNETES, strict=True)


def selects(name: str, of: str) -> bool:
    """Whether a Service, a Deployment or the like selects the pods of what has this name."""
    labels = {
        found["metadata"]["name"]: found["spec"]["template"]["metadata"]["labels"]
        for found in (*kind("Deployment"), *kind("StatefulSet"))
    }
    selector = the(name, of)["spec"]["selector"]
    return bool(selector.get("matchLabels", selector).items() <= labels[of].items())


def is_scraped(of: str) -> bool:
    """Whether a ServiceMonitor finds the Service of this name, and asks the door that it opens."""
    monitor, service = the("ServiceMonitor", of), the("Service", of)
    (end,), (door,) = monitor["spec"]["endpoints"], service["spec"]["ports"]
    is_found = monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    return is_found and (end["port"], end["path"]) == (door["name"], "/metrics")


def test_the_exporter_is_selected_and_scraped() -> None:
    assert selects("Deployment", "timewheel-exporter")
    assert selects("Service", "timewheel-exporter")
    assert is_scraped("timewheel-exporter")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_kustomize_is_told_of_is_all_there_is(folder: Path) -> None:
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    generated = (name for one in told.get("configMapGenerator", ()) for name in one["files"])
    named = {name.rpartition("=")[2] for name in (*told["resources"], *generated) if not name.startswith("../")}
    on_disk = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert on_disk - named <= {"kustomization.yaml", "connection.toml"}, "what it does not name is not applied"
    assert named <= on_disk


@pytest.mark.parametrize("component", ["relay", "exporter", "shadow"])
def test_the_pages_are_open_to_the_namespace_and_to_prometheus_alone(component: str) -> None:
    policy = the("NetworkPolicy", of="timewheel-pages")["spec"]
    (chosen,) = policy["podSelector"]["matchExpressions"]
    assert component in chosen["values"]
    (rule,) = policy["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["http"]
    own, others = rule["from"]
    assert own == {"podSelector": {}}
    assert list(others) == ["namespaceSelector"]


def test_the_schemas_find_a_slip() -> None:
    slip = the("StatefulSet")
    slip["spec"]["template"]["spec"]["terminationGracePeriod"] = 120
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(slip, KUBERNETES, strict=True)


def built(name: str | Path) -> list[dict[str, Any]]:
    """What `kubectl apply -k` would apply; nothing where there is no kubectl."""
    if shutil.which("kubectl") is None:
        return []
    command = ["kubectl", "kustomize", str(KUBERNETES_FOLDER / name)]
    done = ran(command)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("base", "ConfigMap CronJob Job NetworkPolicy PodDisruptionBudget Service StatefulSet"),
        (
            "with-monitoring",
            "ConfigMap CronJob Deployment Job NetworkPolicy PodDisruptionBudget Service Service "
            "ServiceMonitor ServiceMonitor StatefulSet",
        ),
        ("shadow", "ConfigMap CronJob Job NetworkPolicy PodDisruptionBudget Service StatefulSet"),
        ("calendar", "ConfigMap CronJob Job"),
        ("embedded", "ConfigMap ConfigMap Deployment Job"),
    ],
)
def test_kustomize_makes_one_set_of_them(name: str, kinds: str) -> None:
    """By kubectl where it is; by hand it must name all files, which the test above holds it to."""
    made = built(name)
    if not made:
        return
    assert sorted(found["kind"] for found in made) == kinds.split()
    configs = {found["metadata"]["name"] for found in made if found["kind"] == "ConfigMap"}
    for found in made:
        assert "namespace" not in found["metadata"]
        if found["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(found, KUBERNETES, strict=True)
        mounted = re.findall(r"'configMap': {'name': '([^']+)'}", str(found))
        assert {*mounted} <= configs, "a name with the suffix that all have"


def test_all_of_them_fit_into_one_namespace() -> None:
    """No name stands twice, and what selects the relays does not select the shadows."""
    made = [found for name in APPLIED[1:] for found in built(name)]
    names = [(found["kind"], found["metadata"]["name"]) for found in made]
    assert len(names) == len({*names})
    pods_of = {
        found["metadata"]["name"]: found["spec"]["template"]["metadata"]["labels"]
        for found in made
        if found["kind"] in ("StatefulSet", "Deployment", "Job")
    }
    for found in made:
        if found["kind"] in ("Service", "PodDisruptionBudget", "StatefulSet", "Deployment"):
            selector = found["spec"]["selector"].get("matchLabels", found["spec"]["selector"])
            selected = [name for name, labels in pods_of.items() if selector.items() <= labels.items()]
            assert len(selected) == 1, found["metadata"]["name"]


def plan_in(made: list[dict[str, Any]]) -> Plan:
    """The plan that every pod and job takes that names one: a file of the ConfigMap that it mounts."""
    (files,) = [one["data"] for one in made if one["metadata"]["name"].startswith("timewheel-plans")]
    named = {*re.findall(r"/etc/timewheel/plans/[^'\s]+", str([one for one in made if one["kind"] != "ConfigMap"]))}
    assert named == {f"/etc/timewheel/plans/{name}" for name in files}
    (text,) = files.values()
    return parse_plan(text)


@pytest.mark.parametrize("name", ["base", "with-monitoring", "shadow", "calendar", "embedded"])
def test_the_pages_overlay_brings_a_plan_and_an_image_to_every_pod(name: str, tmp_path: Path) -> None:
    """By nothing but its own files, and so that several fit into one namespace."""
    text, first = overlay.text().replace("kubernetes/shadow", f"kubernetes/{name}"), None
    for own in ("invoices", "receipts"):
        made = built(overlay.write(tmp_path / own, text.replace("invoices", own), overlay.example(own, name)))
        if not made:
            return
        assert plan_in(made).due_topic == f"persistent://acme/crm/{own}"
        if name != "embedded":  # its image is a service's
            images = {*re.findall(r"'image': '([^']+)'", str(made))}
            assert images == {"registry.acme.example/timewheel:0.1.0"}
        selected = [str(one["spec"].get("selector")) for one in made if one["kind"] in ("Service", "StatefulSet")]
        assert all(f"'app.kubernetes.io/instance': '{own}'" in one for one in selected)
        names = {(one["kind"], one["metadata"]["name"]) for one in made}
        assert first is None or not first & names
        first = names


def test_what_the_page_types_about_the_overlay_is_there(tmp_path: Path) -> None:
    """By kubectl's own words: every resource that a line names is made, and what runs in a pod is one of ours."""
    made = built(overlay.write(tmp_path / "invoices", overlay.text(), overlay.example("invoices", "shadow")))
    there = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in made}
    lines = [shlex.split(line) for line in overlay.lines()]
    named = {name for line in overlay.lines() for name in re.findall(r"\b(?:job|statefulset|cronjob)/[\w-]+", line)}
    assert len(named) >= 3
    assert not made or named <= there
    (inside,) = [words[words.index("--") + 1 :] for words in lines if "--" in words]
    assert inside[0] == "timewheel"
    assert given(inside[1:])


def test_a_warning_is_no_alarm() -> None:
    """A broker that stores few gaps is one, and does not change by itself."""
    assert given(commands()["timewheel-doctor"])["fail_at"] == "error"


@pytest.mark.parametrize("who", sorted(commands()))
def test_every_command_is_one_of_ours(who: str) -> None:
    assert given(commands()[who])


def test_an_option_that_there_is_not_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        given([*commands()["timewheel-relay"], "--ready-port=8080"])


def test_a_relay_has_the_time_to_drain_that_it_was_promised() -> None:
    """And for the calls of the client that are under way beyond it."""
    pod = dict(pods())["timewheel-relay"]
    service = unit()["Service"]
    for who, grace_s in (
        ("timewheel-relay", pod["terminationGracePeriodSeconds"]),
        (UNIT.name, int(service["TimeoutStopSec"].removesuffix("s"))),
    ):
        drain_ms = parse_duration(given(commands()[who])["drain"])
        assert grace_s * 1_000 >= drain_ms + GRACE_MS, who


def test_probes_ask_the_pages_at_the_door_that_the_command_opens() -> None:
    pod = dict(pods())["timewheel-relay"]
    (container,) = pod["containers"]
    host, _, port = given(container["args"])["http"].rpartition(":")
    assert host == "0.0.0.0", "a probe comes from outside of the pod"
    (door,) = container["ports"]
    assert door["containerPort"] == int(port)
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/livez", "liveness": "/livez", "readiness": "/readyz",
    }  # fmt: skip
    assert {probe["port"] for probe in probes.values()} == {door["name"]}
    (served,) = the("Service")["spec"]["ports"]
    assert served["targetPort"] == door["name"]
    assert is_scraped("timewheel-relay")


def test_whatever_selects_the_relay_selects_its_pods() -> None:
    relay = the("StatefulSet")
    labels = relay["spec"]["template"]["metadata"]["labels"]
    spread = relay["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert all(one["labelSelector"]["matchLabels"].items() <= labels.items() for one in spread)
    assert all(selects(name, "timewheel-relay") for name in ("StatefulSet", "Service", "PodDisruptionBudget"))
    assert relay["spec"]["serviceName"] == the("Service")["metadata"]["name"]
    assert the("PodDisruptionBudget")["spec"]["maxUnavailable"] < relay["spec"]["replicas"]


@pytest.mark.parametrize(("who", "pod"), list(pods()), ids=[name for name, _ in pods()])
def test_no_pod_can_do_more_than_it_needs(who: str, pod: dict[str, Any]) -> None:
    del who
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    own = container["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert {"requests", "limits"} <= container["resources"].keys()
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == mounted.keys()
    paths = [word.rpartition("=")[2] for word in container["args"] if "/etc/" in word]
    assert [path for path in paths if not path.startswith(tuple(mounted.values()))] == []


def test_the_files_that_the_commands_name_are_there_and_right() -> None:
    plans = {folder: plan_in(built(folder)) for folder in APPLIED if built(folder)}
    if plans:
        assert isinstance(plans["calendar"].scheme, Calendar)
        assert plans["base"].relay == plans["with-monitoring"].relay == "service"
        assert plans["shadow"].intake
        assert plans["embedded"].relay == "embedded"
    for path, token_file in ((BASE / "connection.toml", BASE / "token"), (SYSTEMD / "connection.toml", None)):
        connection = load_connection(path)
        assert connection.token is None, "it names a file"
        assert connection.token_file == token_file


def test_without_a_calendar_nothing_rolls() -> None:
    """A job of a plan that was taken out failed each quarter of an hour."""
    cron = [found["metadata"]["name"] for found in documents(BASE) if found["kind"] == "CronJob"]
    assert cron == ["timewheel-doctor"]
    assert [path.name for path in (BASE / "plans").iterdir()] == ["reminders.toml"]


def test_the_units_are_ones_for_systemd(tmp_path: Path) -> None:
    """By systemd's own check where that is; a program at the unit's path it takes for granted."""
    for name in ("relay", "shadow"):
        service = unit(SYSTEMD / f"timewheel-{name}.service")["Service"]
        assert service["Type"] == "notify"
        assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
        host = given(commands()[f"timewheel-{name}.service"])["http"].rpartition(":")[0]
        assert host == "127.0.0.1"
    (sandbox,) = (SYSTEMD / "timewheel-.service.d").iterdir()
    assert unit(sandbox)["Service"]["DynamicUser"] == "yes"
    assert "LoadCredential" not in UNIT.read_text(), "without a token's file it would keep the unit from its start"
    if shutil.which("systemd-analyze") is None:
        return
    shutil.copytree(SYSTEMD, tmp_path, dirs_exist_ok=True)
    there = []
    for path in sorted(tmp_path.glob("timewheel-*.*")):
        if path.is_file():
            instance = path.with_name(path.name.replace("@.", "@reminders."))
            instance.write_text(re.sub("/opt/timewheel/bin/(timewheel|python)", sys.executable, path.read_text()))
            there.append(instance)
    command = ["systemd-analyze", "verify", "--man=no", *map(str, there)]
    checked = ran(command)
    ours = [line for line in checked.stderr.splitlines() if "timewheel" in line]
    assert (checked.returncode, ours) == (0, []), checked.stderr


class Containerfile:
    """Its instructions, in their stages."""

    def __init__(self) -> None:
        content: Any = io.BytesIO((DEPLOY / "Containerfile").read_bytes())
        parser = dockerfile_parse.DockerfileParser(fileobj=content, env_replace=False)
        self.instructions: list[dict[str, Any]] = [{**one} for one in parser.structure]
        starts = [n for n, one in enumerate(self.instructions) if one["instruction"] == "FROM"]
        self.build = self.instructions[starts[0] : starts[1]]
        self.final = self.instructions[starts[1] :]

    @staticmethod
    def values(stage: list[dict[str, Any]], instruction: str) -> list[str]:
        return [one["value"] for one in stage if one["instruction"] == instruction]


@pytest.fixture(scope="module")
def containerfile() -> Containerfile:
    return Containerfile()


def test_the_image_runs_as_nobody_and_gets_the_signals(containerfile: Containerfile) -> None:
    (user,) = containerfile.values(containerfile.final, "USER")
    assert int(user.partition(":")[0]) == dict(pods())["timewheel-relay"]["securityContext"]["runAsUser"] > 0
    (entry,) = containerfile.values(containerfile.final, "ENTRYPOINT")
    assert json.loads(entry) == ["timewheel"], "in exec form: a shell before it would keep SIGTERM to itself"
    (base,) = [one["value"] for one in containerfile.instructions if one["instruction"] == "ARG"]
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = re.search(r"python:(3\.\d+)-slim$", base)
    assert wanted, "with its version"
    assert running != "3.11" or wanted[1] == running, "the pins are of that one"


def test_the_context_has_what_is_copied_and_no_more(containerfile: Containerfile) -> None:
    copied = {word for value in containerfile.values(containerfile.build, "COPY") for word in value.split()[:-1]}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == let_in
    top = {path.parts[0] for path in files()}
    assert copied <= top


@pytest.mark.short
def test_the_steps_of_the_build_make_the_command(containerfile: Containerfile, tmp_path: Path) -> None:
    """Carried out here, without an engine: what is copied suffices, and the pins fit together."""
    source, target = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    for value in containerfile.values(containerfile.build, "COPY"):
        *names, into = value.split()
        for path in files():
            name = next((name for name in names if path.parts[0] == name), None)
            if name is None:
                continue
            there = source / into / path.relative_to(name) if len(names) == 1 else source / path
            there.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / path).is_symlink():
                there.symlink_to((ROOT / path).readlink())
            else:
                shutil.copy2(ROOT / path, there)
    (step,) = containerfile.values(containerfile.build, "RUN")
    step = step.replace("/opt/timewheel", str(target)).replace("/src/", f"{source}/").replace("--no-cache-dir", "")
    step = re.sub(r"^python ", f"{sys.executable} ", step)
    done = ran(["sh", "-ec", step], cwd=source, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = ran([str(target / "bin" / "timewheel"), "relay", "--help"])
    assert (ended.returncode, "Usage: timewheel relay" in ended.stdout) == (0, True), ended.stderr
