"""Certificates for TLS tests, made by openssl (on Debian a dependency of every Java, by ca-certificates)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A certificate and its key, as PEM files."""

    certificate_path: str
    key_path: str


def make_authority(folder: Path, name: str = "authority") -> Identity:
    """Make a self-signed certificate authority."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
        "-keyout", str(key), "-out", str(certificate),
    )  # fmt: skip
    return Identity(certificate_path=str(certificate), key_path=str(key))


def make_identity(folder: Path, authority: Identity, name: str, alternative: str = "IP:127.0.0.1") -> Identity:
    """Make a certificate for a name and a subject alternative name, signed by the authority."""
    certificate, key, request = folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.csr"
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={alternative}\nbasicConstraints=CA:FALSE\n")
    _openssl(
        "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)
    )  # fmt: skip
    _openssl(
        "x509", "-req", "-days", "2", "-in", str(request), "-CA", authority.certificate_path,
        "-CAkey", authority.key_path, "-CAcreateserial", "-extfile", str(extensions), "-out", str(certificate),
    )  # fmt: skip
    return Identity(certificate_path=str(certificate), key_path=str(key))


def _openssl(*arguments: str) -> None:
    done = ran(["openssl", *arguments])
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr}")
