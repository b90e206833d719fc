"""What is known of a service: its model with what that was learnt from, and the load. Pure.

Its leader knows most; status tells the rest of the world enough to ask the law.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.tuning.control_input import ControlOutput, Workload, in_steps
from flyball_operator.tuning.decide import inputs_of
from flyball_operator.tuning.estimate.step_time import CellMeans, Fit, measured
from flyball_operator.tuning.observe.signals import Observation, Signals, Unobserved
from flyball_operator.tuning.optimise import choose
from flyball_operator.tuning.spec import LatencyObjective, TuningSpec, tuning_spec
from flyball_operator.tuning.state import TuningState
from flyball_operator.tuning.status_codec import step_model_of, workload_of


@dataclass(frozen=True, kw_only=True)
class Insight:
    """`steps`: what the fit was learnt from. `workload`: what one core is asked for now, None while nobody asks."""

    spec: TuningSpec
    fit: Fit | None
    steps: tuple[CellMeans, ...]
    workload: Workload | None

    def choose(self, objectives: tuple[LatencyObjective, ...]) -> ControlOutput | None:
        """What the law would want under these objectives; as `under`."""
        return self.under(replace(self.spec, objectives=objectives))

    def under(self, spec: TuningSpec, *, share: float = 1.0) -> ControlOutput | None:
        """What the law would want under another spec, before any filter; None without a trusted model or a load.

        `share`: so many times the load of now comes to a core.
        """
        if self.fit is None or not self.fit.trusted or self.workload is None:
            return None
        load = self.workload
        more = {name: share * getattr(load, name) for name in ("arrivals", "decodes", "waiting")}
        inputs = inputs_of(self.fit.model, replace(load, **more), spec)
        return in_steps(choose(inputs), spec.stages)


def insight(state: TuningState, observation: Observation, spec: TuningSpec) -> Insight:
    """What is known now."""
    return Insight(
        spec=spec,
        fit=state.step_time.fit,
        steps=tuple(measured(state.step_time)),
        workload=_workload(state, observation),
    )


def remembered(service: InferenceService) -> Insight:
    """What its status tells."""
    tuning = service.status.tuning
    model = step_model_of(tuning.model)
    fit = None if model is None else Fit(model=model, error=0.0, steps=tuning.model.steps, reach=0, doubt=None)
    spec = tuning_spec(service.spec, service.metadata.annotations)
    return Insight(spec=spec, fit=fit, steps=(), workload=workload_of(tuning.workload))


def weighed_load(state: TuningState, observation: Observation) -> Workload | None:
    """What a core is asked for, at the rate of arrivals that capacity is held against; None where nothing is known."""
    found, balance = _workload(state, observation), state.balance
    if found is None or balance is None or not isinstance(observation, Signals):
        return None
    # Of one window the arrivals are chance.
    arrivals = balance.shown_arrivals * state.workload.fullest / observation.cores
    return replace(found, arrivals=arrivals, waiting=0.0)


def _workload(state: TuningState, observation: Observation) -> Workload | None:
    if not isinstance(observation, Signals) or isinstance(observation.load, Unobserved) or observation.load.none:
        return None
    return state.workload.workload(observation.load, cores=observation.cores)
