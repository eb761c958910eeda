"""A Pulsar proxy as a process: TLS and tokens for clients, no TLS behind it.

Version 4.0.6 is the newest on Maven Central. It runs with the jars of the broker and three of its own, which are
fetched once into the cache of `timewheel.testing.maven`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.certificates import Identity
from tests.support.tokens import SECURED_SETTINGS, token_for
from timewheel.core.user_cache import cache_folder
from timewheel.testing import BrokerFailed, BrokerUnavailable, eventually
from timewheel.testing.local_pulsar import LITTLE_COMPILING, Jvm, properties, write_logging
from timewheel.testing.maven import broker_jars, find_java, locked
from timewheel.testing.ports import LOOPBACK, free_ports
from timewheel.testing.process import OwnedProcess, exit_words
from timewheel.testing.settings import DEFAULT_VERSION

ROLE = "proxy"
JARS = (
    "org.apache.pulsar:pulsar-proxy:4.0.6",
    "org.eclipse.jetty:jetty-proxy:9.4.57.v20241219",
    "com.github.seancfoley:ipaddress:5.5.0",
)
SHARED = ("authenticationEnabled", "authenticationProviders", "tokenSecretKey", "brokerClientAuthenticationPlugin")
FETCH_TIMEOUT_S = 300
START_TIMEOUT_S = 180.0


class Proxy(NamedTuple):
    """The addresses of a running proxy."""

    service_url: str
    admin_url: str


@contextmanager
def pulsar_proxy(folder: Path, identity: Identity, behind: Mapping[str, str]) -> Iterator[Proxy]:
    """Run a proxy with this certificate; `behind` are its settings for the brokers."""
    port, web_port = free_ports(2)
    settings = {
        "clusterName": "proxied",
        "bindAddress": LOOPBACK,
        "servicePort": "",
        "webServicePort": "",
        "servicePortTls": str(port),
        "webServicePortTls": str(web_port),
        "tlsCertificateFilePath": identity.certificate_path,
        "tlsKeyFilePath": identity.key_path,
        **{name: SECURED_SETTINGS[name] for name in SHARED},
        "brokerClientAuthenticationParameters": f"token:{token_for(ROLE)}",
        "brokerProxyAllowedTargetPorts": "*",
        **behind,
    }
    conf = folder / "proxy.conf"
    conf.write_text(properties(settings), encoding="utf-8")
    write_logging(folder, "warn")
    jvm = Jvm(java=find_java().path, lib=broker_jars(DEFAULT_VERSION), folder=folder, options=LITTLE_COMPILING)
    main = ("org.apache.pulsar.proxy.server.ProxyServiceStarter", "--config", str(conf))
    command = jvm.command(*main, heap_mb=256, direct_mb=256)
    command[command.index("-cp") + 1] = f"{_jars()}/*:{jvm.lib}/*"
    with OwnedProcess(log=folder / "proxy.log") as process:
        process.start(command, cwd=folder)

        def listens() -> bool:
            if process.pid is None:
                raise BrokerFailed(f"the proxy {exit_words(process.exit_code)}:\n{process.log_tail()}")
            with socket.socket() as one, socket.socket() as other:
                return not (one.connect_ex((LOOPBACK, port)) or other.connect_ex((LOOPBACK, web_port)))

        eventually(listens, START_TIMEOUT_S)
        yield Proxy(f"pulsar+ssl://{LOOPBACK}:{port}", f"https://{LOOPBACK}:{web_port}")


def _jars() -> Path:
    """Return the folder with the proxy's own jars, fetching missing jars first."""
    home = cache_folder() / JARS[0].replace(":", "-")
    home.parent.mkdir(parents=True, exist_ok=True)
    with locked(home.with_name(f"{home.name}.lock"), on_wait=lambda: None):
        if home.is_dir():
            return home
        if (mvn := shutil.which("mvn")) is None:
            raise BrokerUnavailable("the Pulsar proxy is fetched with Maven, and no mvn was found")
        with tempfile.TemporaryDirectory(dir=home.parent) as folder:
            for jar in JARS:
                words = [f"-Dartifact={jar}", f"-DoutputDirectory={folder}/lib"]
                command = [mvn, "-B", "-q", "--strict-checksums", "dependency:copy", *words]
                done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
                if done.returncode:
                    raise BrokerUnavailable(f"Maven could not fetch {jar}: {done.stdout[-2_000:]}")
            Path(folder, "lib").rename(home)
    return home
