"""The cluster as the demo reaches it: kubectl where a user would type it, one open connection for all that is read.

Reads go through the API server, also to the engine's control port (its proxy subresource), so that the demo works alike
on a cluster whose pods cannot be reached from here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self

import aiohttp
from kubernetes.aio import client, config

from flyball_lab.demo.errors import DemoError, GoneError, KubeRequestError

#: No answer of the API server may take longer, in seconds: the poll after it would be late.
READ_TIMEOUT = 10.0


async def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """Run kubectl; its standard output. Raises `DemoError` with what it wrote to standard error."""
    process = await asyncio.create_subprocess_exec(
        "kubectl",
        *arguments,
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin.encode() if stdin is not None else None)
    if process.returncode:
        raise DemoError(f"kubectl {' '.join(arguments)}: {err.decode().strip()}")
    return out.decode()


class ApiReader:
    """Reads from the API server over one connection, with the kubeconfig that kubectl uses."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    @classmethod
    async def open(cls) -> Self:
        """Connect with `$KUBECONFIG` and its current context."""
        await config.load_kube_config()  # type: ignore[no-untyped-call]  # ships no types
        return cls(client.ApiClient())

    async def close(self) -> None:
        """Close the connection."""
        await self._api.close()  # type: ignore[no-untyped-call]  # ships no types

    async def text(self, path: str, query: Sequence[tuple[str, str]] = ()) -> str:
        """Body of a GET. Raises `GoneError` for 404 and `KubeRequestError` for any other answer than 200."""
        method, url, headers, *_ = await self._api.param_serialize(
            method="GET", resource_path=path, query_params=list(query), auth_settings=["BearerToken"]
        )
        try:
            response = await self._api.call_api(method, url, header_params=headers, _request_timeout=READ_TIMEOUT)
            body: bytes = await response.read()  # type: ignore[no-untyped-call]  # ships no types
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeRequestError(f"GET {path}: {error or type(error).__name__}") from error
        if response.status != 200:
            kind = GoneError if response.status == 404 else KubeRequestError
            raise kind(f"GET {path}: {response.status} {body[:200]!r}")
        return body.decode()

    async def json(self, path: str, query: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """Body of a GET, parsed."""
        answer: dict[str, Any] = json.loads(await self.text(path, query))
        return answer
