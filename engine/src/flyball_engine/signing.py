"""Signs setpoints: an EdDSA token over the body's digest, for one service, valid for seconds.

Whoever writes setpoints holds the private key (the operator; a person with `flyball-bench`), pods the public half
only, so nothing worth stealing lies in users' namespaces. `flyball_engine.control.tokens` verifies.
"""

from __future__ import annotations

from pathlib import Path

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from flyball_engine.contract import TOKEN_ALGORITHM, TOKEN_LIFETIME_SECONDS, Claims, body_digest


class BadKeyError(Exception):
    """The signing key is missing, unreadable or no Ed25519 key."""


def make_key() -> str:
    """A new private key, PEM."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


class Signer:
    """Makes write tokens with one Ed25519 key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Read a PEM private key without passphrase. Raises `BadKeyError` naming the file and what is wrong."""
        try:
            pem = path.read_bytes()
        except OSError as error:
            raise BadKeyError(f"{path}: {error}") from error
        return cls.parse(pem, str(path))

    @classmethod
    def parse(cls, pem: bytes, origin: str) -> Signer:
        """The key in a PEM text. Raises `BadKeyError` naming `origin` and what is wrong."""
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise BadKeyError(f"{origin}: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise BadKeyError(f"{origin}: holds {type(key).__name__}, an Ed25519 private key is needed")
        return cls(key)

    @property
    def public_pem(self) -> str:
        """The public half, PEM, for the engines' environment."""
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def token(self, body: bytes, *, service: str, now: float) -> str:
        """A token for this body and this service, at `now` in Unix seconds."""
        issued = int(now)
        claims = Claims(aud=service, iat=issued, exp=issued + int(TOKEN_LIFETIME_SECONDS), digest=body_digest(body))
        return jwt.encode(claims.model_dump(), self._key, algorithm=TOKEN_ALGORITHM)
