"""What a replica carries in each window, by the tuner's own model and capacity. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from flyball_engine.model import StepModel
from flyball_operator.cli.plan.windows import Capacity
from flyball_operator.tuning import capacity
from flyball_operator.tuning.decide import inputs_of
from flyball_operator.tuning.estimate.step_time import Fit, StepTimeEstimator, doubt_message, learn
from flyball_operator.tuning.estimate.workload import WorkloadEstimator
from flyball_operator.tuning.observe.signals import RequestLoad, Signals, StepWindow
from flyball_operator.tuning.spec import TuningSpec


@dataclass(frozen=True)
class Learnt:
    """The step-time model of all windows, None where it is not to be trusted; `doubt` says why."""

    model: StepModel | None
    error: float | None
    doubt: str


def learnt(windows: Iterable[Signals]) -> Learnt:
    """What the windows say, which come by time."""
    step_time = StepTimeEstimator()
    for signals in windows:
        if isinstance(signals.steps, StepWindow):
            step_time = learn(step_time, signals.steps)
    fit: Fit | None = step_time.fit
    if step_time.model is None or fit is None:
        return Learnt(None, None, doubt_message(fit))
    return Learnt(step_time.model, fit.error, "")


def capacity_of(model: StepModel, signals: Signals, load: RequestLoad, spec: TuningSpec) -> Capacity | None:
    """What a replica carries of this window's mix; None where lengths or steps are not known, or nothing is asked."""
    steps = signals.steps if isinstance(signals.steps, StepWindow) else None
    seen = WorkloadEstimator().after(
        load,
        steps,
        at=signals.at,
        seconds=signals.window_seconds,
        cores=max(1, signals.cores),
        stages=spec.stages,
    )
    workload = seen.workload(load, cores=signals.cores)
    if workload is None or not spec.objectives:
        return None
    cores, pods = signals.cores / seen.fullest, signals.pods or signals.cores

    def carried(spec: TuningSpec) -> tuple[capacity.Carried, float]:
        found = capacity.carried(inputs_of(model, workload, spec))
        return found, capacity.replica_rate(found, cores=cores, pods=pods)

    found, rate = carried(spec)
    alone = {one.name: carried(replace(spec, objectives=(one,)))[1] for one in spec.objectives}
    return Capacity(
        rate=rate,
        asked=capacity.replicas_for(load.arrivals + load.refused, 1.0, spec),
        alone=alone,
        binding=found.binding,
        reachable=dict(found.reachable),
    )
