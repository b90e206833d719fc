"""Checks who wrote a setpoint: an EdDSA JWT over the body's digest, for this service alone.

The pod holds the public key only; nothing here is worth stealing. Reads need no token.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from typing import NoReturn

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import ValidationError

from flyball_engine.contract import TOKEN_ALGORITHM, TOKEN_LEEWAY_SECONDS, Claims, Env, Refusal, body_digest
from flyball_engine.control.acceptance import SetpointRefused

_SCHEME = "bearer "
_log = logging.getLogger(__name__)


class UnusableKeyError(Exception):
    """The configured public key is absent or no Ed25519 key."""


def load_public_key(pem: str | None) -> Ed25519PublicKey:
    """The key that write tokens are verified with; raises UnusableKeyError."""
    if not pem:
        raise UnusableKeyError("no public key is configured")
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, TypeError) as error:
        raise UnusableKeyError(f"the public key is no PEM: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise UnusableKeyError("the public key is no Ed25519 key")
    return key


class TokenVerifier:
    """Verifies write tokens for one service. Without a usable key it refuses every write and says so."""

    def __init__(self, *, public_key: Ed25519PublicKey | None, service: str) -> None:
        self._key = public_key
        self._service = service

    def verify(self, authorization: str | None) -> Claims:
        """The claims of a valid `Authorization` header; raises SetpointRefused. The digest is still to be checked."""
        if self._key is None:
            _refuse("this engine has no usable public key, so it accepts no writes")
        if authorization is None or not authorization.lower().startswith(_SCHEME):
            _refuse("Authorization must be `Bearer <token>`")
        try:
            claims = jwt.decode(
                authorization[len(_SCHEME) :].strip(),
                self._key,
                algorithms=[TOKEN_ALGORITHM],
                audience=self._service,
                leeway=TOKEN_LEEWAY_SECONDS,
                options={"require": ["iss", "aud", "iat", "exp", "digest"]},
            )
            return Claims.model_validate(claims)
        except (jwt.PyJWTError, ValidationError) as error:
            _refuse(f"the token is not valid here: {_brief(error)}")


def check_digest(claims: Claims, body: bytes) -> None:
    """Raise SetpointRefused unless the token was made for exactly this body."""
    if not hmac.compare_digest(claims.digest, body_digest(body)):
        _refuse("the token was made for another body")


def _brief(error: Exception) -> str:
    return "its claims are malformed" if isinstance(error, ValidationError) else str(error)


def _refuse(message: str) -> NoReturn:
    raise SetpointRefused(Refusal.BAD_TOKEN, message)


def verifier_of(environment: Mapping[str, str]) -> TokenVerifier:
    """The verifier of this pod, by what the operator set on its container."""
    try:
        key = load_public_key(environment.get(Env.PUBLIC_KEY))
    except UnusableKeyError as error:
        _log.warning("Flyball: no setpoint will be accepted: %s", error)
        key = None
    return TokenVerifier(public_key=key, service=environment.get(Env.SERVICE_UID, ""))
