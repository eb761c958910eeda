"""How clients reach a cluster: layers, the file, the environment, and that nothing of it shows a secret."""

from __future__ import annotations

import traceback
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core.connection import DEFAULTS, Connection, OAuth2, Secret, connection_of_environment
from timewheel.core.connection_file import is_open_to_others, load_connection, parse_connection, secrets_open_to_all
from timewheel.core.errors import BadConnection, PlanError
from timewheel.core.planfile import parse_plan

SWORDFISH = "swordfish-0123456789"
OAUTH2 = OAuth2(issuer_url="https://issuer.example", private_key=Secret("/run/key.json"))
NAMES = [field.name for field in fields(Connection) if field.compare]

values: dict[str, st.SearchStrategy[Any]] = {
    "service_url": st.sampled_from(["pulsar://a:1", "pulsar+ssl://b:2", "pulsar://a:1,b:1"]),
    "admin_url": st.sampled_from(["http://a:1", "https://b:2/proxied"]),
    "tls_trust_certs_file_path": st.builds(Path, st.sampled_from(["ca1", "ca2"])),
    "tls_validate_hostname": st.booleans(),
    "tls_allow_insecure_connection": st.booleans(),
}
identities = st.sampled_from(
    [
        {},
        {"tls_certificate_file_path": Path("c1")},
        {"tls_certificate_file_path": Path("c2"), "tls_private_key_file_path": Path("k2")},
    ]
)
authentications = st.sampled_from([{}, {"token": Secret(SWORDFISH)}, {"token_file": Path("t")}, {"oauth2": OAUTH2}])
layers = st.builds(
    lambda rest, who, shown: Connection(**rest, **who, **shown),
    st.fixed_dictionaries({}, optional=values),
    identities,
    authentications,
)


@given(layers, layers, layers)
def test_layers_can_be_put_over_each_other_in_any_order_of_putting(a: Connection, b: Connection, c: Connection) -> None:
    assert a.over(b).over(c) == a.over(b.over(c))


@given(layers, layers)
def test_what_a_layer_says_counts_and_what_it_leaves_open_comes_from_below(
    upper: Connection, lower: Connection
) -> None:
    both = upper.over(lower)
    for name in values:
        assert getattr(both, name) == (
            getattr(upper, name) if getattr(upper, name) is not None else getattr(lower, name)
        )


@given(layers, layers)
def test_who_a_client_is_comes_from_one_layer_alone(upper: Connection, lower: Connection) -> None:
    both = upper.over(lower)
    for group in (("token", "token_file", "oauth2"), ("tls_certificate_file_path", "tls_private_key_file_path")):
        of = {connection: tuple(getattr(connection, name) for name in group) for connection in (both, upper, lower)}
        assert of[both] == (of[upper] if any(of[upper]) else of[lower])


@given(layers)
def test_the_defaults_leave_no_url_open(layer: Connection) -> None:
    whole = layer.over(DEFAULTS)
    assert None not in (whole.service_url, whole.admin_url, whole.tls_validate_hostname)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"service_url": "http://broker:8080"}, "service_url must begin with pulsar:// or pulsar+ssl://"),
        ({"service_url": "nonsense"}, "service_url must begin"),
        ({"service_url": "pulsar://"}, "and a host"),
        ({"service_url": "pulsar://host:x"}, "service_url is no URL"),
        ({"admin_url": "http://one:8080,"}, "and a host"),
        ({"admin_url": "http://one:8080,two:x"}, "admin_url is no URL"),
        ({"admin_url": "http://one:8080,http://two:8080"}, "several hosts behind one"),
        ({"service_url": "pulsar://one:6650,two:x"}, "service_url is no URL"),
        ({"service_url": f"pulsar://me:{SWORDFISH}@host:6650"}, "service_url has a user in it"),
        ({"admin_url": "pulsar://broker:6650"}, "admin_url must begin with http:// or https://"),
        ({"admin_url": f"https://broker:8443?token={SWORDFISH}"}, "admin_url has a query"),
        ({"token": Secret(SWORDFISH), "token_file": Path("t")}, "token give one of token, token_file, oauth2, not"),
        ({"tls_private_key_file_path": Path("k")}, "needs tls_certificate_file_path"),
    ],
)
def test_what_cannot_be_is_told_without_its_value(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConnection) as error:
        Connection(**wrong)
    assert said in str(error.value)
    assert SWORDFISH not in "".join(traceback.format_exception(error.value))


