"""A client of an engine that speaks TLS and may ask for a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ssl import SSLContext

import httpx


@dataclass(frozen=True)
class HTTPSClient:
    """Asks `url`, which begins with https://, for this model. Each question is a new connection."""

    url: str
    trusted: SSLContext
    model: str

    def get(self, path: str, **headers: str) -> httpx.Response:
        """An answer to whoever has no key."""
        with self._open() as client:
            return client.get(path, headers=headers)

    def complete(self, path: str = "/v1/completions", *, key: str | None = None, **headers: str) -> int:
        """The status of an answer to a prompt."""
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        body = {"model": self.model, "prompt": "hello", "max_tokens": 2}
        with self._open() as client:
            return client.post(path, json=body, headers=headers).status_code

    def presented(self) -> str:
        """The name in the certificate that a new connection is given."""
        with self._open() as client, client.stream("GET", "/health") as answer:
            found = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
        return str(dict(pair for part in found["subject"] for pair in part)["commonName"])

    @contextmanager
    def _open(self) -> Iterator[httpx.Client]:
        with httpx.Client(base_url=self.url, verify=self.trusted, timeout=120, trust_env=False) as client:
            yield client
