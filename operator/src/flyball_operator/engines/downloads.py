"""Asks pods that download a model how far they have come."""

from __future__ import annotations

import aiohttp
from yarl import URL

from flyball_engine.model_cache import PROGRESS_BYTES, PROGRESS_PATH, PROGRESS_PORT, Progress, progress_of

#: Seconds for an answer. A look at the service waits for it.
_SECONDS = 2.0


class Downloads:
    """`session`: that of this module's caller."""

    def __init__(self, session: aiohttp.ClientSession, port: int = PROGRESS_PORT) -> None:
        self._session = session
        self._port = port

    async def progress(self, ip: str) -> Progress | None:
        """How far the pod at this address has come; None where it does not say: it just began, or a policy forbids."""
        url = URL.build(scheme="http", host=ip, port=self._port, path=PROGRESS_PATH)
        try:
            timeout = aiohttp.ClientTimeout(total=_SECONDS)
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as answer:
                return progress_of(await answer.content.read(PROGRESS_BYTES))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
