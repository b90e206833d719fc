"""What the service, its pod and its engine say of themselves, read once a second and never missed.

A decision stays in the status until five newer ones came, and the tuner decides at most every few seconds: reading once
a second sees them all. Here they are kept for the table. Events are kept likewise.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from flyball_engine.contract import CONTROL_PORT, METRICS_PATH, SETPOINT_PATH, CoreState, Limits, MetricName, ReadBack
from flyball_engine.control_port import ForeignAnswerError, read_back_of
from flyball_lab.demo.errors import DemoError, GoneError, KubeRequestError, WaitError
from flyball_lab.demo.kube import ApiReader
from flyball_operator.api.names import API_VERSION, CONTAINER_ENGINE, KIND, LABEL_SERVICE, PLURAL
from flyball_operator.api.v1alpha1 import Condition, DecisionStatus, InferenceService

POLL_SECONDS = 1.0
#: A busy engine's front end answers late; one that says nothing for so long is not there.
FRESH_SECONDS = 60.0
#: Events are asked for less often; they stay for an hour.
POLLS_PER_EVENTS = 5

#: Counters of one engine: (metric, objective id or empty, outcome) to value.
Counters = dict[tuple[str, str, str], float]
COUNTED = (
    MetricName.OBJECTIVE_REQUESTS,
    MetricName.ALL_OBJECTIVES_REQUESTS,
    MetricName.REQUESTS,
    MetricName.RETUNES,
)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """The engine pod. `problem` says why its containers wait or ended, in the kubelet's words; empty if they run."""

    name: str
    uid: str
    ready: bool
    restarts: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class DemoSnapshot:
    """What was read at one moment; None where there was nothing to read."""

    service: InferenceService | None = None
    pod: Pod | None = None
    engine: ReadBack | None = None
    counters: Counters = field(default_factory=dict)

    @property
    def core(self) -> CoreState | None:
        """The engine core of the pod; the demo's engine has one."""
        return self.engine.cores[0] if self.engine and self.engine.cores else None

    @property
    def limits(self) -> Limits | None:
        """The limits in force."""
        return self.core.effective if self.core else None

    @property
    def gated(self) -> bool:
        """True if the engine refuses by a deadline."""
        return self.engine is not None and self.engine.accepted is not None and self.engine.accepted.shed is not None

    @property
    def idle(self) -> bool:
        """True if the engine surely has nothing to do."""
        return self.core is not None and self.core.running == 0 and self.core.waiting == 0

    def condition(self, kind: str) -> Condition | None:
        """A condition of the service by its type."""
        conditions = self.service.status.conditions if self.service else ()
        return next((condition for condition in conditions if condition.type.value == kind), None)

    @property
    def ready(self) -> bool:
        """True if this generation of the service is ready and its engine answers."""
        condition = self.condition("Ready")
        return (
            self.service is not None
            and condition is not None
            and condition.status == "True"
            and condition.observed_generation == self.service.metadata.generation
            and self.core is not None
        )


@dataclass(frozen=True)
class Happening:
    """An event about the service."""

    time: str
    type: str
    reason: str
    message: str


