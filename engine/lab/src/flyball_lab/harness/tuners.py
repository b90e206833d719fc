"""A tuner with its surroundings in memory: what the API server would hold, who leads, and what was said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry, generate_latest

from flyball_engine.signing import Signer
from flyball_lab.harness.engines import ServedEngine
from flyball_lab.harness.ports import free_port
from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import (
    AnalysisStatus,
    Condition,
    ConditionType,
    InferenceService,
    ObjectiveStatus,
    ScalingStatus,
    TuningStatus,
)
from flyball_operator.engines.client import EngineClient, engine_session
from flyball_operator.kube.errors import NotFoundError
from flyball_operator.tuning.dependencies import Dependencies
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.observe.signals import (
    Attainment,
    Identity,
    ObjectiveCounts,
    Observation,
    PodOutcomes,
    Unobserved,
)
from flyball_operator.tuning.ports import EnginePod, EventType
from flyball_operator.tuning.tuner import SignalReader, Tuner

PATIENCE = 60.0


def inference_service(uid: str = "uid-1", *, name: str = "chat", generation: int = 1, **spec: Any) -> InferenceService:
    """A governed service with a TPOT and a gap objective, on the CPU's ceilings."""
    objectives = [
        {"name": "tpot", "metric": "TimePerOutputToken", "threshold": "60ms"},
        {"name": "itl", "metric": "InterTokenLatency", "threshold": "250ms"},
    ]
    base: dict[str, Any] = {
        "model": {"uri": "file:///model"},
        "engine": {"image": "engine:1"},
        "objectives": objectives,
        "batching": {"maxNumSeqs": 128, "maxNumBatchedTokens": 2048},
    }
    metadata = {"name": name, "namespace": "team", "uid": uid, "generation": generation}
    return InferenceService.model_validate({"metadata": metadata, "spec": base | spec})


@dataclass
class TunerEnvironment:
    """Services, pods, leadership, status and events, as the API server has them (implements the tuner's ports)."""

    services: dict[str, InferenceService] = field(default_factory=dict)
    engines: dict[str, list[ServedEngine]] = field(default_factory=dict)
    epoch: int = 1
    leading: bool = True
    #: How often an epoch may be raised.
    raises: int = 1
    asked: int = 0
    writes: list[tuple[str, TuningStatus]] = field(default_factory=list)
    refuse_writes: bool = False
    events: list[tuple[str, str]] = field(default_factory=list)
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    port: int = field(default_factory=free_port)

    def all(self) -> Sequence[InferenceService]:
        return list(self.services.values())

    def pods(self, service_uid: str) -> Sequence[EnginePod]:
        return [engine.pod() for engine in self.engines.get(service_uid, [])]

    def may_act(self) -> bool:
        self.asked += 1
        return self.leading

    def raise_epoch(self, above: int) -> None:
        """As the Lease does, which is let once an hour."""
        if self.raises and above >= self.epoch:
            self.raises -= 1
            self.epoch = above + 1

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
        if self.refuse_writes:
            raise ConnectionError("the API server is away")
        uid = service.metadata.uid
        if uid not in self.services:
            raise NotFoundError(f"no service {uid}")
        self.writes.append((uid, tuning))
        status = self.services[uid].status.model_copy(
            update={
                "tuning": tuning,
                "objectives": tuple(objectives),
                "objectives_met": objectives_met,
                "desired_replicas": desired_replicas,
                "conditions": tuple(conditions),
                "scaling": scaling,
                "analysis": analysis,
            }
        )
        self.services[uid] = self.services[uid].model_copy(update={"status": status})

    async def post(self, service: InferenceService, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        self.events.append((reason, message))

    # What tests say and ask.

    def serve(self, service: InferenceService, *engines: ServedEngine) -> None:
        self.services[service.metadata.uid] = service
        self.engines[service.metadata.uid] = list(engines)

    def edit(self, uid: str = "uid-1", **spec: Any) -> None:
        """The user changes the spec."""
        old = self.services[uid]
        changed = old.spec.model_dump(by_alias=True) | spec
        document = {"metadata": old.metadata.model_dump(by_alias=True), "spec": changed, "status": old.status}
        self.services[uid] = InferenceService.model_validate(document)

    def annotate(self, uid: str = "uid-1", **annotations: str) -> None:
        """The user sets the annotations of our group there shall be, by what follows the slash."""
        old = self.services[uid]
        named = {f"{names.GROUP}/{name}": value for name, value in annotations.items()}
        metadata = old.metadata.model_copy(update={"annotations": named})
        self.services[uid] = old.model_copy(update={"metadata": metadata})

    def engine(self, name: str = "chat-0", uid: str = "uid-1", **options: Any) -> ServedEngine:
        return ServedEngine(name, f"{uid}-{name}", uid, self.key, self.port, **options)

    def tuning(self, uid: str = "uid-1") -> TuningStatus:
        return self.services[uid].status.tuning

    def holds_setpoint(self, pod: ServedEngine) -> bool:
        """Whether an engine runs under the limits that status names."""
        live = self.tuning(pod.service).setpoint
        return pod.limits == (live.max_num_active_seqs, live.max_num_scheduled_tokens)

    def condition(self, kind: ConditionType, uid: str = "uid-1") -> tuple[str, str]:
        """Status and reason of a condition; empty if it was never written."""
        found = [c for c in self.services[uid].status.conditions if c.type == kind]
        return (found[0].status, found[0].reason) if found else ("", "")

    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.events]