FILE = f"""
[connection]
service_url = "pulsar+ssl://broker:6651"
admin_url = "https://broker:8443"
tls_trust_certs_file_path = "ca.pem"
tls_certificate_file_path = "/etc/me.pem"
tls_private_key_file_path = "me.key"
tls_validate_hostname = true

[connection.oauth2]
issuer_url = "https://issuer.example/realm"
private_key = "key.json"
audience = "urn:pulsar"
scope = "{SWORDFISH}"
"""


def test_a_file_says_all_of_it_and_its_paths_are_relative_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "connection.toml").write_text(FILE)
    assert load_connection(tmp_path / "connection.toml") == Connection(
        service_url="pulsar+ssl://broker:6651",
        admin_url="https://broker:8443",
        tls_trust_certs_file_path=tmp_path / "ca.pem",
        tls_certificate_file_path=Path("/etc/me.pem"),
        tls_private_key_file_path=tmp_path / "me.key",
        tls_validate_hostname=True,
        oauth2=OAuth2(
            issuer_url="https://issuer.example/realm",
            private_key=Secret(str(tmp_path / "key.json")),
            audience="urn:pulsar",
            scope=SWORDFISH,
        ),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "connection is required"),
        (f"[connection]\ntocken = '{SWORDFISH}'", "connection.tocken is not a key"),
        (
            f"[connection.oauth2]\nissuer_url='https://x'\nprivate_key='{SWORDFISH}'\nkey='{SWORDFISH}'",
            "oauth2.key is not a key of a connection's file; [connection.oauth2] has issuer_url, private_key",
        ),
        ("[connection.oauth2]\nissuer_url='https://x'", "oauth2.private_key is required"),
        (f"[connection]\ntoken = ['{SWORDFISH}']", "connection.token"),
        (f"[connection]\ntls_validate_hostname = '{SWORDFISH}'", "connection.tls_validate_hostname"),
        (f"[connection]\ntocken = '{SWORDFISH}'", "did you mean token?"),
        (f"[connection]\ntoken = {SWORDFISH}", "is no TOML in line 2: text and durations are quoted"),
        (f"[connection]\ntoken = '{SWORDFISH}", "is no TOML"),
        (f"token = '{SWORDFISH}'\n[connection]", "token is not a key of a connection's file; write it below a line ["),
        (f"[connection]\ntoken='{SWORDFISH}'\ntoken_file='x'", "give one of"),
    ],
)
def test_a_wrong_file_is_told_by_its_name_and_key_and_never_by_what_stands_there(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "connection.toml"
    file.write_text(text)
    with pytest.raises(BadConnection, match=r"connection\.toml") as error:
        load_connection(file)
    assert said in str(error.value)
    shown = "".join(traceback.format_exception(error.value)) + repr(error.value.__context__)
    assert SWORDFISH not in shown


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadConnection, match=r"none\.toml cannot be read: No such file"):
        load_connection(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("mode", "text", "is_open"),
    [
        (0o600, "token = 'x'", False),
        (0o640, "token = 'x'", True),
        (0o604, "token = 'x'", True),
        (0o644, "token_file = 'x'", False),
        (0o644, "oauth2 = {issuer_url='https://x', private_key='key.json'}", False),
        (0o644, "oauth2 = {issuer_url='https://x', private_key='data:application/json;base64,e30='}", True),
    ],
)
def test_a_secret_in_a_file_that_others_can_read_is_noticed(
    tmp_path: Path, mode: int, text: str, is_open: bool
) -> None:
    file = tmp_path / "connection.toml"
    file.write_text(f"[connection]\n{text}")
    file.chmod(mode)
    assert is_open_to_others(file, load_connection(file)) is is_open


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
@pytest.mark.parametrize(
    "text", ["token_file = 'secret'", "oauth2 = {issuer_url='https://x', private_key='secret'}", "TLS", "FILE URL"]
)
def test_the_file_of_a_secret_that_everybody_can_read_is_noticed(
    tmp_path: Path, text: str, mode: int, *, is_open: bool
) -> None:
    secret = tmp_path / "secret"
    text = text.replace("TLS", "tls_certificate_file_path = 'crt'\ntls_private_key_file_path = 'secret'")
    text = text.replace("FILE URL", f"oauth2 = {{issuer_url='https://x', private_key='file://{secret}'}}")
    connection = parse_connection(f"[connection]\n{text}", tmp_path)
    assert secrets_open_to_all(connection) == ()
    secret.write_text("")
    secret.chmod(mode)
    assert secrets_open_to_all(connection) == ((secret,) if is_open else ())


