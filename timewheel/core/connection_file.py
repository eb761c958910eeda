"""Connection file: TOML with one table ``[connection]``. It is separate from plans, since it may hold secrets."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from timewheel.core.connection import FILES, Connection, Secret, oauth2_of
from timewheel.core.errors import BadConnection, did_you_mean
from timewheel.core.planfile import QUOTING, line_of, mended_line

MAX_FILE_BYTES = 100_000  # a connection file takes a few hundred bytes; a larger file is a mistake


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class _OAuth2(_Table):
    issuer_url: str
    private_key: str
    audience: str | None = None
    scope: str | None = None


class _Connection(_Table):
    service_url: str | None = None
    admin_url: str | None = None
    token: str | None = None
    token_file: str | None = None
    oauth2: _OAuth2 | None = None
    tls_trust_certs_file_path: str | None = None
    tls_certificate_file_path: str | None = None
    tls_private_key_file_path: str | None = None
    tls_validate_hostname: bool | None = None
    tls_allow_insecure_connection: bool | None = None


class _File(_Table):
    connection: _Connection


def load_connection(path: Path) -> Connection:
    """Read a connection file; its relative paths are relative to its folder. `BadConnection`: the file is unreadable,
    is not TOML, has an unknown key, or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise BadConnection(str(path), f"cannot be read: {reason}") from error
    if len(content) > MAX_FILE_BYTES:
        raise BadConnection(str(path), f"has more than {MAX_FILE_BYTES} bytes")
    try:
        return parse_connection(text, path.parent).given_by(lambda name: f"{name} in {path}")
    except BadConnection as error:
        # Not "from error": reports of pydantic and TOML repeat the file's content.
        raise BadConnection(f"{path}: {error.field}", error.problem) from None


def parse_connection(text: str, folder: Path) -> Connection:
    """Read a connection from the text of a connection file."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # The place without the line, which may hold a secret.
        place = f" in line {line_of(error)}" if line_of(error) else ""
        rule = f": {QUOTING}" if mended_line(text, error) else ""
        raise BadConnection("file", f"is no TOML{place}{rule}") from None
    try:
        given = _File.model_validate(data).connection
    except ValidationError as error:
        raise _as_bad_connection(error) from None
    found = {name: getattr(given, name) for name in given.model_fields_set}
    found |= {name: folder / found[name] for name in FILES if name in found}
    if given.token is not None:
        found["token"] = Secret(given.token)
    if given.oauth2 is not None:
        key = given.oauth2.private_key
        key = key if key.startswith(("data:", "file:")) else str(folder / key)
        found["oauth2"] = oauth2_of({**given.oauth2.model_dump(exclude_unset=True), "private_key": key})
    return Connection(**found)


def is_open_to_others(path: Path, connection: Connection) -> bool:
    """Return whether a file itself holds a secret, and users other than its owner may read it."""
    oauth2 = connection.oauth2
    holds_secret = connection.token is not None or (oauth2 is not None and oauth2.key_file is None)
    return holds_secret and bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def secrets_open_to_all(connection: Connection) -> tuple[Path, ...]:
    """Return the files with a secret, such as a token or a key, that every user of the machine may read.

    Read access for a group is allowed: many services grant it on purpose, Kubernetes for example.
    """
    key = None if connection.oauth2 is None else connection.oauth2.key_file
    files = [connection.token_file, key, connection.tls_private_key_file_path]
    return tuple(file for file in files if file is not None and _is_open_to_all(Path(file)))


def _is_open_to_all(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & stat.S_IROTH)
    except (OSError, ValueError):
        return False  # the code that reads the file reports the error


def _as_bad_connection(error: ValidationError) -> BadConnection:
    """Convert the first complaint, without the value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "file"
    if first["type"] == "missing":
        return BadConnection(field, "is required")
    if first["type"] != "extra_forbidden":
        return BadConnection(field, first["msg"])
    *place, key = first["loc"]
    table = ".".join(map(str, place))
    if not table:
        return BadConnection(field, "is not a key of a connection's file; write it below a line [connection]")
    keys = (_OAuth2 if table == "connection.oauth2" else _Connection).model_fields
    near = did_you_mean(key, keys) or f"; [{table}] has {', '.join(keys)}"
    return BadConnection(field, f"is not a key of a connection's file{near}")
