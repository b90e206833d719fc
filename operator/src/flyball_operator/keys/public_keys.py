"""Brings public keys to engines: the ConfigMap `names.PUBLIC_KEYS` in each namespace where the release has services.

The kubelet keeps the copies in pods current, so pods and their templates stay as they are. A ConfigMap of the name that
the operator did not make is left alone. What goes wrong in a namespace concerns its services alone: the log says it,
and an event of each of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.objects import Object, uid
from flyball_operator.api.v1alpha1 import ObjectMeta
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ClusterError, NotFoundError, NotLeadingError
from flyball_operator.kube.events import EventPoster
from flyball_operator.kube.resources import CONFIG_MAPS

#: Seconds until a ConfigMap that others changed or deleted is written again.
RECHECK_SECONDS: Final = 300.0
#: Seconds until one that could not be written is tried again.
RETRY_SECONDS: Final = 30.0
#: Namespaces that are written to at the same time.
PARALLEL: Final = 4
#: Reason of the event where engines are not given the keys.
NOT_WRITTEN: Final = "PublicKeysNotWritten"

log = logging.getLogger(__name__)


@dataclass
class _Known:
    """What is known of one namespace's ConfigMap. `text`: what it was to hold when it was looked at last."""

    text: str = ""
    due: float = 0.0
    problem: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class PublicKeys:
    """Those that engines are to accept. `services`: of this release, where it may act."""

    def __init__(
        self,
        api: KubeApi,
        *,
        services: Callable[[], Collection[ObjectMeta]],
        events: EventPoster,
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._services = services
        self._events = events
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._gate = asyncio.Semaphore(PARALLEL)
        #: PEM of the keys; empty while they are not known.
        self.text = ""

    def problems(self) -> int:
        """Namespaces whose ConfigMap could not be written."""
        return sum(bool(known.problem) for known in self._known.values())

    def reaches_engines(self) -> bool | None:
        """Whether the keys are in the ConfigMap of one namespace at least, by what came of this process's writes.

        None where no namespace with services is known: there are none, or this process has the lease of none yet.
        """
        if not self._known:
            return None
        return any(known.text and known.text == self.text and not known.problem for known in self._known.values())

    async def publish(self) -> None:
        """Write the ConfigMaps that are due, in all namespaces with services. Never raises for one of them."""
        used = {meta.namespace for meta in self._services()}
        self._known = {namespace: known for namespace, known in self._known.items() if namespace in used}
        await asyncio.gather(*map(self.publish_in, used))

    async def publish_in(self, namespace: str) -> None:
        """Write the one of a namespace, if it is due. Never raises a `ClusterError`."""
        known = self._known.setdefault(namespace, _Known())
        async with known.lock:
            if not self.text or (known.text == self.text and self._clock() < known.due):
                return
            async with self._gate:
                await self._look(namespace, known)

    async def _look(self, namespace: str, known: _Known) -> None:
        text = self.text
        try:
            problem = await self._write(namespace, text)
        except NotLeadingError:
            return
        except ClusterError as error:
            problem = f"ConfigMap {names.PUBLIC_KEYS} in namespace {namespace} could not be written: {error}"
        if problem and problem != known.problem:
            log.warning("%s", problem, extra=logged(LogEvent.PUBLIC_KEYS_NOT_WRITTEN, namespace))
        known.text, known.problem = text, problem
        known.due = self._clock() + (RETRY_SECONDS if problem else RECHECK_SECONDS)
        if problem:
            for meta in self._services():
                if meta.namespace == namespace:
                    await self._events.post_about(meta, type="Warning", reason=NOT_WRITTEN, message=problem)

    async def _write(self, namespace: str, text: str) -> str:
        """Bring it to what it should hold. Returns why it is left alone, empty if it is not."""
        wanted = _config_map(namespace, text)
        try:
            found = await self._api.get(CONFIG_MAPS, namespace, names.PUBLIC_KEYS)
        except NotFoundError:
            await self._api.create(CONFIG_MAPS, namespace, wanted)
            return ""
        if (found["metadata"].get("labels") or {}).get(names.LABEL_MANAGED_BY) != names.MANAGED_BY:
            return (
                f"ConfigMap {names.PUBLIC_KEYS} in namespace {namespace} lacks the label {names.LABEL_MANAGED_BY}:"
                f" {names.MANAGED_BY}, so it is left alone, and engines accept the keys in it: delete it"
            )
        if (found.get("data") or {}).get(names.PUBLIC_KEYS_KEY) != text:
            identity = {"uid": uid(found), "resourceVersion": found["metadata"]["resourceVersion"]}
            await self._api.apply(CONFIG_MAPS, {**wanted, "metadata": {**wanted["metadata"], **identity}})
        return ""


def _config_map(namespace: str, text: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.PUBLIC_KEYS,
            "namespace": namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
        },
        "data": {names.PUBLIC_KEYS_KEY: text},
    }
