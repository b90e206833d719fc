"""What one service's tuning remembers from tick to tick, and what one tick decided. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from flyball_engine.contract import Limits
from flyball_operator.tuning.capacity import Balance
from flyball_operator.tuning.control_input import ControlOutput
from flyball_operator.tuning.estimate.step_time import StepTimeEstimator
from flyball_operator.tuning.estimate.workload import WorkloadEstimator
from flyball_operator.tuning.filters.filters import FILTERS, Filter, HoldReason, Pace, Rollback
from flyball_operator.tuning.policy import Policy, first_policy
from flyball_operator.tuning.replicas import Replicas
from flyball_operator.tuning.spec import TuningSpec


@dataclass(frozen=True, kw_only=True)
class TuningState:
    """What is remembered from tick to tick of one service; bounded.

    `policy`: the law's, live in Auto. `filters`: with their memory. `balance`: the load against what the engines
    carry, None until there is a model; `desired`: the replicas that were decided last, whatever is known now. `idle`:
    without a balance, but nothing arrives, and replicas are decided by that.
    """

    policy: Policy
    step_time: StepTimeEstimator = field(default_factory=StepTimeEstimator)
    workload: WorkloadEstimator = field(default_factory=WorkloadEstimator)
    filters: tuple[Filter, ...] = FILTERS
    balance: Balance | None = None
    desired: Replicas | None = None
    idle: bool = False

    @property
    def limits(self) -> Limits:
        """The policy's limits."""
        return self.policy.limits

    @property
    def changed_at(self) -> float:
        """When the law changed the policy by itself last, in Unix seconds."""
        return max(one.changed_at for one in self.filters if isinstance(one, Pace))

    @property
    def held_until(self) -> float:
        """When the law may move the policy again after a change was undone, in Unix seconds."""
        return max(one.held_until for one in self.filters if isinstance(one, Rollback))

    def undecided(self, before: TuningState) -> TuningState:
        """What was seen since, without what was decided from `before` and went nowhere.

        Left standing it would be made live later, maybe when nothing is observed any more.
        """
        return replace(self, policy=before.policy, filters=before.filters)

    def held(self, policy: Policy, *, until: float) -> TuningState:
        """The state with a policy that nothing moves before `until`, in Unix seconds."""
        filters = (replace(one, held_until=until) if isinstance(one, Rollback) else one for one in self.filters)
        return replace(self, policy=policy, filters=tuple(filters))


class ChangeCause(StrEnum):
    """What moves limits where no objective binds, whose names are in small letters."""

    UPPER_BOUND = "UpperBound"
    """No objective binds: the load needs no lower limits."""
    LEARNING = "Learning"
    """There is no model yet."""
    SPEC_EDITED = "SpecEdited"
    """A user asks for it."""
    ROLLED_BACK = "RolledBack"
    """Requests stood still under the limits before."""
    TRIAL_FAILED = "TrialFailed"
    """One pod had them alone, and they did not work there."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One tick's outcome. `policy` is the law's after it; `hold` says why it did not move, None if it did.

    `trigger` is one sentence for people. `cause`: the objective that binds, or a `ChangeCause`. `output`: what the law
    wanted, None where it was not asked. `rolled_back`: it goes back to what worked, in all pods at once.
    """

    at: float
    before: Policy
    policy: Policy
    hold: HoldReason | None
    trigger: str
    cause: str
    output: ControlOutput | None = None
    rolled_back: bool = False

    @property
    def changed(self) -> bool:
        """Whether the policy moved."""
        return self.policy != self.before


def start(spec: TuningSpec) -> TuningState:
    """State of a service never tuned before."""
    return TuningState(policy=first_policy(spec))
