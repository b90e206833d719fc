"""What the leader of a service knows beyond its status: the model with what it was learnt from, and the load. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flyball_operator.tuning.control_input import ControlOutput, Workload, in_steps
from flyball_operator.tuning.decide import inputs_of
from flyball_operator.tuning.estimate.step_time import CellMeans, Fit, measured
from flyball_operator.tuning.observe.signals import Observation, Signals, Unobserved
from flyball_operator.tuning.optimise import choose
from flyball_operator.tuning.spec import LatencyObjective, TuningSpec
from flyball_operator.tuning.state import TuningState


@dataclass(frozen=True, kw_only=True)
class Insight:
    """`steps`: what the fit was learnt from. `workload`: what one core is asked for now, None while nobody asks."""

    spec: TuningSpec
    fit: Fit | None
    steps: tuple[CellMeans, ...]
    workload: Workload | None

    def choose(self, objectives: tuple[LatencyObjective, ...]) -> ControlOutput | None:
        """What the law would want under these objectives, before any filter; None without a trusted model or a load."""
        if self.fit is None or not self.fit.trusted or self.workload is None:
            return None
        spec = replace(self.spec, objectives=objectives)
        return in_steps(choose(inputs_of(self.fit.model, self.workload, spec)), spec.stages)


def insight(state: TuningState, observation: Observation, spec: TuningSpec) -> Insight:
    """What is known now."""
    return Insight(
        spec=spec,
        fit=state.step_time.fit,
        steps=tuple(measured(state.step_time)),
        workload=_workload(state, observation),
    )


def _workload(state: TuningState, observation: Observation) -> Workload | None:
    if not isinstance(observation, Signals) or isinstance(observation.load, Unobserved) or observation.load.none:
        return None
    return state.workload.workload(observation.load, cores=observation.cores)