def test_the_environment_says_each_field_by_its_name() -> None:
    found = connection_of_environment(
        {
            "PULSAR_SERVICE_URL": "pulsar://a:1",
            "PULSAR_TOKEN": "",
            "PULSAR_TOKEN_FILE": "/run/token",
            "PULSAR_TLS_TRUST_CERTS_FILE_PATH": "/etc/ca.pem",
            "PULSAR_TLS_VALIDATE_HOSTNAME": "False",
            "PATH": "/bin",
        }
    )
    assert found == Connection(
        service_url="pulsar://a:1",
        token_file=Path("/run/token"),
        tls_trust_certs_file_path=Path("/etc/ca.pem"),
        tls_validate_hostname=False,
    )
    oauth2 = {"PULSAR_OAUTH2_ISSUER_URL": "https://x", "PULSAR_OAUTH2_PRIVATE_KEY": "k", "PULSAR_OAUTH2_SCOPE": "s"}
    assert connection_of_environment(oauth2).oauth2 == OAuth2(
        issuer_url="https://x", private_key=Secret("k"), scope="s"
    )


def test_every_field_has_a_variable() -> None:
    """One that is added to `Connection` and forgotten in the environment would be silently without effect."""
    texts = dict.fromkeys(NAMES, "x") | {"service_url": "pulsar://a", "admin_url": "http://a"}
    texts |= {"tls_validate_hostname": "true", "tls_allow_insecure_connection": "true"}
    identity = {"tls_certificate_file_path": "x"}
    for name in set(NAMES) - {"oauth2"}:
        said = {f"PULSAR_{key.upper()}": value for key, value in {**identity, name: texts[name]}.items()}
        assert getattr(connection_of_environment(said), name) is not None, name


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PULSAR_TLS_VALIDATE_HOSTNAME": "yes"}, "PULSAR_TLS_VALIDATE_HOSTNAME is neither true nor false"),
        ({"PULSAR_SERVICE_URL": "localhost:6650"}, "PULSAR_SERVICE_URL must begin with pulsar://"),
        ({"PULSAR_OAUTH2_SCOPE": "x"}, "PULSAR_OAUTH2 needs both issuer_url and private_key"),
        (
            {"PULSAR_OAUTH2_ISSUER_URL": "x", "PULSAR_OAUTH2_PRIVATE_KEY": "k"},
            "PULSAR_OAUTH2_ISSUER_URL must begin with http",
        ),
    ],
)
def test_a_wrong_variable_is_told(variables: dict[str, str], said: str) -> None:
    with pytest.raises(BadConnection, match=said):
        connection_of_environment(variables)


@pytest.mark.parametrize(
    ("connection", "is_given"),
    [
        (Connection(), False),
        (DEFAULTS, False),
        (DEFAULTS.given_by(lambda name: f"--{name}"), True),
        (Connection(admin_url="http://localhost:9090"), True),
    ],
    ids=["none", "the defaults", "as the defaults, by an option", "another, by code"],
)
def test_a_url_is_given_by_whoever_names_it_or_another_than_the_defaults(
    connection: Connection, is_given: bool
) -> None:
    assert connection.is_given("admin_url") is is_given


def test_no_representation_shows_a_secret() -> None:
    whole = Connection(token=Secret(SWORDFISH))
    whole_oauth2 = replace(whole, token=None, oauth2=replace(OAUTH2, private_key=Secret(SWORDFISH)))
    for shown in (
        repr(whole),
        str(whole),
        f"{whole}",
        repr(whole_oauth2),
        f"{whole.token}",
        repr([whole.token, whole]),
    ):
        assert SWORDFISH not in shown
    assert whole.token is not None
    assert whole.token.reveal() == SWORDFISH, "and yet it is there"


PLAN = 'format = 1\ndue_topic = "persistent://t/n/x"\nsubscriptions = ["s"]\n'


@pytest.mark.parametrize(
    "key",
    [f'token = "{SWORDFISH}"\n[native]', f'[native]\n[connection]\ntoken = "{SWORDFISH}"', 'service_url="x"\n[native]'],
)
def test_a_plan_that_says_how_to_connect_is_refused_with_where_that_belongs(key: str) -> None:
    with pytest.raises(PlanError, match="belongs into the connection's file") as error:
        parse_plan(PLAN + key)
    assert SWORDFISH not in str(error.value) + repr(error.value.value) + repr(error.value.__cause__)
