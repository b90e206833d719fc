"""Reads, from the API server itself, everything a plan is made from.

Watches only say when to look. Decisions that are written rest on live reads (quorum reads, without a resource version).
So a lagging watch cannot make us act on an object that is gone or another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from flyball_operator.api import names
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import NotFoundError
from flyball_operator.kube.resources import (
    ENDPOINT_SLICES,
    EVENTS,
    INFERENCE_SERVICES,
    OWNED,
    PODS,
    REPLICA_SETS,
    REVISIONS,
    Resource,
)
from flyball_operator.reconcile.plan.event_causes import pod_to_ask_about
from flyball_operator.reconcile.plan.membership import Owner, members
from flyball_operator.reconcile.plan.objects import Kind, Object, controlled_by, uid
from flyball_operator.reconcile.plan.snapshot import Config, Snapshot, read_desire


@dataclass(frozen=True, order=True)
class Key:
    """Namespace and name of a service: what queues and logs name it by. Decisions name it by UID."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Observed:
    """A service as read, and all else that was read with it."""

    raw: Object
    snapshot: Snapshot


class SnapshotReader:
    """Makes snapshots."""

    def __init__(self, api: KubeApi, config: Config) -> None:
        self._api = api
        self._config = config

    async def service(self, key: Key) -> Object | None:
        """The service alone; None if there is no such service."""
        return await self._get(INFERENCE_SERVICES, key)

    async def read(self, key: Key, *, now: datetime, epoch: int) -> Observed | None:
        """The service and everything around it; None if there is no such service."""
        raw = await self.service(key)
        if raw is None:
            return None
        # After the service: what is read later is never older than what it is judged by.
        desire = read_desire(raw)
        kinds = self._config.named_kinds
        ours = f"{names.LABEL_SERVICE_UID}={desire.meta.uid}"
        named, revisions, replica_sets, pods, slices = await asyncio.gather(
            asyncio.gather(*(self._get(OWNED[kind], key) for kind in kinds)),
            self._list(REVISIONS, key, ours),
            self._list(REPLICA_SETS, key, ours),
            self._list(PODS, key, ours),
            self._list(ENDPOINT_SLICES, key, f"kubernetes.io/service-name={key.name}"),
        )
        own = Owner(key.namespace, key.name, desire.meta.uid)
        objects = {kind: found for kind, found in zip(kinds, named, strict=True) if found is not None}
        mine = members(own, pods, replica_sets, objects.get(Kind.DEPLOYMENT))
        snapshot = Snapshot(
            desire=desire,
            now=now,
            config=self._config,
            objects={kind: _typed(found, kind) for kind, found in objects.items()},
            revisions=tuple(found for found in revisions if controlled_by(found, desire.meta.uid)),
            pods=mine,
            events=tuple(await self._events(key, mine, now)),
            slices=tuple(slices),
            epoch=epoch,
        )
        return Observed(raw, snapshot)

    async def _events(self, key: Key, pods: Sequence[Object], now: datetime) -> list[Object]:
        """Events of one pod at most, and only of one that waits: there may be thousands in a namespace."""
        pod = pod_to_ask_about(pods, now)
        if pod is None:
            return []
        items, _ = await self._api.list(EVENTS, key.namespace, fields=f"involvedObject.uid={uid(pod)}")
        return items

    async def _get(self, resource: Resource, key: Key) -> Object | None:
        try:
            return await self._api.get(resource, key.namespace, key.name)
        except NotFoundError:
            return None

    async def _list(self, resource: Resource, key: Key, selector: str) -> list[Object]:
        items, _ = await self._api.list(resource, key.namespace, selector=selector)
        return items


def _typed(found: Object, kind: Kind) -> Object:
    return {**found, "kind": kind.value}
