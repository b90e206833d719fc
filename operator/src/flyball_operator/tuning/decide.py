"""One tick: signals in, a policy out, one decision per tick; the same inputs give the same decision.

It always decides, in every mode. In Recommend and Disabled, and while tuning is paused, the decision is published or
kept but not made live. So switching to Auto starts from what the law would have by now. Nothing is decided on what was
not observed. Pure: state goes in and comes out, time is a parameter (Unix seconds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import is_not
from typing import Final

from flyball_engine.figures import figure
from flyball_engine.model import StepModel
from flyball_operator.tuning import capacity
from flyball_operator.tuning.control_input import (
    ControlInput,
    ControlOutput,
    Workload,
    in_rounds,
    in_steps,
    margins,
    scattered,
)
from flyball_operator.tuning.estimate.step_time import doubt_message, learn
from flyball_operator.tuning.filters.filters import Filter, HoldReason, PodsObserved, Proposal, Tick
from flyball_operator.tuning.observe.signals import (
    Observation,
    RequestLoad,
    Signals,
    StepWindow,
    Unobserved,
    blind_spot,
)
from flyball_operator.tuning.optimise import choose
from flyball_operator.tuning.policy import (
    Policy,
    depth_given,
    edited_first,
    replace_depth,
    replace_limits,
    rounded,
    wanted_policy,
    within_spec,
)
from flyball_operator.tuning.replicas import Bounds
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.speculation import at_depth, best_depth, depths
from flyball_operator.tuning.state import ChangeCause, Decision, TuningState
from flyball_operator.tuning.tunables import TUNABLES

#: What moves a policy where the law was not asked; else an edit did.
_WITHOUT_LAW: Final[Mapping[HoldReason, ChangeCause]] = {
    HoldReason.LEARNING: ChangeCause.LEARNING,
    HoldReason.ROLLED_BACK: ChangeCause.ROLLED_BACK,
}


def decide(
    state: TuningState, observation: Observation, spec: TuningSpec, now: float, pods: PodsObserved | None = None
) -> tuple[TuningState, Decision]:
    """One tick: what is proposed, through the filters. `pods`: what read-backs say, None between ticks."""
    tick = Tick(at=now, current=state.policy, spec=spec, observation=observation, pods=pods)
    state, proposal = _proposed(state, tick)
    filters: list[Filter] = []
    for one in state.filters:
        after, proposal = one.apply(tick, proposal)
        filters.append(after)
    decision = Decision(
        at=now,
        before=tick.current,
        policy=proposal.policy,
        hold=proposal.hold if proposal.policy == tick.current else None,
        trigger=proposal.trigger,
        cause=_cause(proposal),
        output=proposal.output,
        rolled_back=proposal.urgent and proposal.hold is HoldReason.ROLLED_BACK,
    )
    if proposal.policy is not state.policy or any(map(is_not, filters, state.filters)):
        state = replace(state, policy=proposal.policy, filters=tuple(filters))
    return state, decision


def _cause(proposal: Proposal) -> str:
    if proposal.output is not None:
        return proposal.output.binding or ChangeCause.UPPER_BOUND
    return _WITHOUT_LAW.get(proposal.hold, ChangeCause.SPEC_EDITED)


def _proposed(state: TuningState, tick: Tick) -> tuple[TuningState, Proposal]:
    """The state with what the tick brings, and a proposal. What the spec does not allow any more is mended first."""
    spec, observation = tick.spec, tick.observation
    first = edited_first(state.policy, spec, trusted=state.step_time.model is not None)
    if (edited := within_spec(state.policy, spec, first=first)) is not None:
        # Were it the current policy, none of these reasons would be given.
        return state, Proposal(policy=edited[0], hold=HoldReason.NOT_OBSERVED, trigger=edited[1], urgent=True)
    blind = blind_spot(observation, TUNABLES.stale_seconds)
    if blind is not None or isinstance(observation, Unobserved) or isinstance(observation.load, Unobserved):
        unseen = "" if blind is None else blind.detail
        return state, Proposal(policy=state.policy, hold=HoldReason.NOT_OBSERVED, trigger=unseen)
    load = observation.load
    state = _watch(state, observation, load, spec)
    workload = state.workload.workload(load, cores=observation.cores)
    state = _weigh(state, workload, observation, load, spec, tick.at)
    return state, _wanted(state, workload, observation, load, tick)


def learn_steps(state: TuningState, window: StepWindow) -> TuningState:
    """Learn from steps that came another way than with signals: the read-backs, while Prometheus is away."""
    return replace(state, step_time=learn(state.step_time, window))


def _watch(state: TuningState, signals: Signals, load: RequestLoad, spec: TuningSpec) -> TuningState:
    """Take in what a tick brings: steps, lengths and mix. Requests are counted with the steps of the same window."""
    if signals.steps is None:
        return state
    steps = signals.steps if isinstance(signals.steps, StepWindow) else None
    return replace(
        state,
        step_time=learn(state.step_time, steps) if steps is not None else state.step_time,
        workload=state.workload.after(
            load,
            steps,
            at=signals.at,
            seconds=signals.window_seconds,
            cores=signals.cores,
            stages=spec.stages,
            prefill_only=spec.prefill_only,
        ),
    )


def _weigh(
    state: TuningState, workload: Workload | None, signals: Signals, load: RequestLoad, spec: TuningSpec, now: float
) -> TuningState:
    """Hold the load against what the engines carry. Without a model that stays as it was known."""
    if not spec.objectives:
        return replace(state, balance=None, idle=False)
    if signals.cores < 1 or not capacity.due(state.balance, spec, now):
        return state
    model, before = state.step_time.model, state.balance
    if model is not None and workload is not None:
        found = _carried(state, model, workload, spec)
    elif before is not None and before.asked == capacity.asked(spec):
        found = before.carried
    else:
        return _unweighed(state, signals, load, spec, now)
    balance = capacity.weighed(
        before,
        found,
        arrivals=load.arrivals + load.refused,
        waiting=load.waiting,
        cores=signals.cores / state.workload.fullest,
        pods=signals.cores if signals.pods is None else signals.pods,
        unseen=signals.unseen,
        spec=spec,
        now=now,
        desired=state.desired,
    )
    return replace(state, balance=balance, desired=balance.desired, idle=False)


def _unweighed(state: TuningState, signals: Signals, load: RequestLoad, spec: TuningSpec, now: float) -> TuningState:
    """What pods carry is not known. While nothing arrives, fewer of them are needed all the same."""
    if not load.none:
        # Of requests that cannot be weighed the windows know nothing.
        desired = state.desired.forgotten() if state.idle and state.desired is not None else state.desired
        return replace(state, balance=None, desired=desired, idle=False)
    pods = signals.cores if signals.pods is None else signals.pods
    bounds = spec.scaling or Bounds()
    desired = capacity.idle(state.desired, bounds, pods=pods, unseen=signals.unseen, now=now)
    return replace(state, balance=None, desired=desired, idle=True)


def _wanted(state: TuningState, workload: Workload | None, signals: Signals, load: RequestLoad, tick: Tick) -> Proposal:
    """What the law wants."""
    spec = tick.spec
    if load.none:
        return Proposal(policy=state.policy, hold=HoldReason.IDLE, trigger="no requests")
    model = state.step_time.model
    if model is None or workload is None:
        first = state.workload.first_workload(load, cores=signals.cores)
        return _learning_policy(state, workload or first, tick, window=signals.window_seconds)
    depth = _depth(state, model, workload, spec)
    if depth is not None:
        workload = at_depth(workload, state.workload.drafts, depth)
    inputs = inputs_of(model, workload, spec)
    output = in_steps(choose(inputs), spec.stages)
    limits = replace_limits(state.limits, seqs=output.seqs, tokens=output.tokens)
    if depth is not None:
        limits = replace_depth(limits, depth, spec.envelope)
    policy = wanted_policy(limits, output, model, inputs.margins, spec)
    why = explain(output, workload, policy, spec)
    return Proposal(policy=policy, hold=HoldReason.GOOD_ENOUGH, trigger=why, output=output)


def _depth(state: TuningState, model: StepModel, workload: Workload, spec: TuningSpec) -> int | None:
    """The depth of speculation for the batch of now; None where nothing is known of drafts, and it stays."""
    drafts = state.workload.drafts
    known = depths(drafts, spec.envelope.drafts)
    if not known:
        return None
    # Means over minutes would follow a load too late, and a depth is moved at once.
    now = replace(workload, decodes=state.workload.latest or workload.decodes)
    present = depth_given(state.limits, spec.envelope)
    return best_depth(lambda depth: inputs_of(model, at_depth(now, drafts, depth), spec), known, present)


def _carried(state: TuningState, model: StepModel, workload: Workload, spec: TuningSpec) -> capacity.Carried:
    """What one core carries; with speculation at the depth that carries most."""
    drafts = state.workload.drafts
    known = depths(drafts, spec.envelope.drafts)
    if not known:
        return capacity.carried(inputs_of(model, workload, spec))
    found = (capacity.carried(inputs_of(model, at_depth(workload, drafts, depth), spec)) for depth in known)
    return max(found, key=lambda one: one.rate)


def _learning_policy(state: TuningState, workload: Workload | None, tick: Tick, *, window: float) -> Proposal:
    """Nothing is decided before there is a model, but one thing: an overload need not wait for it.

    Beyond capacity all steps are full. They are so alike that they make no model. But the queue consists of such
    steps, so a fit of them is good enough to refuse and to order by. It says less of smaller steps, which the engine's
    local bias corrects. Steps in a budget have other sizes, so there is a model soon. S stays.
    """
    spec, fit = tick.spec, state.step_time.fit
    learns = Proposal(policy=state.policy, hold=HoldReason.LEARNING, trigger=_learning(state))
    if not (spec.sheds or spec.orders) or workload is None or fit is None or not fit.usable_for_admission:
        return learns
    inputs = inputs_of(fit.model, workload, spec)
    asked, _ = inputs.mean_budget
    if state.policy.budget is not None and asked is not None:
        explored = _explored(state, asked / spec.stages, tick, window=window)
        return learns if explored is None else replace(learns, policy=explored)
    output = choose(inputs)
    if output.given_up:
        # What of a full step is fixed is a guess, and a budget by it no token objective's: half steps will tell.
        reach = spec.stages * fit.reach
        decodes = min(inputs.workload.decodes, (reach - 1.0) / workload.drafted)
        output = replace(output, budget=inputs.step(decodes, reach - decodes * workload.drafted) / 2)
    # What holds steps to a time is the budget from now on: of other sizes, too, so that there is a model soon. C may
    # stay where its bound is near.
    seqs = state.limits.max_num_active_seqs or spec.envelope.seqs.most
    limits = replace_limits(state.limits, seqs=seqs, tokens=spec.envelope.tokens.most)
    policy = wanted_policy(limits, in_steps(output, spec.stages), fit.model, inputs.margins, spec)
    return replace(learns, policy=policy, trigger=f"{_learning(state)}; {_deadline_message(policy, spec)}")


def _explored(state: TuningState, asked: float, tick: Tick, *, window: float) -> Policy | None:
    """While steps that a budget holds are too alike for a model, windows have budgets of different size.

    One that is a guess, above what the objectives leave (`asked`, seconds), is halved until it is there. From there on
    every other one is half as long. None is ever more than that, or than the one before. None where none is due.
    """
    step = state.policy.step
    if step is None or not tick.spec.live or 0.0 <= tick.at - state.changed_at < window:
        return None
    if asked < (1.0 - TUNABLES.hysteresis) * step.seconds:
        seconds = max(asked, step.seconds / 2)
    else:
        seconds = asked if step.seconds < (1.0 - TUNABLES.hysteresis) * asked else step.seconds / 2
    return replace(state.policy, step=step.model_copy(update={"seconds": rounded(seconds)}))


def inputs_of(model: StepModel, workload: Workload, spec: TuningSpec) -> ControlInput:
    """What the law decides on."""
    inputs = ControlInput(
        model,
        workload,
        spec.objectives,
        scattered(margins(), spec.objectives, workload),
        spec.envelope,
        prefill_only=spec.prefill_only,
    )
    return in_rounds(inputs, spec.stages)


def _learning(state: TuningState) -> str:
    fit = state.step_time.fit
    if fit is None or not state.workload.known:
        return "learning the step-time model: too little traffic so far"
    return f"learning the step-time model: {doubt_message(fit)} ({fit.steps:,} steps so far)"


def explain(output: ControlOutput, workload: Workload, policy: Policy, spec: TuningSpec) -> str:
    """One sentence: what binds, what the workload is, and what becomes of who comes too late."""
    message, deadline = _explained(output, workload), _deadline_message(policy, spec)
    return f"{message}; {deadline}" if deadline else message


def _deadline_message(policy: Policy, spec: TuningSpec) -> str:
    """What becomes of requests that would miss their first token; empty if nothing does."""
    ends = []
    if policy.on_time is not None:
        ends.append(f"what can meet {spec.deadlines} is served first")
    if policy.shed is not None:
        ends.append(f"what would miss {spec.deadlines} is refused")
    return ", ".join(ends)


def _explained(output: ControlOutput, workload: Workload) -> str:
    size = f"{workload.uncached:.0f}+{workload.output:.0f} tokens"
    load = f"{figure(workload.arrivals, 2)}/s per core of {size}, {workload.waiting:.0f} waiting"
    if output.given_up:
        return f"no limits hold {', '.join(output.given_up)} at {load}: first tokens as fast as the others allow"
    return f"{output.binding or 'the upper bound'} binds at {load}"
