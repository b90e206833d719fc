"""Engines on loopback: the real control server of the plugin over a plant that runs in real time.

Each has an address of its own (127.x.y.z) and all share a port, as pods do. An engine can be killed and come back with
its start values.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as MetricFamily
from prometheus_client.registry import Collector

from flyball_engine.batching.batch_metrics import BATCH_SUMS_LENGTH, batch_counts
from flyball_engine.batching.gate import Gate
from flyball_engine.contract import (
    AnyKnob,
    Ceilings,
    CoreState,
    Env,
    Generation,
    Limits,
    Metric,
    MetricName,
    ObjectiveSpec,
    OrderCounts,
    QueueLimits,
    Setpoint,
    StepSums,
)
from flyball_engine.control.metrics import EngineCollector
from flyball_engine.control.server import bind, build_app, serve
from flyball_engine.control.service import ControlService, Reports, UnansweredError
from flyball_engine.control.state_file import CoreReport
from flyball_engine.control.tokens import verifier_of
from flyball_engine.signing import Signer
from flyball_lab.harness.plant import CPU, EnginePlant, PlantPhase, PlantRequest, arrivals, prompts_of
from flyball_operator.tuning.observe.signals import StepWindow
from flyball_operator.tuning.ports import EnginePod
from flyball_operator.tuning.spec import LatencyObjective

_ADDRESSES = itertools.cycle(range(1, 255))
_NO_BATCHES: Final = batch_counts([0.0] * BATCH_SUMS_LENGTH)
START = Limits(max_num_active_seqs=128, max_num_scheduled_tokens=2048, long_prefill_token_threshold=0)


@dataclass
class _Counts:
    """What the request metrics are made of."""

    requests: Mapping[str, int]
    objectives: Mapping[tuple[str, str], int]
    all_objectives: Mapping[tuple[str, str], int]
    generated_tokens: int
    prompt_tokens: int
    cached_prompt_tokens: int = 0
    open_objectives: Mapping[tuple[str, str], int] = field(default_factory=dict)
    classes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    unknown_class: int = 0
    adapters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    adapter_tokens: Mapping[str, int] = field(default_factory=dict)


class PlantEngine:
    """A `TunableEngine` for the control server: one core whose steps are a plant's."""

    version = "plant 1"

    def __init__(
        self, *, governed: bool = True, unsupported: Mapping[AnyKnob, str] | None = None, seed: int = 1
    ) -> None:
        self.governed = governed
        self.unsupported: Mapping[AnyKnob, str] = unsupported or {}
        self.ungated: str | None = None
        self.gate = Gate(lambda: None)
        self.queue: QueueLimits | None = None
        self.plant = EnginePlant(CPU, (), limits=START, seed=seed)
        self.applied: Generation | None = None
        self.history: list[Setpoint] = []
        self.silent = False
        self.order = OrderCounts()
        self.bias: float | None = None
        self.open_objectives: Mapping[tuple[str, str], int] = {}

    def healthy(self) -> bool:
        return True

    async def apply(self, setpoint: Setpoint) -> None:
        if self.silent:
            await asyncio.sleep(3600)
        self.history.append(setpoint)
        given = {knob.value: value for knob, value in setpoint.limits.given().items()}
        self.plant.limits = START.model_copy(update=given)
        self.applied = Generation(epoch=setpoint.epoch, generation=setpoint.generation)

    async def touch(self) -> None:
        raise UnansweredError

    def set_objectives(self, objectives: tuple[ObjectiveSpec, ...]) -> None:
        wanted = tuple(LatencyObjective(o.id, o.metric, o.threshold_seconds, 0.01) for o in objectives)
        if wanted != self.plant.objectives:
            self.plant.objectives = wanted
            self.plant.counts.met = {objective.id: [0, 0] for objective in wanted}
            self.plant.counts.together = [0, 0]

    def reports(self) -> Reports:
        plant = self.plant
        held = sum(request.computed + request.made for request in plant.running)
        prompts = prompts_of(StepWindow(start=0.0, end=plant.now, cells=plant.cells).total())
        state = CoreState(
            engine=0,
            applied=self.applied,
            effective=plant.limits,
            start=START,
            ceilings=Ceilings(max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=4096),
            running=len(plant.running),
            waiting=len(plant.waiting),
            kv_cache_usage=held / 100_000,
            kv_cache_tokens=100_000,
            watchdog_trips=0,
            longest_step_seconds=plant.longest,
            local_bias=self.bias,
            order=self.order,
            steps=tuple(
                StepSums(
                    bucket=key.bucket,
                    kind=key.kind,
                    steps=int(sums.steps),
                    seconds=sums.seconds,
                    seconds_squared=sums.seconds_squared,
                    tokens=int(sums.tokens),
                    prefill_tokens=int(sums.prefill_tokens),
                    decodes=int(sums.decodes),
                    kv_tokens=int(sums.kv_tokens),
                    prefill_attention=sums.prefill_attention,
                )
                for key, sums in plant.cells.items()
            ),
        )
        report = CoreReport(
            state=state,
            governed=self.governed,
            running_kv_tokens=held,
            expiries=0,
            step_budget_seconds=0.0,
            oldest_waiting_seconds=0.0,
            batches=replace(_NO_BATCHES, prefill_tokens=prompts.tokens, prefill_squares=prompts.squares),
        )
        return Reports(cores=(report,), governed=self.governed, unsupported=self.unsupported, ungated=self.ungated)

    def counts(self) -> _Counts:
        counts = self.plant.counts
        pairs = [(name, kept) for name, kept in counts.met.items()]
        names = ",".join(objective.id for objective in self.plant.objectives)
        return _Counts(
            requests={"finished": counts.finished},
            objectives={(n, o): kept[i] for n, kept in pairs for i, o in enumerate(("met", "violated"))},
            all_objectives={(names, o): counts.together[i] for i, o in enumerate(("met", "violated"))} if names else {},
            generated_tokens=counts.generated,
            prompt_tokens=counts.prompt,
            open_objectives=self.open_objectives,
        )