@dataclass
class ScriptedReader:
    """Signals as a test sets them, for scenarios that turn on what was observed (implements `SignalReader`)."""

    observation: Observation
    outcomes: Mapping[str, ObjectiveCounts] | Unobserved = field(default_factory=dict)
    reads: int = 0
    by_pod: PodOutcomes | Unobserved = field(default_factory=dict)
    #: Windows that were asked for, in seconds.
    windows: list[int] = field(default_factory=list)

    async def read(self, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        self.reads += 1
        return dict.fromkeys(pods, self.observation)

    async def attainment(self) -> Mapping[Identity, Attainment] | Unobserved:
        if isinstance(self.outcomes, Unobserved):
            return self.outcomes
        return {("team", uid): Attainment(outcomes=self.outcomes) for uid in ("uid-1", "uid-2")}

    async def pod_outcomes(self, windows: Mapping[Identity, int]) -> Mapping[Identity, PodOutcomes | Unobserved]:
        self.windows += windows.values()
        return dict.fromkeys(windows, self.by_pod)


@dataclass
class Thinking:
    """A tuner at work."""

    registry: CollectorRegistry
    tuner: Tuner

    def metrics(self) -> str:
        """The tuner's own scrape."""
        return generate_latest(self.registry).decode()


@asynccontextmanager
async def thinking(
    world: TunerEnvironment,
    reader: SignalReader,
    *,
    tick: float = 0.1,
    grace: float = 20.0,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    metrics: Callable[[CollectorRegistry], TunerMetrics] = TunerMetrics,
) -> AsyncIterator[Thinking]:
    """Run a tuner over a world; what it raises, the test raises. `wall`: the time it decides for."""
    registry = CollectorRegistry()
    async with engine_session() as session:
        client = EngineClient(session, lambda: [Signer(world.key)], may_act=world.may_act, wall=time.time, clock=clock)
        dependencies = Dependencies(client, world, world, world, metrics(registry), wall, clock, grace)
        tuner = Tuner(services=world, reader=reader, dependencies=dependencies, tick_seconds=tick)
        task = asyncio.create_task(tuner.run())
        try:
            yield Thinking(registry, tuner)
        finally:
            if task.done():
                task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(what: str, holds: Callable[[], bool], *, patience: float = PATIENCE) -> None:
    """Wait for a condition, with a generous limit."""
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.02)
