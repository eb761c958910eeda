"""Tokens, and settings of a broker that requires them."""

from __future__ import annotations

import base64
import hmac
import json
import secrets

SECRET = secrets.token_bytes(32)


def token_for(role: str, *, expires_s: int | None = None) -> str:
    """Make a JSON web token, signed with the broker's secret; it expires at this second since 1970, or never."""
    claims = {"sub": role} if expires_s is None else {"sub": role, "exp": expires_s}

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    signed = ".".join(part(json.dumps(content).encode()) for content in ({"alg": "HS256"}, claims))
    return f"{signed}.{part(hmac.digest(SECRET, signed.encode(), 'sha256'))}"


SECURED_SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken,"
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls",
    "authenticationRefreshCheckSeconds": "1",  # interval of checks for expired tokens; usually 60
    "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
    # A client without a token is a superuser, so that LocalPulsar sees the broker become healthy. If a client presents
    # a token, the broker allows or denies its requests by the token's role alone.
    "anonymousUserRole": "nobody",
    "superUserRoles": "admin,nobody",
    "proxyRoles": "proxy",
    "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "brokerClientAuthenticationParameters": f"token:{token_for('admin')}",
}
"""Settings of a broker that authorizes by the role of a token or a certificate; ``admin`` is the superuser."""
