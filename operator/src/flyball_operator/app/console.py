"""What the console reads of this process: the informers' cache, and the tuners of shards that it leads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from flyball_operator.api.desire import Desire
from flyball_operator.app.settings import Settings
from flyball_operator.app.shards import Shards
from flyball_operator.kube.cache import Cache
from flyball_operator.tuning.insight import Insight


class ProcessSource:
    """Implements `console.source.Source`."""

    def __init__(self, cache: Cache, shards: Shards) -> None:
        self._cache = cache
        self._shards = shards

    def services(self) -> Iterable[Desire]:
        """All services that are watched."""
        return self._cache.services

    def insight(self, service_uid: str) -> Insight | None:
        """What is known beyond status, where this replica tunes the service."""
        return self._shards.insight(service_uid)


@asynccontextmanager
async def console(settings: Settings, cache: Cache, shards: Shards) -> AsyncIterator[None]:
    """Serve the console meanwhile, if it is wanted. Raises `OSError` where its port is taken."""
    if not settings.console_port:
        yield
        return
    # Here: templates take memory, and most have no console.
    from flyball_operator.app.console_server import ConsoleServer  # noqa: PLC0415

    server = ConsoleServer(ProcessSource(cache, shards), str(settings.console_address), settings.console_port)
    await server.start()
    try:
        yield
    finally:
        await server.stop()