class _Older(Collector):
    """The metrics of a plugin that lacks some."""

    def __init__(self, metrics: EngineCollector, lacks: frozenset[MetricName]) -> None:
        self._metrics = metrics
        self._lacks = {name.removesuffix("_total") for name in lacks}

    def collect(self) -> Iterator[MetricFamily]:
        return (family for family in self._metrics.collect() if family.name not in self._lacks)


@dataclass
class ServedEngine:
    """A pod: an engine behind its control port, which can be killed and comes back with its start values.

    `public_keys`: the file of keys that it accepts in place of `key`, while there is such a file. `lacks`: metrics that
    its plugin does not have yet.
    """

    name: str
    uid: str
    service: str
    key: Ed25519PrivateKey
    port: int
    make: Callable[[], PlantEngine] = PlantEngine
    ready: bool = True
    restarts: int = 0
    public_keys: Path | None = None
    lacks: frozenset[MetricName] = frozenset()
    ip: str = field(
        default_factory=lambda: f"127.{random.randrange(1, 250)}.{random.randrange(250)}.{next(_ADDRESSES)}"
    )
    _serving: asyncio.Task[None] | None = None
    _traffic: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.engine = self.make()
        service = ControlService(
            engine=self.engine,
            verifier=verifier_of(self._environment()),
            service=self.service,
            follow=lambda setpoint: self.engine.set_objectives(setpoint.objectives),
            timeout=2.0,
        )
        registry = CollectorRegistry()
        registry.register(_Older(EngineCollector(service, self.engine.counts, self.engine.gate), self.lacks))
        self._service = service
        self._serving = asyncio.create_task(serve(build_app(service, registry), bind(self.ip, self.port)))

    def _environment(self) -> dict[str, str]:
        file = {} if self.public_keys is None else {Env.PUBLIC_KEYS_FILE.value: str(self.public_keys)}
        return {Env.SERVICE_UID.value: self.service, Env.PUBLIC_KEY.value: Signer(self.key).public_pem, **file}

    async def stop(self) -> None:
        for task in (self._traffic, self._serving):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._service.close()

    async def restart(self) -> None:
        """Killed and back, as a new start of the container."""
        await self.stop()
        self.restarts += 1
        await self.start()

    def load(self, phases: Sequence[PlantPhase | Sequence[PlantPhase]], *, seed: int = 1) -> None:
        """Requests from now on, served in real time."""
        queue = arrivals(phases, seed=seed)
        self._traffic = asyncio.create_task(self._serve_load(queue))

    async def _serve_load(self, queue: deque[PlantRequest]) -> None:
        loop = asyncio.get_running_loop()
        origin = loop.time() - self.engine.plant.now
        while True:
            self.engine.plant.run(loop.time() - origin, queue)
            await asyncio.sleep(0.05)

    def pod(self) -> EnginePod:
        return EnginePod(
            name=self.name,
            uid=self.uid,
            ip=self.ip,
            ready=self.ready,
            container_id=f"containerd://{self.uid}-{self.restarts}",
            restarts=self.restarts,
            namespace="team",
            control_port=self.port,
        )

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """What the engine runs under."""
        limits = self.engine.plant.limits
        return limits.max_num_active_seqs, limits.max_num_scheduled_tokens


@asynccontextmanager
async def serving(*engines: ServedEngine) -> AsyncIterator[None]:
    """Run engines for the time of a test."""
    for engine in engines:
        await engine.start()
    try:
        yield
    finally:
        for engine in engines:
            await engine.stop()


def objective(metric: Metric, seconds: float) -> ObjectiveSpec:
    """An objective as the engine counts it."""
    return ObjectiveSpec(metric=metric, threshold_seconds=seconds)
