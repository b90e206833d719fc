"""Posts events about services: on transitions, no repeats, and a bound on how many.

An event is a courtesy. It is never retried, and never holds up or fails what it tells about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from cachetools import LRUCache, TTLCache

from flyball_operator.api import names
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.objects import Object, timestamp
from flyball_operator.api.v1alpha1 import InferenceService, ObjectMeta
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ClusterError
from flyball_operator.kube.resources import EVENTS

#: Seconds within which the same words about the same service are not repeated.
REPEAT_SECONDS: Final = 600.0
#: Events about one service: this many at once, then one per so many seconds.
BURST: Final = 20.0
REFILL_SECONDS: Final = 30.0
_REMEMBERED: Final = 4096
_MESSAGE_LENGTH: Final = 1000

log = logging.getLogger(__name__)


@dataclass
class _Allowance:
    tokens: float
    at: float


class EventPoster:
    """Posts events as one writer (implements `tuning.ports.Events`)."""

    def __init__(
        self,
        api: KubeApi,
        *,
        instance: str,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        new_id: Callable[[], str],
    ) -> None:
        self._api = api
        self._instance = instance
        self._clock = clock
        self._now = now
        self._new_id = new_id
        self._posted: TTLCache[tuple[str, str, str], None] = TTLCache(_REMEMBERED, REPEAT_SECONDS, timer=clock)
        self._allowances: LRUCache[str, _Allowance] = LRUCache(_REMEMBERED)

    async def post(
        self,
        service: InferenceService,
        *,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own field name
        reason: str,
        message: str,
    ) -> None:
        """Post one event on a transition. Never raises."""
        await self.post_about(service.metadata, type=type, reason=reason, message=message)

    async def post_about(
        self,
        meta: ObjectMeta,
        *,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own field name
        reason: str,
        message: str,
    ) -> None:
        """The same about a service that may not parse."""
        if self._repeats(meta.uid, reason, message) or not self._allowed(meta.uid):
            return
        event = self._event(meta, kind=type, reason=reason, message=message)
        try:
            await self._api.create(EVENTS, meta.namespace, event)
        except ClusterError as error:
            log.warning(
                "event %s about %s/%s was not posted: %s",
                reason,
                meta.namespace,
                meta.name,
                error,
                extra=logged(LogEvent.EVENT_NOT_POSTED, meta.namespace, meta.name),
            )

    def _event(self, meta: ObjectMeta, *, kind: str, reason: str, message: str) -> Object:
        moment = timestamp(self._now())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta.name}.{self._new_id()}", "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
            "type": kind,
            "reason": reason,
            "message": message[:_MESSAGE_LENGTH],
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
            "source": {"component": names.MANAGED_BY},
            "reportingComponent": names.MANAGED_BY,
            "reportingInstance": self._instance,
        }

    def _repeats(self, uid: str, reason: str, message: str) -> bool:
        event = (uid, reason, message)
        if event in self._posted:
            return True
        self._posted[event] = None
        return False

    def _allowed(self, uid: str) -> bool:
        now = self._clock()
        allowance = self._allowances.setdefault(uid, _Allowance(BURST, now))
        allowance.tokens = min(BURST, allowance.tokens + (now - allowance.at) / REFILL_SECONDS)
        allowance.at = now
        if allowance.tokens < 1:
            return False
        allowance.tokens -= 1
        return True
