"""A control port's client, and what signs its setpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from flyball_engine.contract import (
    METRICS_PATH,
    SETPOINT_PATH,
    TOKEN_ALGORITHM,
    TOKEN_LIFETIME_SECONDS,
    ErrorBody,
    Limits,
    ReadBack,
    Setpoint,
    body_digest,
)

SERVICE = "11111111-2222-3333-4444-555555555555"


@dataclass(frozen=True)
class SetpointSigner:
    """Signs setpoints as the operator does."""

    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    @property
    def public_pem(self) -> str:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    @property
    def private_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def token(
        self, body: bytes, *, audience: str = SERVICE, lifetime: float = TOKEN_LIFETIME_SECONDS, **claims: Any
    ) -> str:
        now = int(time.time())
        payload = {
            "iss": "flyball",
            "aud": audience,
            "iat": now,
            "exp": int(now + lifetime),
            "digest": body_digest(body),
        }
        return jwt.encode(payload | claims, self.key, algorithm=TOKEN_ALGORITHM)


def setpoint(
    generation: int, *, epoch: int = 1, service: str = SERVICE, limits: Mapping[str, int] | None = None, **fields: Any
) -> Setpoint:
    """A setpoint with these limits."""
    return Setpoint(service=service, epoch=epoch, generation=generation, limits=Limits(**(limits or {})), **fields)


class ControlClient:
    """Speaks to a control port over HTTP."""

    def __init__(self, base_url: str, signer: SetpointSigner) -> None:
        self._http = httpx.Client(base_url=base_url, timeout=60.0, trust_env=False)
        self.signer = signer

    def put_raw(
        self, body: bytes, *, token: str | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send exactly these bytes; `token` defaults to a valid one."""
        authorization = {"Authorization": f"Bearer {token or self.signer.token(body)}"}
        return self._http.put(SETPOINT_PATH, content=body, headers=authorization if headers is None else headers)

    def put(self, wanted: Setpoint) -> ReadBack:
        """Write a setpoint that must be accepted."""
        response = self.put_raw(wanted.model_dump_json().encode())
        assert response.status_code == 200, response.text
        return ReadBack.model_validate_json(response.content)

    def refuse(self, wanted: Setpoint | bytes, **options: Any) -> tuple[int, ErrorBody]:
        """Write what must be refused; the status and the reason."""
        body = wanted if isinstance(wanted, bytes) else wanted.model_dump_json().encode()
        response = self.put_raw(body, **options)
        assert response.status_code >= 400, response.text
        return response.status_code, ErrorBody.model_validate_json(response.content)

    def read(self) -> ReadBack:
        """Read back."""
        response = self._http.get(SETPOINT_PATH)
        assert response.status_code == 200, response.text
        return ReadBack.model_validate_json(response.content)

    def metrics(self) -> str:
        """The scrape."""
        response = self._http.get(METRICS_PATH)
        assert response.status_code == 200, response.text
        return response.text

    def close(self) -> None:
        self._http.close()
