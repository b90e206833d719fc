"""The operator's tuner on one real engine, without a cluster: a real Prometheus, and status and events in memory.

Each run has a leader of its own, which resumes from the status that it is given, as after a restart of the operator.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flyball_engine.figures import format_duration
from flyball_lab.benches.live.goodput import Held, Objectives
from flyball_lab.benches.live.variants import SEQS, TOKENS
from flyball_lab.harness.engine import SERVICE
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.recordings import Recording
from flyball_lab.harness.tuners import TunerEnvironment, inference_service
from flyball_operator.api import names
from flyball_operator.api.quantities import parse_duration
from flyball_operator.api.v1alpha1 import InferenceService, SetpointStatus, TuningStatus
from flyball_operator.tuning.ports import EnginePod

NAME: Final = "live-0"
#: Percentage of the requests that shall keep each objective.
TARGET: Final = "95"


def service(objectives: Objectives, *, sheds: bool, tuning: TuningStatus) -> InferenceService:
    """What a user would apply, with what the tuner knows of it but for what it decided once."""
    wanted = inference_service(
        SERVICE,
        objectives=[
            _objective("first-token", "TimeToFirstToken", objectives.ttft),
            _objective("per-token", "TimePerOutputToken", objectives.tpot),
        ],
        batching={"maxNumSeqs": SEQS, "maxNumBatchedTokens": TOKENS},
        tuning={"overload": "Shed" if sheds else "Queue"},
    )
    known = tuning.model_copy(update={"decisions": ()})
    return wanted.model_copy(update={"status": wanted.status.model_copy(update={"tuning": known})})


def _objective(name: str, metric: str, seconds: float) -> dict[str, str]:
    return {"name": name, "metric": metric, "threshold": format_duration(seconds), "target": TARGET}


@dataclass
class LoopbackEnvironment(TunerEnvironment):
    """One service and one engine, on loopback; notes what the tuner holds live, and what it decided and why.

    `began`: what times are counted from, by the monotonic clock. `steps`: what the tuner saw at each tick.
    """

    began: float = field(default_factory=time.monotonic)
    held: list[Held] = field(default_factory=list)
    trusted_at: float | None = None
    steps: list[Object] = field(default_factory=list)
    _decided: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def decisions(self) -> tuple[str, ...]:
        """All of them, the oldest first."""
        return tuple(self._decided.values())

    def recording(self, name: str) -> Recording:
        """What the tuner was asked for and saw, to be replayed from a start without a model."""
        (served,) = self.services.values()
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": served.metadata.name, "generation": 1},
            "spec": served.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
        }
        return Recording(name, manifest, [NAME], self.steps)

    def pods(self, service_uid: str) -> Sequence[EnginePod]:
        """The engine."""
        del service_uid
        return [
            EnginePod(
                name=NAME,
                uid=NAME,
                ip="127.0.0.1",
                ready=True,
                container_id=f"live://{NAME}",
                restarts=0,
                namespace="team",
                control_port=self.port,
            )
        ]

    async def write(self, service: InferenceService, *, tuning: TuningStatus, **others: Any) -> None:
        """What the tuner says every tick."""
        await super().write(service, tuning=tuning, **others)
        now = time.monotonic() - self.began
        if self.trusted_at is None and tuning.model.trusted:
            self.trusted_at = now
        if (held := _held(tuning.setpoint, now)) is not None:
            self.held.append(held)
        for one in reversed(tuning.decisions):
            came = f"; came: {one.observed}" if one.observed else ""
            said = f"{_shown(one.before)} to {_shown(one.after)}: {one.trigger}; expected: {one.predicted}{came}"
            self._decided[one.time, _shown(one.after)] = f"{one.time[11:19]} {said}"


def _held(setpoint: SetpointStatus, at: float) -> Held | None:
    seqs, tokens = setpoint.max_num_active_seqs, setpoint.max_num_scheduled_tokens
    if seqs is None or tokens is None:
        return None
    return Held(at, seqs, tokens, _seconds(setpoint.step_budget), _seconds(setpoint.first_token_deadline))


def _shown(setpoint: SetpointStatus) -> str:
    budget = f", steps of {setpoint.step_budget}" if setpoint.step_budget else ""
    return f"{setpoint.max_num_active_seqs}/{setpoint.max_num_scheduled_tokens}{budget}"


def _seconds(text: str | None) -> float | None:
    return None if text is None else float(parse_duration(text))