class Watcher:
    """Reads on and on (`run`), keeps the latest snapshot and all decisions and events since it began."""

    def __init__(self, reader: ApiReader, *, namespace: str, name: str) -> None:
        self.latest = DemoSnapshot()
        self.decisions: dict[tuple[str, str], DecisionStatus] = {}
        self.events: dict[str, Happening] = {}
        self._old: set[tuple[str, str]] | None = None
        self._reader = reader
        self._namespace = namespace
        self._name = name
        self._turn = asyncio.Condition()
        self._reads = 0

    async def run(self) -> None:
        """Read once a second until cancelled."""
        while True:
            began = time.monotonic()
            # The next reading may succeed, and until then the last one stands; waits have their own time limits.
            with contextlib.suppress(KubeRequestError):
                await self._read()
                async with self._turn:
                    self._reads += 1
                    self._turn.notify_all()
            await asyncio.sleep(max(0.1, began + POLL_SECONDS - time.monotonic()))

    async def fresh(self) -> DemoSnapshot:
        """A snapshot that was begun after this call, with what the engine says. Raises `WaitError`."""
        reads = self._reads
        return await self.until(
            lambda snapshot: self._reads >= reads + 2 and snapshot.engine is not None,
            limit=FRESH_SECONDS,
            what="an answer of the engine's control port",
        )

    async def until(self, holds: Callable[[DemoSnapshot], bool], *, limit: float, what: str) -> DemoSnapshot:
        """The first snapshot for which `holds`; raises `WaitError`, naming `what`, after `limit` seconds."""
        try:
            async with asyncio.timeout(limit), self._turn:
                await self._turn.wait_for(lambda: holds(self.latest))
        except TimeoutError as error:
            raise WaitError(f"after {limit:.0f} s still not seen: {what}") from error
        return self.latest

    async def _read(self) -> None:
        service = await self._service()
        pod = await self._pod() if service else None
        self.latest = replace(await self._engine(pod) if pod else DemoSnapshot(), service=service, pod=pod)
        if service:
            self._keep_decisions(service)
            if self._reads % POLLS_PER_EVENTS == 0:
                await self._keep_events(service)

    async def _service(self) -> InferenceService | None:
        path = f"/apis/{API_VERSION}/namespaces/{self._namespace}/{PLURAL}/{self._name}"
        try:
            return InferenceService.model_validate(await self._reader.json(path))
        except GoneError:
            return None
        except ValidationError as error:
            raise DemoError(f"the {KIND} reads otherwise than expected: {error}") from error

    async def _pod(self) -> Pod | None:
        selector = ("labelSelector", f"{LABEL_SERVICE}={self._name}")
        answer = await self._reader.json(f"/api/v1/namespaces/{self._namespace}/pods", [selector])
        living = [pod for pod in answer["items"] if "deletionTimestamp" not in pod["metadata"]]
        newest = max(living, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)
        return pod_of(newest) if newest else None

    async def _engine(self, pod: Pod) -> DemoSnapshot:
        proxy = f"/api/v1/namespaces/{self._namespace}/pods/{pod.name}:{CONTROL_PORT}/proxy"
        try:
            read_back = read_back_of(await self._reader.text(proxy + SETPOINT_PATH))
            return DemoSnapshot(engine=read_back, counters=counters_of(await self._reader.text(proxy + METRICS_PATH)))
        except (KubeRequestError, ForeignAnswerError):
            return DemoSnapshot()

    def _keep_decisions(self, service: InferenceService) -> None:
        seen = {(decision.time, decision.trigger): decision for decision in service.status.tuning.decisions}
        if self._old is None:
            self._old = set(seen)
        self.decisions |= {key: decision for key, decision in seen.items() if key not in self._old}

    async def _keep_events(self, service: InferenceService) -> None:
        uid = service.metadata.uid
        query = [("fieldSelector", f"involvedObject.uid={uid}")]
        answer = await self._reader.json(f"/api/v1/namespaces/{self._namespace}/events", query)
        self.events |= {event["metadata"]["name"]: happening_of(event) for event in answer["items"]}


def pod_of(pod: dict[str, Any]) -> Pod:
    """The engine pod in the demo's terms."""
    status = pod.get("status", {})
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    engine: dict[str, Any] = next((entry for entry in containers if entry["name"] == CONTAINER_ENGINE), {})
    states = [state for entry in containers for state in entry.get("state", {}).values() if "reason" in state]
    problems = [f"{state['reason']} {state.get('message', '')}".strip() for state in states]
    unscheduled = [
        condition.get("message", "")
        for condition in status.get("conditions", ())
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
    return Pod(
        name=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        ready=bool(engine.get("ready")),
        restarts=int(engine.get("restartCount", 0)),
        problem="; ".join([*unscheduled, *(problem for problem in problems if problem != "Completed")]),
    )


def counters_of(exposition: str) -> Counters:
    """The counters of interest among an engine's metrics; over several engine cores and objective sets, sums."""
    wanted = "".join(line + "\n" for line in exposition.splitlines() if line.startswith(COUNTED))
    counters: Counters = {}
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("objective", ""), sample.labels.get("outcome", ""))
            counters[key] = counters.get(key, 0.0) + sample.value
    return counters


def happening_of(event: dict[str, Any]) -> Happening:
    """An event in the demo's terms."""
    at = event.get("eventTime") or event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
    return Happening(time=at, type=event["type"], reason=event["reason"], message=event.get("message", ""))
