"""Tokens, and a broker that asks for them."""

from __future__ import annotations

import base64
import hmac
import json
import secrets

__all__ = ["SECURED_SETTINGS", "token_for"]

SECRET = secrets.token_bytes(32)


def token_for(role: str) -> str:
    """A JSON web token, signed with the broker's secret."""

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    signed = ".".join(part(json.dumps(claims).encode()) for claims in ({"alg": "HS256"}, {"sub": role}))
    return f"{signed}.{part(hmac.digest(SECRET, signed.encode(), 'sha256'))}"


SECURED_SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
    # Whoever shows no token is a superuser, so that LocalPulsar sees the broker get healthy. A token that is shown
    # counts: its role and no other is what the tests find allowed or denied.
    "anonymousUserRole": "nobody",
    "superUserRoles": "admin,nobody",
    "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "brokerClientAuthenticationParameters": f"token:{token_for('admin')}",
}
"""Settings of a broker where a token's role decides; ``admin`` is the superuser."""
