"""What one service's tuning remembers from tick to tick, and what one tick decided. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from flyball_engine.contract import Limits
from flyball_operator.tuning.capacity import Balance
from flyball_operator.tuning.control_input import ControlOutput
from flyball_operator.tuning.estimate.step_time import StepTimeEstimator
from flyball_operator.tuning.estimate.workload import WorkloadEstimator
from flyball_operator.tuning.filters.hysteresis import HoldReason
from flyball_operator.tuning.first_policy import first_policy
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.spec import TuningSpec


@dataclass(frozen=True, kw_only=True)
class TuningState:
    """What is remembered from tick to tick of one service; bounded.

    `policy`: the law's, live in Auto. `held_until`: nothing moves before, since a policy was seen to fail.
    `changed_at`: when the law changed the policy by itself last. `balance`: the load against what the engines carry,
    None until there is a model; `advised`: the replicas that were advised last, whatever is known now.
    """

    policy: Policy
    step_time: StepTimeEstimator = field(default_factory=StepTimeEstimator)
    workload: WorkloadEstimator = field(default_factory=WorkloadEstimator)
    held_until: float = float("-inf")
    changed_at: float = float("-inf")
    balance: Balance | None = None
    advised: int | None = None

    @property
    def limits(self) -> Limits:
        """The policy's limits."""
        return self.policy.limits


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One tick's outcome. `policy` is the law's after it; `hold` says why it did not move, None if it did.

    `trigger` is one sentence for people. `output` is what the law wanted, None where it was not asked.
    """

    at: float
    before: Policy
    policy: Policy
    hold: HoldReason | None
    trigger: str
    output: ControlOutput | None = None

    @property
    def changed(self) -> bool:
        """Whether the policy moved."""
        return self.policy != self.before


def start(spec: TuningSpec) -> TuningState:
    """State of a service never tuned before."""
    return TuningState(policy=first_policy(spec))
