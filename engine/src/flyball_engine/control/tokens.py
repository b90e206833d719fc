"""Checks who wrote a setpoint: an EdDSA JWT over the body's digest, for this service alone.

The pod holds public keys only; nothing here is worth stealing. Reads need no token.

A signing key is changed without a restart of pods. A pod template names one key for good, or none, because a template
that changes replaces pods. Beside it lies a file of keys, from a ConfigMap that need not exist and that the kubelet
keeps current. While there is such a file it alone counts, so that a key which is taken from it is refused. It is read
at every write: writes are seconds apart, and what is read late would be believed too long.

An endpoint that takes the next key, signed by the present one, was the other way. An engine that restarts would forget
it. So the old private key would have to live as long as the pods, and whoever stole it could hand over a key, too.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import ValidationError

from flyball_engine.contract import (
    MOST_PUBLIC_KEYS,
    TOKEN_ALGORITHM,
    TOKEN_LEEWAY_SECONDS,
    Claims,
    Env,
    Refusal,
    body_digest,
)
from flyball_engine.control.acceptance import SetpointRefused
from flyball_engine.log_events import EngineLogEvent, EventLog

_SCHEME = "bearer "
#: Two keys are under 300 bytes.
_MOST_BYTES: Final = 16 * 1024
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----", re.DOTALL)
_log = EventLog(__name__)


class UnusableKeyError(Exception):
    """The configured public keys are absent, too many, or no Ed25519 keys."""


Keys = tuple[Ed25519PublicKey, ...]


def load_public_keys(pem: str | None) -> Keys:
    """The keys of a PEM text, one after the other; raises UnusableKeyError."""
    if not pem or not pem.strip():
        raise UnusableKeyError("no public key is configured")
    found = _PEM.findall(pem)
    if not found or _PEM.sub("", pem).strip():
        raise UnusableKeyError("the public key is no PEM")
    if len(found) > MOST_PUBLIC_KEYS:
        raise UnusableKeyError(f"{len(found)} public keys are configured, at most {MOST_PUBLIC_KEYS} are accepted")
    return tuple(_load_public_key(one) for one in found)


def _load_public_key(pem: str) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnusableKeyError(f"the public key is no PEM: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise UnusableKeyError("the public key is no Ed25519 key")
    return key


def _read_public_keys(pem: str | None, file: Path | None) -> Keys:
    """Those of the file while there is one, else those of `pem`; raises UnusableKeyError, which names the file."""
    if file is None:
        return load_public_keys(pem)
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES).decode()
        return load_public_keys(text)
    except FileNotFoundError:
        return load_public_keys(pem)
    except (OSError, UnicodeDecodeError, UnusableKeyError) as error:
        raise UnusableKeyError(f"{file}: {error}") from error


class TokenVerifier:
    """Verifies write tokens for one service. Without a usable key it refuses every write and says so.

    `keys`: those that count at this moment; raises UnusableKeyError.
    """

    def __init__(self, *, keys: Callable[[], Keys], service: str) -> None:
        self._keys = keys
        self._service = service

    def verify(self, authorization: str | None) -> Claims:
        """The claims of a valid `Authorization` header; raises SetpointRefused. The digest is still to be checked."""
        try:
            keys = self._keys()
        except UnusableKeyError as error:
            _refuse(f"this engine has no usable public key, so it accepts no writes: {error}")
        if authorization is None or not authorization.lower().startswith(_SCHEME):
            _refuse("Authorization must be `Bearer <token>`")
        token = authorization[len(_SCHEME) :].strip()
        try:
            for key in keys[:-1]:
                # Signed by the other one, if by any.
                with suppress(jwt.InvalidSignatureError):
                    return self._decode(token, key)
            return self._decode(token, keys[-1])
        except (jwt.PyJWTError, ValidationError) as error:
            _refuse(f"the token is not valid here: {_brief(error)}")

    def _decode(self, token: str, key: Ed25519PublicKey) -> Claims:
        claims = jwt.decode(
            token,
            key,
            algorithms=[TOKEN_ALGORITHM],
            audience=self._service,
            leeway=TOKEN_LEEWAY_SECONDS,
            options={"require": ["iss", "aud", "iat", "exp", "digest"]},
        )
        return Claims.model_validate(claims)


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
    file = environment.get(Env.PUBLIC_KEYS_FILE)
    keys = partial(_read_public_keys, environment.get(Env.PUBLIC_KEY), Path(file) if file else None)
    try:
        keys()
    except UnusableKeyError as error:
        _log.warning(EngineLogEvent.KEYS_UNUSABLE, "no setpoint will be accepted: %s", error)
    return TokenVerifier(keys=keys, service=environment.get(Env.SERVICE_UID, ""))
