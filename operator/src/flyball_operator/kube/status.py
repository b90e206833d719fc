"""Writes the status: two managers, each applying its whole part, each to the UID and version it has seen.

A partial apply under one manager erases what it leaves out, so reconciler and tuner have a manager each and always
write all they own. The resource version makes a write that was held up on its way (a hung proxy) a conflict once
anybody else has written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from cachetools import LRUCache

from flyball_operator.api import names
from flyball_operator.api.objects import Object, digest, timestamp
from flyball_operator.api.v1alpha1 import (
    AnalysisStatus,
    Condition,
    InferenceService,
    ObjectiveStatus,
    ScalingStatus,
    TuningStatus,
)
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ClusterError, ConflictError
from flyball_operator.kube.resources import INFERENCE_SERVICES

#: Least seconds between two writes that change neither a condition nor a setpoint.
QUIET_SECONDS: Final = 60.0
_ATTEMPTS: Final = 4
_REMEMBERED: Final = 10_000


async def apply_status(api: KubeApi, metadata: Object, status: Object) -> Object:
    """Apply one manager's whole part to exactly the object of this metadata.

    Raises `ConflictError` if it has moved on.
    """
    identity = {field: metadata[field] for field in ("name", "namespace", "uid", "resourceVersion")}
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": identity, "status": status}
    return await api.apply(INFERENCE_SERVICES, body, subresource="status")


@dataclass(frozen=True, slots=True)
class _Written:
    """What was written last, `whole` as a digest.

    `version`: of the service with it, empty where another process wrote it.
    """

    whole: str
    urgent: tuple[object, ...]
    at: float
    version: str = ""


@dataclass(frozen=True, slots=True)
class _Rendered:
    """The digest of what is `given`, on the status of this version of the service."""

    given: tuple[object, ...]
    version: str
    whole: str


class TunerStatus:
    """Applies the tuner's part, holding back what can wait (implements `tuning.ports.TunerStatusWriter`)."""

    def __init__(self, api: KubeApi, *, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._api = api
        self._clock = clock
        self._now = now
        self._written: LRUCache[str, _Written] = LRUCache(_REMEMBERED)
        self._rendered: LRUCache[str, _Rendered] = LRUCache(_REMEMBERED)

    async def write(
        self,
        service: InferenceService,
        *,
        tuning: TuningStatus,
        objectives: Sequence[ObjectiveStatus],
        objectives_met: str,
        desired_replicas: int | None,
        conditions: Sequence[Condition],
        scaling: ScalingStatus | None = None,
        analysis: AnalysisStatus | None = None,
    ) -> None:
        """Write the tuner's whole part; what is left out is erased, as `desired_replicas` is where it is not known.

        Nothing is sent where nothing changed, nor, within a minute of the last write, where none of conditions, limits,
        number of replicas and phase of the analysis changed: call again with what is then true. Raises `ConflictError`
        where the service is another by now, `NotLeadingError`, and the rest of the tree.
        """

        def render() -> Object:
            return {
                "tuning": _plain(tuning),
                "objectives": [_plain(objective) for objective in objectives],
                "objectivesMet": objectives_met,
                "conditions": [self._dated(service, condition) for condition in conditions],
            } | _given(desired_replicas, scaling, analysis)

        uid = service.metadata.uid
        if uid not in self._written:
            # A process that starts does not know when this was written, and must not write because it started.
            self._written[uid] = self._found(service, conditions)
        before, now = self._written[uid], self._clock()
        urgent = _urgent(tuning, conditions, scaling, analysis)
        # Most ticks change figures alone, and to render those takes longest.
        if urgent == before.urgent and now - before.at < QUIET_SECONDS:
            return
        given = (
            tuning,
            tuple(objectives),
            objectives_met,
            desired_replicas,
            tuple(conditions),
            scaling,
            analysis,
        )
        rendered, part = self._rendered.get(uid), None
        # Most ticks say what the one before said, and to find that out by digests takes longest.
        if rendered is None or not self._is_same(rendered, service, given):
            part = render()
            rendered = self._rendered[uid] = _Rendered(given, service.metadata.resource_version, digest(part))
        if rendered.whole == before.whole:
            return
        try:
            # Anew, with the dates of now, if it was held back: digests are all that is kept.
            part = part or render()
            version = await self._apply(service, part)
        except ClusterError:
            # It may have landed all the same: the next write is held against what is seen then.
            self._written.pop(uid, None)
            raise
        whole = digest(part)
        self._rendered[uid] = replace(rendered, whole=whole)
        self._written[uid] = _Written(whole, urgent, now, version)

    def _is_same(self, rendered: _Rendered, service: InferenceService, given: tuple[object, ...]) -> bool:
        """Whether the same was rendered, on the same version of the service, be it the one that was made by it."""
        version = service.metadata.resource_version
        written = self._written.get(service.metadata.uid)
        known = {rendered.version} if written is None else {rendered.version, written.version}
        return version != "" and version in known and rendered.given == given

    def _found(self, service: InferenceService, conditions: Sequence[Condition]) -> _Written:
        """What an earlier process left there: equal to it, nothing needs writing."""
        status = service.status
        mine = {condition.type for condition in conditions}
        part: Object = {
            "tuning": _plain(status.tuning),
            "objectives": [_plain(objective) for objective in status.objectives],
            "objectivesMet": status.objectives_met,
            "conditions": [_plain(found) for found in status.conditions if found.type in mine],
        } | _given(status.desired_replicas, status.scaling, status.analysis)
        known = [found for found in status.conditions if found.type in mine]
        urgent = _urgent(status.tuning, known, status.scaling, status.analysis)
        return _Written(digest(part), urgent, self._clock())

    def _dated(self, service: InferenceService, condition: Condition) -> Object:
        before = next((found for found in service.status.conditions if found.type == condition.type), None)
        if condition.last_transition_time:
            return _plain(condition)
        same = before is not None and before.status == condition.status and before.last_transition_time
        moment = before.last_transition_time if before is not None and same else timestamp(self._now())
        return _plain(condition.model_copy(update={"last_transition_time": moment}))

    async def _apply(self, service: InferenceService, part: Object) -> str:
        """Returns the version of the service with it."""
        meta = service.metadata
        metadata: Object = {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        }
        for _ in range(_ATTEMPTS - 1):
            with suppress(ConflictError):
                return _version(await apply_status(self._api, metadata, part))
            # Somebody wrote since we read, mostly the reconciler. The lease is asked for again at every attempt.
            live = await self._api.get(INFERENCE_SERVICES, meta.namespace, meta.name)
            if live["metadata"]["uid"] != meta.uid:
                raise ConflictError(f"{meta.namespace}/{meta.name} is another service by now")
            metadata = live["metadata"]
        return _version(await apply_status(self._api, metadata, part))


def _version(written: Object) -> str:
    return str(written["metadata"].get("resourceVersion") or "")


def _plain(model: TuningStatus | ObjectiveStatus | ScalingStatus | AnalysisStatus | Condition) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _given(desired_replicas: int | None, scaling: ScalingStatus | None, analysis: AnalysisStatus | None) -> Object:
    given: Object = {} if desired_replicas is None else {"desiredReplicas": desired_replicas}
    given |= {} if scaling is None else {"scaling": _plain(scaling)}
    return given if analysis is None else given | {"analysis": _plain(analysis)}


def _urgent(
    tuning: TuningStatus,
    conditions: Sequence[Condition],
    scaling: ScalingStatus | None,
    analysis: AnalysisStatus | None,
) -> tuple[object, ...]:
    """What is written at once when it changes."""
    said = [(condition.type, condition.status, condition.reason) for condition in conditions]
    judged = None if analysis is None else (analysis.revision, analysis.start_time, analysis.phase)
    return said, tuning.mode, tuning.generation, tuning.setpoint, None if scaling is None else scaling.replicas, judged
