"""Asks pods that download a model how far they have come."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import aiohttp
from yarl import URL

from flyball_engine.model_cache import PROGRESS_BYTES, PROGRESS_PATH, PROGRESS_PORT, Progress, progress_of

#: Seconds for an answer. A look at the service waits for it.
_SECONDS = 1.0
#: Seconds for which an answer holds, and for which a pod that gave none is not asked again: a look at a service comes
#: whenever anything of it changes, and one that may not be reached must not hold others up.
ANSWER_SECONDS: Final = 15.0
SILENT_SECONDS: Final = 300.0
#: Pods that are remembered.
_MOST: Final = 1000


class Downloads:
    """`session`: that of this module's caller. `clock` is monotonic, in seconds."""

    def __init__(
        self, session: aiohttp.ClientSession, clock: Callable[[], float], *, port: int = PROGRESS_PORT
    ) -> None:
        self._session = session
        self._clock = clock
        self._port = port
        #: What was answered by address, and until when that holds; the oldest first.
        self._known: dict[str, tuple[float, Progress | None]] = {}

    async def progress(self, ip: str) -> Progress | None:
        """How far the pod at this address has come; None where it does not say: it just began, or a policy forbids."""
        until, found = self._known.get(ip, (-math.inf, None))
        if self._clock() < until:
            return found
        try:
            found, holds = await self._ask(ip), ANSWER_SECONDS
        except TimeoutError:
            found, holds = None, SILENT_SECONDS
        self._known.pop(ip, None)
        self._known[ip] = (self._clock() + holds, found)
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        return found

    async def _ask(self, ip: str) -> Progress | None:
        """Raises TimeoutError."""
        url = URL.build(scheme="http", host=ip, port=self._port, path=PROGRESS_PATH)
        body = bytearray()
        try:
            timeout = aiohttp.ClientTimeout(total=_SECONDS)
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as answer:
                async for chunk in answer.content.iter_chunked(PROGRESS_BYTES):
                    body += chunk
                    if len(body) > PROGRESS_BYTES:
                        return None
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError):
            return None
        return progress_of(bytes(body))
