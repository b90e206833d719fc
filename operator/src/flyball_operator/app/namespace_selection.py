"""Which namespaces are looked after: those with certain labels, as they come and go.

They are listed, and watched from there on; each watch ends after some minutes, and they are listed anew. The API server
says of a namespace that has lost the labels that it is deleted. While it cannot be asked, the namespaces stay as they
are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import Final, NoReturn

from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.kube.api import READ_SECONDS, KubeApi
from flyball_operator.kube.errors import ClusterError
from flyball_operator.kube.resources import NAMESPACES

WATCH_SECONDS: Final = 240
RETRY_SECONDS: Final = 5.0
#: Seconds without a list after which this stands still: a list may take several pages.
SILENT_SECONDS: Final = WATCH_SECONDS + 10 * READ_SECONDS

log = logging.getLogger(__name__)


class NamespaceSelection:
    """Tells `cover` the names of all namespaces that a label selector selects, at each change."""

    def __init__(
        self, api: KubeApi, selector: str, *, cover: Callable[[Collection[str]], None], clock: Callable[[], float]
    ) -> None:
        self._api = api
        self._selector = selector
        self._cover = cover
        self._clock = clock
        self._tried: float | None = None
        self._logged = ""

    def standing_still(self) -> tuple[str, ...]:
        """What shows no sign of life, and for how long."""
        idle = self._clock() - self._tried if self._tried is not None else 0.0
        return (f"the namespaces have not been listed for {idle:.0f} s",) if idle > SILENT_SECONDS else ()

    async def run(self) -> NoReturn:
        """Follow them for ever."""
        while True:
            self._tried = self._clock()
            try:
                await self._follow()
            except ClusterError as error:
                if str(error) != self._logged:
                    log.warning(
                        "the namespaces could not be listed or watched: %s", error, extra=logged(LogEvent.LIST_FAILED)
                    )
                self._logged = str(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        """List them, and watch them until the watch ends. Raises `ClusterError`."""
        listed, version = await self._api.list(NAMESPACES, None, selector=self._selector)
        found = {str(one["metadata"]["name"]) for one in listed}
        self._cover(found)
        self._logged = ""
        events = self._api.watch(NAMESPACES, selector=self._selector, version=version, seconds=WATCH_SECONDS)
        async with aclosing(events) as following:
            async for event in following:
                name = str(event["object"]["metadata"]["name"])
                if event["type"] == "DELETED":
                    found.discard(name)
                else:
                    found.add(name)
                self._cover(found)
