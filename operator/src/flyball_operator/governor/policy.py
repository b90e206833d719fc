"""What the law makes of a service's engines: limits, and behind a gate the time of a step and a deadline.

Whatever is sent anew is a new generation that every pod must confirm, so a learnt model and trimmed margins are sent
only when they say something else than what is there. Figures are rounded as status holds them, so that the next leader
goes on with the same. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from flyball_engine.contract import LARGEST_COEFFICIENT, Limits, Metric, ModelSpec, Setpoint, Shed, StepBudget
from flyball_engine.model import StepModel
from flyball_operator.api.quantities import format_duration, parse_duration
from flyball_operator.governor.situation import Choice, Margins
from flyball_operator.governor.spec import Objective

#: Stands for no budget: no step takes so long. A gate needs a model, and that is sent with a budget.
NO_BUDGET: Final = 60.0
#: A model is sent anew when the time of some step moved by this share; a budget by this; a margin by so much.
MODEL_MOVED: Final = 0.05
BUDGET_MOVED: Final = 0.05
MARGIN_MOVED: Final = 0.02
#: Steps that models are compared by: running decodes, prefill tokens, context before them.
_COMPARED: Final = (
    (1, 0, 0),
    (16, 0, 0),
    (64, 0, 0),
    (8, 128, 0),
    (32, 512, 0),
    (32, 512, 4096),
    (64, 2048, 0),
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What engines are told besides what they count. Without `step` the limits alone hold, without `shed` all wait."""

    limits: Limits
    step: StepBudget | None = None
    shed: Shed | None = None

    @classmethod
    def of(cls, setpoint: Setpoint) -> Policy:
        """What a setpoint tells."""
        return cls(limits=setpoint.limits, step=setpoint.step, shed=setpoint.shed)

    @property
    def ungated(self) -> Policy:
        """The limits alone."""
        return Policy(limits=self.limits)

    @property
    def budget(self) -> float | None:
        """Seconds that a step may take, None where no objective bounds one."""
        return self.step.seconds if self.step is not None and self.step.seconds < NO_BUDGET else None


def settled(present: Policy, limits: Limits, choice: Choice, model: StepModel, margins: Margins) -> Policy:
    """The policy with these limits and what the choice asks for; the present one if it says nearly the same."""
    if choice.deadline is None:
        return Policy(limits=limits)
    budget = NO_BUDGET if choice.budget is None else _rounded(min(NO_BUDGET, choice.budget))
    wanted = Policy(
        limits=limits,
        step=StepBudget(seconds=budget, model=model_spec(model)),
        shed=Shed(ttft_deadline_seconds=_rounded(choice.deadline), margin=round(margins.first_token, 2)),
    )
    return present if limits == present.limits and not _moved(present, wanted) else wanted


def asked_deadline(present: float, objectives: Sequence[Objective]) -> float | None:
    """The deadline that an edited first-token objective asks for in place of the present one, None if that may stay.

    One that an end-to-end objective gave may be earlier than any first-token objective.
    """
    given = [_rounded(o.seconds) for o in objectives if o.metric is Metric.TIME_TO_FIRST_TOKEN]
    others = any(o.metric is Metric.END_TO_END_LATENCY for o in objectives)
    if not given or present == min(given) or (others and present < min(given)):
        return None
    return min(given)


def model_spec(model: StepModel) -> ModelSpec:
    """The model as engines get it: three digits, trusted, named by what it says."""
    seconds = {name: value for name, value in asdict(model).items() if name != "kappa"}
    digits = {name: min(LARGEST_COEFFICIENT, float(f"{value:.3g}")) for name, value in seconds.items()}
    identity = hashlib.sha256(f"{digits} {model.kappa}".encode()).hexdigest()[:8]
    return ModelSpec(id=identity, trusted=True, kappa=model.kappa, **digits)


def _moved(present: Policy, wanted: Policy) -> bool:
    step, shed, new_step, new_shed = present.step, present.shed, wanted.step, wanted.shed
    if step is None or shed is None or new_step is None or new_shed is None:
        return (step, shed) != (new_step, new_shed)
    return (
        shed.ttft_deadline_seconds != new_shed.ttft_deadline_seconds
        or abs(new_shed.margin - shed.margin) >= MARGIN_MOVED - 1e-9
        or abs(new_step.seconds - step.seconds) > BUDGET_MOVED * step.seconds
        or difference(step.model.step_model(), new_step.model.step_model()) > MODEL_MOVED
    )


def difference(one: StepModel, other: StepModel) -> float:
    """The largest share by which two models differ over the compared steps."""
    first, second = (
        [model.seconds(decodes=n, prefill_tokens=p, context=context) for n, p, context in _COMPARED]
        for model in (one, other)
    )
    return max(abs(b - a) / max(a, 1e-9) for a, b in zip(first, second, strict=True))


def _rounded(seconds: float) -> float:
    """A duration as status holds it, of a microsecond at least."""
    return float(parse_duration(format_duration(max(seconds, 1e-6))))
