"""Reads, from the API server itself, everything a plan is made from.

Watches only say when to look. Decisions that are written rest on live reads (quorum reads, without a resource version).
So a lagging watch cannot make us act on an object that is gone or another's. Services that are read at the same time
share their lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from flyball_engine.model_cache import Progress
from flyball_operator.api import names
from flyball_operator.api.desire import Desire, read_desire
from flyball_operator.api.membership import Owner, members, members_of_groups
from flyball_operator.api.objects import ROUTE_KINDS, Kind, Object, controlled_by, name, uid
from flyball_operator.api.service_key import Key
from flyball_operator.api.shards import Shard
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import (
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
    UnknownKindError,
)
from flyball_operator.kube.resources import (
    ENDPOINT_SLICES,
    INFERENCE_SERVICES,
    JOBS,
    OWNED,
    PODS,
    REPLICA_SETS,
    REVISIONS,
    STATEFUL_SETS,
    VOLUME_CLAIMS,
    Resource,
)
from flyball_operator.kube.shared_lists import SharedLists
from flyball_operator.reconcile.plan import adapters, model_cache, pod, routing, workload
from flyball_operator.reconcile.plan.event_causes import claim_to_ask_about, job_to_ask_about, pods_to_ask_about
from flyball_operator.reconcile.plan.groups import stateful_sets_to_ask_about
from flyball_operator.reconcile.plan.owned_objects import API_VERSIONS
from flyball_operator.reconcile.plan.snapshot import Config, Snapshot


@dataclass(frozen=True)
class Observed:
    """A service as read, and all else that was read with it."""

    raw: Object
    snapshot: Snapshot


class SnapshotReader:
    """Makes snapshots of the services of a shard, by default of all.

    `progress`: asks the pod at an IP address how far its download is. Without, nobody is asked. `note_members`:
    told the UIDs of the pods of a service that has a LeaderWorkerSet, for nobody watches how they are its.
    """

    def __init__(
        self,
        api: KubeApi,
        config: Config,
        shard: Shard | None = None,
        progress: Callable[[str], Awaitable[Progress | None]] | None = None,
        note_members: Callable[[Owner, frozenset[str]], None] = lambda *_: None,
    ) -> None:
        self._api = api
        self._lists = SharedLists(api)
        self._config = config
        self._shard = shard or Shard()
        self._progress = progress
        self._note_members = note_members

    async def service(self, key: Key) -> Object | None:
        """The service alone; None if there is no such service of ours."""
        raw = await self._get(INFERENCE_SERVICES, key)
        # The name may be another service's by now, and that another replica's.
        return raw if raw is not None and self._shard.has(raw["metadata"]["uid"]) else None

    async def read(self, key: Key, *, now: datetime, epoch: int) -> Observed | None:
        """The service and everything around it; None if there is no such service of ours."""
        raw = await self.service(key)
        if raw is None:
            return None
        # After the service: what is read later is never older than what it is judged by.
        desire = read_desire(raw)
        if desire.service is not None and desire.service.spec.workload is not None:
            pods, _ = await self._api.list(PODS, key.namespace, selector=desire.service.spec.workload.text)
            found = workload.choose(desire.service, pods)
            others = Snapshot(desire, now, self._config, pods=found.tuned, workload=found, epoch=epoch)
            return Observed(raw, others)
        own_uid = desire.meta.uid
        over_nodes = desire.service is not None and desire.service.spec.parallelism.nodes > 1
        objects, revisions, (between, refused), pods, slices, (jobs, job_pods) = await asyncio.gather(
            self._objects(key, desire),
            self._lists.of(REVISIONS, key.namespace, names.LABEL_SERVICE_UID, own_uid),
            self._between(key, own_uid, over_nodes=over_nodes),
            self._lists.of(PODS, key.namespace, names.LABEL_SERVICE_UID, own_uid),
            self._lists.of(ENDPOINT_SLICES, key.namespace, "kubernetes.io/service-name", key.name),
            self._jobs(key, desire),
        )
        routes, unreadable = await self._routes(key, desire)
        listed, hidden = await self._adapters(key, desire)
        own = Owner(key.namespace, key.name, own_uid)
        groups, no_groups = await self._groups(key) if over_nodes else ({}, {})
        if over_nodes:
            no_groups |= {Kind.LEADER_WORKER_SET: refused} if refused else {}
            mine = members_of_groups(own, pods, between, groups.get(Kind.LEADER_WORKER_SET))
            if not no_groups:
                self._note_members(own, frozenset(map(uid, mine)))
        else:
            mine = members(own, pods, between, objects.get(Kind.DEPLOYMENT))
        snapshot = Snapshot(
            desire=desire,
            now=now,
            config=self._config,
            objects=objects | routes | listed | groups,
            unreadable=unreadable | hidden | no_groups,
            revisions=tuple(found for found in revisions if controlled_by(found, own_uid)),
            pods=mine,
            jobs=jobs,
            job_pods=job_pods,
            progress=await self._progress_of(job_pods),
            events=await self._events(
                key,
                stateful_sets_to_ask_about(groups.get(Kind.LEADER_WORKER_SET), mine, between, now),
                *pods_to_ask_about(mine, now),
                *pods_to_ask_about(job_pods, now),
                job_to_ask_about(jobs, job_pods, now),
                claim_to_ask_about(objects.get(Kind.VOLUME_CLAIM), now),
            ),
            slices=tuple(slices),
            epoch=epoch,
        )
        return Observed(raw, snapshot)

    async def _objects(self, key: Key, desire: Desire) -> dict[Kind, Object]:
        """The object of the service's name of each kind; where it asks for one, the model's claim."""
        reads = {kind: self._named(OWNED[kind], key, desire.meta.uid) for kind in self._config.named_kinds}
        service = desire.service
        if service is not None and service.spec.model.claim_to_make is not None:
            reads[Kind.VOLUME_CLAIM] = self._get(VOLUME_CLAIMS, Key(key.namespace, str(pod.claim(service))))
        read = zip(reads, await asyncio.gather(*reads.values()), strict=True)
        return {kind: _typed(found, kind) for kind, found in read if found is not None}

    async def _between(self, key: Key, own_uid: str, *, over_nodes: bool) -> tuple[Sequence[Object], str]:
        """What lies between the pods and what makes them, and the API server's words where that may not be listed.

        StatefulSets of other services are among these.
        """
        if not over_nodes:
            return await self._lists.of(REPLICA_SETS, key.namespace, names.LABEL_SERVICE_UID, own_uid), ""
        try:
            found, _ = await self._api.list(
                STATEFUL_SETS, key.namespace, selector=f"{names.LABEL_GROUPS}={key.name}", metadata_only=True
            )
        except UnauthorizedError:
            raise
        except ForbiddenError as error:
            return (), str(error)
        return found, ""

    async def _groups(self, key: Key) -> tuple[dict[Kind, Object], dict[Kind, str]]:
        """The LeaderWorkerSet, or why there can be none: the cluster may lack the kind, and we the right."""
        kind = Kind.LEADER_WORKER_SET
        try:
            return {kind: _typed(await self._api.get(OWNED[kind], key.namespace, key.name), kind)}, {}
        except UnknownKindError:
            return {}, {kind: ""}
        except UnauthorizedError:
            raise
        except ForbiddenError as error:
            return {}, {kind: str(error)}
        except NotFoundError:
            return {}, {}

    async def _named(self, resource: Resource, key: Key, own_uid: str) -> Object | None:
        """The object of the service's name. One that is not among those with our label is asked for by itself."""
        listed = await self._lists.of(resource, key.namespace, names.LABEL_SERVICE_UID, own_uid)
        found = next((one for one in listed if name(one) == key.name), None)
        return found if found is not None else await self._get(resource, key)

    async def _adapters(self, key: Key, desire: Desire) -> tuple[dict[Kind, Object], dict[Kind, str]]:
        """The ConfigMap of a service with adapters, or why it may not be read: not everybody grants that right."""
        if desire.service is None or desire.service.spec.adapters is None:
            return {}, {}
        try:
            found = await self._get(OWNED[Kind.CONFIG_MAP], Key(key.namespace, adapters.config_map_name(key.name)))
        except UnauthorizedError:
            raise
        except ForbiddenError as error:
            return {}, {Kind.CONFIG_MAP: str(error)}
        return ({} if found is None else {Kind.CONFIG_MAP: _typed(found, Kind.CONFIG_MAP)}), {}

    async def _routes(self, key: Key, desire: Desire) -> tuple[dict[Kind, Object], dict[Kind, str]]:
        """The route and pool of a service that names a gateway, or did; and kinds that cannot be read."""
        found: dict[Kind, Object] = {}
        unreadable: dict[Kind, str] = {}
        for kind in ROUTE_KINDS if routing.concerns(desire) else ():
            try:
                found[kind] = _typed(await self._api.get(OWNED[kind], key.namespace, key.name), kind)
            except UnknownKindError:
                unreadable[kind] = ""
            except UnauthorizedError:
                raise
            except (ForbiddenError, UnavailableError) as error:
                unreadable[kind] = str(error)
            except NotFoundError:
                continue
        return found, unreadable

    async def _jobs(self, key: Key, desire: Desire) -> tuple[tuple[Object, ...], tuple[Object, ...]]:
        """Jobs of a service that has a model cache, or may have had one, and pods of these Jobs. Most have none.

        While a service is not accepted its status says nothing of the model.
        """
        asked = desire.service is not None and desire.service.spec.model.cache is not None
        known = {one.type: one.status for one in desire.status.conditions}
        if not asked and known.get(ConditionType.ACCEPTED) == "True" and ConditionType.MODEL_READY not in known:
            return (), ()
        found = await self._lists.of(JOBS, key.namespace, names.LABEL_SERVICE_UID, desire.meta.uid)
        jobs = tuple(_typed(job, Kind.JOB) for job in found if controlled_by(job, desire.meta.uid))
        of_jobs = (self._lists.of(PODS, key.namespace, names.LABEL_JOB, name(job)) for job in jobs)
        listed = await asyncio.gather(*of_jobs)
        pods = zip(jobs, listed, strict=True)
        return jobs, tuple(pod for job, items in pods for pod in items if controlled_by(pod, uid(job)))

    async def _progress_of(self, job_pods: Sequence[Object]) -> dict[str, Progress]:
        """How far downloads are that are under way, by the UID of their pods: one, or that of an earlier spec, too."""
        found: dict[str, Progress] = {}
        for one in filter(model_cache.downloads, job_pods):
            ip = (one.get("status") or {}).get("podIP")
            if self._progress is not None and ip and (progress := await self._progress(ip)) is not None:
                found[uid(one)] = progress
        return found

    async def _events(self, key: Key, stateful_sets: Sequence[Object], *asked: Object | None) -> tuple[Object, ...]:
        """Events of the few objects that wait: there may be thousands in a namespace."""
        waiting = (uid(found) for found in asked if found is not None)
        listed = await asyncio.gather(
            *(self._lists.events(key.namespace, one) for one in waiting),
            *(self._lists.events_of_stateful_set(key.namespace, uid(one)) for one in stateful_sets),
        )
        return tuple(event for events in listed for event in events)

    async def _get(self, resource: Resource, key: Key) -> Object | None:
        try:
            return await self._api.get(resource, key.namespace, key.name)
        except NotFoundError:
            return None


def _typed(found: Object, kind: Kind) -> Object:
    # An item of a list says neither.
    return {**found, "apiVersion": API_VERSIONS[kind], "kind": kind.value}
