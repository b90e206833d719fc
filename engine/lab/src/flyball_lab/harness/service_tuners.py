"""One service's tuner in memory and in virtual time: engines, leadership, and the status as it is stored."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from prometheus_client import CollectorRegistry

from flyball_engine.adapters import AdapterReport
from flyball_engine.contract import (
    CONTROL_PORT,
    AnyKnob,
    BatchingKnob,
    Ceilings,
    Clamp,
    ClampReason,
    CoreState,
    Generation,
    Knob,
    Limits,
    OrderKnob,
    ReadBack,
    Refusal,
    Setpoint,
    StepKind,
    StepSums,
)
from flyball_engine.control.acceptance import SetpointRefused, judge
from flyball_lab.harness.manifests import Object, good
from flyball_lab.harness.tuning import signals, step_window
from flyball_lab.harness.virtual_time import now
from flyball_operator.api import names
from flyball_operator.api.parse import parse_service
from flyball_operator.api.v1alpha1 import (
    RECONCILER_CONDITIONS,
    TUNER_FIELDS,
    ConditionType,
    InferenceService,
    SetpointStatus,
)
from flyball_operator.engines.client import Acknowledged, Address, Answer, EngineClient
from flyball_operator.engines.errors import EngineError, SetpointRefusedError, UnreachableError
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import UnavailableError
from flyball_operator.kube.status import TunerStatus
from flyball_operator.tuning.dependencies import Dependencies
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.observe.signals import (
    Attainment,
    Missing,
    ObjectiveCounts,
    Observation,
    OrderOutcome,
    PodOutcomes,
    Unobserved,
)
from flyball_operator.tuning.ports import EnginePod, EventType
from flyball_operator.tuning.service_tuner import ServiceTuner

START = Limits(max_num_active_seqs=128, max_num_scheduled_tokens=2048)
AWAY = Unobserved(Missing.UNREACHABLE, "connection refused")


class Engines:
    """Pods of one core each, as `EngineClient` would reach them, by UID of the pod."""

    def __init__(
        self, *uids: str, unsupported: Mapping[AnyKnob, str] | None = None, ungated: str | None = None
    ) -> None:
        self.held: dict[str, Setpoint | None] = dict.fromkeys(uids)
        self.unsupported = dict(unsupported or {})
        self.ungated = ungated
        #: Whether the plugin is older than gate and order: its read-back does not speak of them, and a setpoint with an
        #: order has a field that it does not know.
        self.untold = False
        #: Whether the plugin is older than classes that are named by a priority.
        self.untold_priorities = False
        #: Pods whose engines run as plain vLLM: they count requests against objectives, and can do nothing else.
        self.plain: set[str] = set()
        #: Requests that each core has, and whether talking to engines raises what nobody expects.
        self.running = 0
        self.broken = False
        #: Pods where requests wait beside one that runs, with slots free; and those of them that make no step.
        self.stuck, self.frozen = set[str](), set[str]()
        #: Pods that are not Ready, and those of them that have no control port yet.
        self.starting, self.loading = set[str](), set[str]()
        self.ports: dict[str, int] = {}  # control ports that are not the usual one, by pod
        #: Most requests that engines were started with, by pod, where it is not the usual number.
        self.seqs: dict[str, int] = {}
        #: Pods that make steps, and those that make them of all sizes, as a busy engine does.
        self.working, self.busy = set[str](), set[str]()
        self._steps = 0
        #: What steps take over what the model says, by pod.
        self.biases: dict[str, float] = {}
        #: What became of LoRA adapters, by pod; of others nothing is said.
        self.adapters: dict[str, tuple[AdapterReport, ...]] = {}
        self.writes = 0
        #: Writes that were refused, by the reason.
        self.refused: Counter[Refusal] = Counter()
        #: How often each pod's container was restarted.
        self.restarts: Counter[str] = Counter()
        self.trips: Counter[str] = Counter()
        self._tripped: dict[str, tuple[int, int]] = {}

    def restart(self, uid: str) -> None:
        """The container ends and begins anew, with its start values. Until `starting` is cleared it is not Ready."""
        self.restarts[uid] += 1
        self.starting.add(uid)
        self.held[uid] = None

    def trip(self, uid: str = "pod-1") -> None:
        """Requests stand still, and the watchdog throws out what the engine holds."""
        held = self.held[uid]
        assert held is not None
        self.trips[uid] += 1
        self._tripped[uid] = held.order()

    def at_start_values(self, uid: str = "pod-1") -> bool:
        """Whether the watchdog has thrown out what the engine holds; only a newer setpoint is tried again."""
        held = self.held[uid]
        return held is not None and self._tripped.get(uid) == held.order()

    def limits(self, uid: str = "pod-1") -> tuple[int | None, int | None]:
        """What an engine runs under."""
        held = self.held[uid]
        asked = held.limits.given() if held is not None and not self.at_start_values(uid) else {}
        given = START.model_copy(update={knob.value: value for knob, value in asked.items()})
        return given.max_num_active_seqs, given.max_num_scheduled_tokens

    async def read(self, address: Address) -> ReadBack:
        held = self.held[address.key]
        core = CoreState(
            engine=0,
            applied=Generation(epoch=held.epoch, generation=held.generation) if held is not None else None,
            effective=START,
            start=START,
            clamped=self._clamped(address.key),
            ceilings=Ceilings(
                max_num_seqs=self.seqs.get(address.key, 128), max_num_batched_tokens=2048, max_model_len=4096
            ),
            running=1 if address.key in self.stuck else self.running,
            waiting=5 if address.key in self.stuck else 0,
            steps=self._decodes(address.key),
            kv_cache_usage=0.0,
            kv_cache_tokens=100_000,
            watchdog_trips=self.trips[address.key],
            longest_step_seconds=0.0,
        )
        read_back = ReadBack(
            service="s1",
            plugin_version="1",
            engine_version="1",
            governed=address.key not in self.plain,
            accepted=held,
            cores=() if address.key in self.plain else (core,),
            unsupported=self._unsupported(address.key),
            ungated=self._ungated(address.key),
            adapters=self.adapters.get(address.key),
        )
        if not self.untold:
            return read_back
        return ReadBack.model_validate_json(read_back.model_dump_json(exclude={"ungated"}))

    async def read_state(self, address: Address) -> ReadBack:
        return (await self.read(address)).without_steps()

    async def write(self, address: Address, setpoint: Setpoint) -> ReadBack:
        if address.key in self.loading or address.port != self.ports.get(address.key, CONTROL_PORT):
            raise UnreachableError("connection refused")
        try:
            judge(
                held=self.held[address.key],
                offered=setpoint,
                service="s1",
                unsupported=self._unsupported(address.key),
                ungated=self._ungated(address.key),
            )
            if self.untold and setpoint.on_time is not None:
                raise SetpointRefused(
                    Refusal.INVALID, "on_time: Extra inputs are not permitted, accepted: service, epoch"
                )
            classes = () if setpoint.classes is None else setpoint.classes.classes
            if self.untold_priorities and any(one.priority is not None for one in classes):
                raise SetpointRefused(
                    Refusal.INVALID, "classes.classes.1.priority: Extra inputs are not permitted, accepted: name, value"
                )
        except SetpointRefused as refused:
            self.refused[refused.refusal] += 1
            raise SetpointRefusedError(refused.refusal, refused.message, None) from refused
        self.writes += 1
        self.held[address.key] = setpoint
        return await self.read(address)

    def _unsupported(self, uid: str) -> dict[AnyKnob, str]:
        return (
            dict.fromkeys((*Knob, *BatchingKnob, *OrderKnob), "plain vLLM") if uid in self.plain else self.unsupported
        )

    def _ungated(self, uid: str) -> str | None:
        return "plain vLLM" if uid in self.plain else self.ungated

    def _decodes(self, uid: str) -> tuple[StepSums, ...]:
        """Of a pod that works, or lets nobody in: steps without a prompt. Of a busy one: of all sizes."""
        if uid in self.busy:
            return _of_all_sizes(steps=int(now()))
        if uid not in self.stuck | self.working:
            return ()
        self._steps += uid not in self.frozen
        decodes = StepSums(
            bucket=1,
            kind=StepKind.DECODE,
            steps=self._steps,
            seconds=0.02 * self._steps,
            seconds_squared=0.0004 * self._steps,
            tokens=self._steps,
            prefill_tokens=0,
            decodes=self._steps,
            kv_tokens=0,
            prefill_attention=0.0,
        )
        return (decodes,)

    def _clamped(self, uid: str) -> tuple[Clamp, ...]:
        held, start = self.held[uid], START.given()
        if held is None or not self.at_start_values(uid):
            return ()
        return tuple(
            Clamp(knob=knob, requested=asked, effective=start[knob], reason=ClampReason.WATCHDOG.value)
            for knob, asked in held.limits.given().items()
            if asked != start[knob]
        )

    async def timed(self, address: Address, ask: Callable[[Address], Awaitable[ReadBack]]) -> Answer:
        if self.broken:
            raise RuntimeError("a bug in the client")
        try:
            return Acknowledged(await ask(address), 0.0)
        except EngineError as error:
            return error


def _of_all_sizes(*, steps: int) -> tuple[StepSums, ...]:
    """Sums of so many steps of every size."""
    found = []
    for key, sums in step_window(steps=steps).cells.items():
        figures = {name: int(value) if value.is_integer() else value for name, value in sums._asdict().items()}
        found.append(StepSums.model_validate({"bucket": key.bucket, "kind": key.kind} | figures))
    return tuple(found)


#: Under these a service may shed.
WITH_DEADLINE = [
    {"name": "ttft", "metric": "TimeToFirstToken", "threshold": "2s"},
    {"name": "tpot", "metric": "TimePerOutputToken", "threshold": "60ms"},
]


@dataclass
class Harness:
    """What a service's tuner works with (implements its ports, and of `KubeApi` what the status writer uses)."""

    engines: Engines = field(default_factory=lambda: Engines("pod-1"))
    raw: Object = field(default_factory=dict)
    epoch: int = 1
    leading: bool = True
    api_away: bool = False
    tuned: bool = True
    written: list[Object] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    raised: list[int] = field(default_factory=list)
    #: What the on-time order did, as it is counted.
    ordered: OrderOutcome | None = None
    #: Of pods with a revision, by UID: its spec hash, and since when they are Ready.
    revisions: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    #: What came of requests by pod, and over how many seconds that was asked for.
    by_pod: PodOutcomes | Unobserved = field(default_factory=dict)
    windows: list[int] = field(default_factory=list)
    #: What was parsed last, and what came of it.
    _parsed: tuple[Object, Object, Object | None, InferenceService] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.raw = good(metadata__namespace="ns", spec__batching={"maxNumSeqs": 128, "maxNumBatchedTokens": 2048})
        self.raw["spec"]["objectives"] = [
            {"name": "tpot", "metric": "TimePerOutputToken", "threshold": "60ms"},
            {"name": "itl", "metric": "InterTokenLatency", "threshold": "250ms"},
        ]
        self.raw["metadata"] |= {"uid": "s1", "resourceVersion": "1", "generation": 1}

    # Leadership, status and events.

    def may_act(self) -> bool:
        return self.leading

    def raise_epoch(self, above: int) -> None:
        self.raised.append(above)
        self.epoch = above + 1

    async def apply(self, resource: object, body: Object, *, subresource: str) -> Object:
        if self.api_away:
            raise UnavailableError("the API server is away")
        self.written.append(body["status"])
        # As the API server does: what the reconciler applied stays.
        before, written = self.raw.get("status") or {}, body["status"]
        kept = [one for one in before.get("conditions") or () if one["type"] in RECONCILER_CONDITIONS]
        theirs = {field: value for field, value in before.items() if field not in TUNER_FIELDS}
        self.raw = {**self.raw, "status": theirs | written | {"conditions": [*kept, *written["conditions"]]}}
        return body

    async def post(self, service: InferenceService, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        self.events.append(reason)

    # Services, one.

    def all(self) -> Sequence[InferenceService]:
        return [self.service] if self.tuned else []

    def pods(self, service_uid: str) -> Sequence[EnginePod]:
        return [
            EnginePod(
                name=uid,
                uid=uid,
                ip=f"10.0.0.{number}",
                ready=uid not in self.engines.starting,
                container_id="c",
                restarts=self.engines.restarts[uid],
                namespace="ns",
                control_port=self.engines.ports.get(uid, CONTROL_PORT),
                spec_hash=self.revisions.get(uid, ("", None))[0],
                ready_since=self.revisions.get(uid, ("", None))[1],
            )
            for number, uid in enumerate(self.engines.held, 1)
        ]

    # What tests say and ask.

    @property
    def service(self) -> InferenceService:
        """The same object until something changes, as the operator's watches have it: tuners look every second."""
        metadata, spec, status = self.raw["metadata"], self.raw["spec"], self.raw.get("status")
        if self._parsed is not None:
            *parts, parsed = self._parsed
            if parts[0] == metadata and parts[1] is spec and parts[2] is status:
                return parsed
        found = parse_service(self.raw)
        self._parsed = (dict(metadata), spec, status, found)
        return found

    def edit(self, **spec: Any) -> None:
        """The user changes the spec."""
        self.raw = {**self.raw, "spec": {**self.raw["spec"], **spec}}

    def annotate(self, **annotations: str) -> None:
        """The user sets the annotations of our group there shall be, by what follows the slash."""
        named = {f"{names.GROUP}/{name}": value for name, value in annotations.items()}
        self.raw = {**self.raw, "metadata": {**self.raw["metadata"], "annotations": named}}

    def dependencies(self) -> Dependencies:
        """What an operator that just started works with."""
        clock = asyncio.get_running_loop().time
        status = TunerStatus(cast("KubeApi", self), clock=clock, now=lambda: datetime.fromtimestamp(clock(), UTC))
        return Dependencies(
            client=cast("EngineClient", self.engines),
            leadership=self,
            writer=status,
            events=self,
            metrics=TunerMetrics(CollectorRegistry()),
            wall=clock,
            clock=clock,
        )

    def tuner(self) -> ServiceTuner:
        """A service's tuner as an operator that just started makes it."""
        return ServiceTuner(self.service, self.dependencies())

    def update_pods(self, tuner: ServiceTuner) -> None:
        """Tell a service's tuner of the service and its pods as they are."""
        tuner.update(self.service, self.pods("s1"))

    def sheds(self, *, mode: str = "Auto", overload: str = "Shed", status: int = 503) -> None:
        """The user wants requests to be refused that come too late, with some HTTP status; or no longer."""
        self.edit(objectives=WITH_DEADLINE, tuning={"mode": mode, "overload": overload, "refusalStatus": status})

    def orders(self, *, mode: str = "Auto", order: str = "OnTime") -> None:
        """The user wants all requests to wait, in the on-time order; or in that of arrival."""
        self.edit(objectives=WITH_DEADLINE, tuning={"mode": mode, "order": order})

    def held(self, uid: str = "pod-1") -> Setpoint:
        """What an engine was told last."""
        setpoint = self.engines.held[uid]
        assert setpoint is not None
        return setpoint

    async def tick(
        self,
        tuner: ServiceTuner,
        observation: Observation,
        counts: Mapping[str, ObjectiveCounts] | Unobserved | None = None,
    ) -> None:
        """One tick of the tuner and the watches up to the next one."""
        self.update_pods(tuner)
        attainment = counts if isinstance(counts, Unobserved) else self._attained(counts or {})
        window = tuner.judged_window()
        self.windows += [] if window is None else [window]
        await tuner.tick(observation, attainment, None if window is None else self.by_pod)
        for _ in range(5):
            await asyncio.sleep(1.0)
            self.update_pods(tuner)
            await tuner.keep()

    def _attained(self, outcomes: Mapping[str, ObjectiveCounts]) -> Attainment:
        """What Prometheus says of minutes: of the pods that are there."""
        biases = {uid: bias for uid, bias in self.engines.biases.items() if uid in self.engines.held}
        return Attainment(outcomes=outcomes, order=self.ordered, biases=biases)

    def condition(self, kind: ConditionType) -> tuple[str, str]:
        """Status and reason of a condition as written last; empty if it never was."""
        found = [c for c in self.service.status.conditions if c.type == kind]
        return (found[0].status, found[0].reason) if found else ("", "")

    def message(self, kind: ConditionType) -> str:
        """What a condition as written last says to people."""
        (found,) = [c for c in self.service.status.conditions if c.type == kind]
        return found.message


async def tuned_for(harness: Harness, *, ticks: int = 30) -> ServiceTuner:
    """A tuner that had time to learn, to decide and to push."""
    tuner = harness.tuner()
    for _ in range(ticks):
        await harness.tick(tuner, signals(now()))
    return tuner


def shown(harness: Harness) -> SetpointStatus:
    """The setpoint as status has it."""
    setpoint = harness.service.status.tuning.setpoint
    assert setpoint is not None
    return setpoint
