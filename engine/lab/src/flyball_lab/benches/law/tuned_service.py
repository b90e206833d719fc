"""A service with its tuner, driven from outside: the time is the run's, and nothing waits.

What one was given can be given to another, to know whether it would have decided the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

from flyball_engine.contract import ReadBack, Setpoint
from flyball_engine.figures import format_duration
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.service_tuners import Engines, Harness
from flyball_lab.harness.virtual_time import VirtualLoop
from flyball_operator.api import names
from flyball_operator.engines.client import Address, Answer
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.estimate.step_time import StepTimeEstimator
from flyball_operator.tuning.observe.signals import Attainment, Observation
from flyball_operator.tuning.ports import EnginePod
from flyball_operator.tuning.service_tuner import ServiceTuner
from flyball_operator.tuning.spec import LatencyObjective, TuningSpec
from flyball_operator.tuning.state import TuningState


class Reached(Protocol):
    """Engines as a tuner reaches them."""

    def pods(self) -> Sequence[EnginePod]:
        """As the cluster shows them."""

    async def read(self, address: Address) -> ReadBack:
        """What an engine applies."""

    async def read_state(self, address: Address) -> ReadBack:
        """The same without the steps."""

    async def write(self, address: Address, setpoint: Setpoint) -> ReadBack:
        """Write a setpoint. Raises SetpointRefusedError and UnreachableError."""

    async def timed(self, address: Address, ask: Callable[[Address], Awaitable[ReadBack]]) -> Answer:
        """Ask one engine; its error is an answer, too."""


class TunedService:
    """The operator's own tuner of one service, and the status that it writes."""

    def __init__(self, service: Object) -> None:
        self._harness = Harness()
        self._harness.raw = {**service, "metadata": {**self._harness.raw["metadata"], **service["metadata"]}}
        self._loop = VirtualLoop()
        weakref.finalize(self, self._loop.close)
        self._engines: Reached | None = None
        self._tuner: ServiceTuner | None = None

    @property
    def state(self) -> TuningState:
        """What the tuner remembers."""
        assert self._tuner is not None, "the run has begun"
        return self._tuner.state

    def begin(self, engines: Reached, now: float) -> None:
        """The pods are there."""
        self._engines = engines
        self._loop.now = now
        self._harness.engines = cast("Engines", engines)

        async def made() -> ServiceTuner:
            return self._harness.tuner()

        self._tuner = self._loop.run_until_complete(made())

    def tick(self, now: float, observation: Observation, attainment: Attainment) -> None:
        """One tick of the tuner."""
        tuner = self._present(now)
        self._loop.run_until_complete(tuner.tick(observation, attainment))

    def watch(self, now: float) -> None:
        """What the operator does between two ticks."""
        tuner = self._present(now)
        if tuner.to_be_kept():
            self._loop.run_until_complete(tuner.keep())

    def end(self) -> None:
        """Nobody drives it any more."""
        self._loop.close()

    def _present(self, now: float) -> ServiceTuner:
        """The tuner, told of the service and its pods as they are."""
        assert self._tuner is not None
        assert self._engines is not None
        self._loop.now = now
        self._harness.written.clear()
        self._harness.events.clear()
        self._tuner.update(self._harness.service, self._engines.pods())
        return self._tuner


def service(objectives: Sequence[Object], *, seqs: int, tokens: int, **tuning: Any) -> Object:
    """The part of a manifest that a tuner reads."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "chat", "generation": 1},
        "spec": {
            "model": {"uri": "hf://Qwen/Qwen3-8B"},
            "engine": {"image": "vllm/vllm-openai:v0.32.0"},
            "objectives": list(objectives),
            "batching": {"maxNumSeqs": seqs, "maxNumBatchedTokens": tokens},
            "tuning": {"mode": "Auto", **tuning},
        },
    }


def manifest(tuning: TuningSpec, model: StepTimeEstimator | None = None) -> Object:
    """An InferenceService whose tuner may use and must hold this; `model`: what its status says was learnt.

    Raises ValueError for classes of requests, which no load of the closed loop has.
    """
    if tuning.classes is not None:
        raise ValueError("the closed loop has no classes of requests")
    seqs, tokens = tuning.envelope.seqs, tuning.envelope.tokens
    made = service(
        [_objective(one) for one in tuning.objectives],
        seqs=seqs.most,
        tokens=tokens.most,
        mode=tuning.mode.value,
        overload=tuning.overload.value,
        order=tuning.order.value,
        bounds={"maxNumActiveSeqs": {"min": seqs.least}, "maxNumScheduledTokens": {"min": tokens.least}},
    )
    if tuning.envelope.drafts:
        # The simulator's drafts come by themselves.
        made["spec"]["batching"]["speculative"] = {
            "method": "ngram",
            "numSpeculativeTokens": tuning.envelope.drafts,
        }
    if model is not None:
        made["status"] = {"tuning": {"model": status_codec.model_status(model).model_dump(mode="json", by_alias=True)}}
    return made


def _objective(one: LatencyObjective) -> Object:
    return {
        "name": one.name,
        "metric": one.metric.value,
        "threshold": format_duration(one.seconds),
        "target": f"{100 * (1 - one.allowed):g}",
    }
