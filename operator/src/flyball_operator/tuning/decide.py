"""One tick: signals in, a policy out, one decision per tick; the same inputs give the same decision.

It always decides, in every mode: in Recommend and Disabled, and while tuning is paused, the decision is a shadow that
is published or kept, so that switching to Auto starts from what the law would have by now, not from the top. Nothing is
decided on what was not observed. Pure: state goes in and comes out, time is a parameter (Unix seconds).
"""

from __future__ import annotations

from dataclasses import replace

from flyball_engine.model import StepModel
from flyball_operator.tuning import capacity
from flyball_operator.tuning.control_input import ControlInput, ControlOutput, Workload
from flyball_operator.tuning.estimate import doubts
from flyball_operator.tuning.estimate.margins import margins, scattered
from flyball_operator.tuning.estimate.step_time import learn
from flyball_operator.tuning.filters import hysteresis
from flyball_operator.tuning.filters.hysteresis import HoldReason
from flyball_operator.tuning.first_policy import edited_first
from flyball_operator.tuning.observe.signals import (
    Observation,
    RequestLoad,
    Signals,
    StepWindow,
    Unobserved,
    blind_spot,
)
from flyball_operator.tuning.optimise import choose
from flyball_operator.tuning.pipeline_parallel import in_rounds, in_steps
from flyball_operator.tuning.policy import Policy, asked_deadlines, rounded, settled
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import Decision, TuningState
from flyball_operator.tuning.tunables import TUNABLES


def decide(state: TuningState, observation: Observation, spec: TuningSpec, now: float) -> tuple[TuningState, Decision]:
    """One tick. What the spec does not allow any more is mended first, whatever is observed."""
    if (edited := _edited(state, spec)) is not None:
        moved, said = edited
        return moved, _decision(state, moved, now, None, said)
    blind = blind_spot(observation, TUNABLES.stale_seconds)
    if blind is not None or isinstance(observation, Unobserved) or isinstance(observation.load, Unobserved):
        return state, _decision(state, state, now, HoldReason.NOT_OBSERVED, blind.detail if blind is not None else "")
    watched = _weigh(_watch(state, observation, observation.load), observation, observation.load, spec, now)
    return _paced(watched, *_act(watched, observation, observation.load, spec, now), spec)


def _edited(state: TuningState, spec: TuningSpec) -> tuple[TuningState, str] | None:
    """The state without what an edited spec does not allow, and what is said of it; None if it allows all."""
    inside, policy = hysteresis.clipped(state.limits, spec.envelope), state.policy
    if inside != state.limits:
        moved = replace(state, policy=replace(policy, limits=inside))
        return moved, "the bounds changed, and the limits with them"
    if (refusing := _edited_refusals(policy, spec)) is not None:
        return replace(state, policy=refusing[0]), refusing[1]
    if policy.on_time is not None and not spec.orders:
        allowed = policy.within(sheds=spec.sheds, orders=False)
        return replace(state, policy=allowed), "prompts are served in order of arrival again"
    if (first := edited_first(policy, spec, trusted=state.step_time.model is not None)) is not None:
        return replace(state, policy=first), "what is asked for changed, and the first policy with it"
    present = policy.deadlines
    if present and (deadlines := asked_deadlines(present, spec.objectives)) != present:
        moved = replace(state, policy=policy.due_by(deadlines))
        return moved, "the first-token objective changed, and the deadline with it"
    return None


def _edited_refusals(policy: Policy, spec: TuningSpec) -> tuple[Policy, str] | None:
    """The policy that refuses whom, and how, the spec says, and what is said of it; None if it does."""
    if policy.shed is None:
        return None
    if not spec.sheds:
        return policy.within(sheds=False, orders=spec.orders), "no request is refused any more"
    if policy.shed.refusal_status != spec.refusal_status:
        said = f"requests are refused with {spec.refusal_status} from now on"
        return policy.refusing_with(spec.refusal_status), said
    return None


def learn_steps(state: TuningState, window: StepWindow) -> TuningState:
    """Learn from steps that came another way than with signals: the read-backs, while Prometheus is away."""
    return replace(state, step_time=learn(state.step_time, window))


def _watch(state: TuningState, signals: Signals, load: RequestLoad) -> TuningState:
    """Take in what a tick brings: steps, lengths and mix."""
    steps = signals.steps if isinstance(signals.steps, StepWindow) else None
    return replace(
        state,
        step_time=learn(state.step_time, steps) if steps is not None else state.step_time,
        workload=state.workload.after(load, steps, at=signals.at, seconds=signals.window_seconds, cores=signals.cores),
    )


def _weigh(state: TuningState, signals: Signals, load: RequestLoad, spec: TuningSpec, now: float) -> TuningState:
    """Hold the load against what the engines carry. Without a model that stays as it was known."""
    if not spec.objectives:
        return replace(state, balance=None)
    if signals.cores < 1 or not capacity.due(state.balance, spec, now):
        return state
    model, workload, before = state.step_time.model, _workload(state, load, signals), state.balance
    if model is not None and workload is not None:
        found = capacity.carried(_inputs(state, model, workload, spec))
    elif before is not None and before.asked == capacity.asked(spec):
        found = before.carried
    else:
        return replace(state, balance=None)
    balance = capacity.weighed(
        before,
        found,
        arrivals=load.arrivals + load.refused,
        cores=signals.cores / state.workload.fullest,
        pods=signals.cores if signals.pods is None else signals.pods,
        unseen=signals.unseen,
        spec=spec,
        now=now,
        advised=state.advised,
    )
    return replace(state, balance=balance, advised=balance.advised)


def _act(
    state: TuningState, signals: Signals, load: RequestLoad, spec: TuningSpec, now: float
) -> tuple[TuningState, Decision]:
    if now < state.held_until:
        return state, _decision(state, state, now, HoldReason.ROLLED_BACK, "holding after a change was undone")
    if load.running + load.waiting + load.arrivals + load.refused <= 0:
        return state, _decision(state, state, now, HoldReason.IDLE, "no requests")
    model, workload = state.step_time.model, _workload(state, load, signals)
    if model is None or workload is None:
        first = state.workload.first_workload(load, cores=signals.cores)
        return _learn_on(state, workload or first, spec, now, window=signals.window_seconds)
    inputs = _inputs(state, model, workload, spec)
    output = in_steps(choose(inputs), spec.stages)
    limits, hold = hysteresis.restrain(state.limits, output, spec.envelope)
    policy = settled(state.policy, limits, output, model, inputs.margins, spec)
    moved = replace(state, policy=policy)
    said = explain(output, workload, policy, spec)
    return moved, _decision(state, moved, now, hold if policy == state.policy else None, said, output)


def _paced(
    state: TuningState, moved: TuningState, decision: Decision, spec: TuningSpec
) -> tuple[TuningState, Decision]:
    """What was decided, or the policy as it is where that changed a moment ago: the next tick weighs it anew."""
    # A shadow's moves are no setpoints, which is what there may not be too many of.
    if not decision.changed or not spec.live:
        return moved, decision
    # A first gate cannot wait: what is let in meanwhile is late.
    gates = decision.before.shed is None and decision.policy.shed is not None
    if gates or not 0.0 <= decision.at - state.changed_at < TUNABLES.changes_apart:
        return replace(moved, changed_at=decision.at), decision
    said = f"{decision.trigger}; changed less than {TUNABLES.changes_apart:.0f} s ago: this change waits"
    return state, replace(decision, policy=state.policy, hold=HoldReason.CHANGED_OFTEN, trigger=said)


def _learn_on(
    state: TuningState, workload: Workload | None, spec: TuningSpec, now: float, *, window: float
) -> tuple[TuningState, Decision]:
    """Nothing is decided before there is a model, but one thing: an overload need not wait for it.

    Beyond capacity all steps are full. They are so alike that they make no model. But the queue consists of such
    steps, so a fit of them is good enough to refuse and to order by. It says less of smaller steps, which the engine's
    local bias corrects. Steps in a budget have other sizes, so there is a model soon. S stays.
    """
    fit = state.step_time.fit
    if not (spec.sheds or spec.orders) or workload is None or fit is None or not fit.usable_for_admission:
        return state, _decision(state, state, now, HoldReason.LEARNING, _learning(state))
    inputs = _inputs(state, fit.model, workload, spec)
    asked, _ = inputs.mean_budget
    if state.policy.budget is not None and asked is not None:
        return _explored(state, asked / spec.stages, spec, now, window=window)
    output = choose(inputs)
    if output.given_up:
        # What of a full step is fixed is a guess, and a budget by it no token objective's: half steps will tell.
        reach = spec.stages * fit.reach
        decodes = min(inputs.workload.decodes, (reach - 1.0) / workload.drafted)
        output = replace(output, budget=inputs.step(decodes, reach - decodes * workload.drafted) / 2)
    # What holds steps to a time is the budget from now on: of other sizes, too, so that there is a model soon.
    seqs = state.limits.max_num_active_seqs or spec.envelope.seqs.most
    limits = hysteresis.replace_limits(state.limits, seqs=seqs, tokens=spec.envelope.tokens.most)
    policy = settled(state.policy, limits, in_steps(output, spec.stages), fit.model, inputs.margins, spec)
    moved = replace(state, policy=policy)
    hold = HoldReason.LEARNING if policy == state.policy else None
    said = f"{_learning(state)}; {_deadline_said(policy, spec)}"
    return moved, _decision(state, moved, now, hold, said)


def _explored(
    state: TuningState, asked: float, spec: TuningSpec, now: float, *, window: float
) -> tuple[TuningState, Decision]:
    """While steps that a budget holds are too alike for a model, windows have budgets of different size.

    One that is a guess, above what the objectives leave (`asked`, seconds), is halved until it is there. From there on
    every other one is half as long. None is ever more than that, or than the one before.
    """
    step = state.policy.step
    if step is None or not spec.live or 0.0 <= now - state.changed_at < window:
        return state, _decision(state, state, now, HoldReason.LEARNING, _learning(state))
    if step.seconds > (1.0 + TUNABLES.moved) * asked:
        seconds = max(asked, step.seconds / 2)
    else:
        seconds = asked if step.seconds < (1.0 - TUNABLES.moved) * asked else step.seconds / 2
    policy = replace(state.policy, step=step.model_copy(update={"seconds": rounded(seconds)}))
    moved = replace(state, policy=policy)
    return moved, _decision(state, moved, now, None, _learning(state))


def _inputs(state: TuningState, model: StepModel, workload: Workload, spec: TuningSpec) -> ControlInput:
    inputs = ControlInput(
        model,
        workload,
        spec.objectives,
        scattered(margins(), spec.objectives, workload),
        spec.envelope,
        budget=state.policy.budget,
    )
    return in_rounds(inputs, spec.stages)


def _workload(state: TuningState, load: RequestLoad, signals: Signals) -> Workload | None:
    return state.workload.workload(load, cores=signals.cores)


def _learning(state: TuningState) -> str:
    fit = state.step_time.fit
    if fit is None or not state.workload.lengths or state.workload.recent.steps.decodes <= 0.0:
        return "learning the step-time model: too little traffic so far"
    return f"learning the step-time model: {doubts.said(fit)} ({fit.steps:,} steps so far)"


def explain(output: ControlOutput, workload: Workload, policy: Policy, spec: TuningSpec) -> str:
    """One sentence: what binds, what the workload is, and what becomes of who comes too late."""
    said, deadline = _explained(output, workload), _deadline_said(policy, spec)
    return f"{said}; {deadline}" if deadline else said


def _deadline_said(policy: Policy, spec: TuningSpec) -> str:
    """What becomes of requests that would miss their first token; empty if nothing does."""
    ends = []
    if policy.on_time is not None:
        ends.append(f"what can meet {spec.deadlines} is served first")
    if policy.shed is not None:
        ends.append(f"what would miss {spec.deadlines} is refused")
    return ", ".join(ends)


def _explained(output: ControlOutput, workload: Workload) -> str:
    size = f"{workload.uncached:.0f}+{workload.output:.0f} tokens"
    load = f"{workload.arrivals:.2g}/s per core of {size}, {workload.waiting:.0f} waiting"
    if output.given_up:
        return f"no limits hold {', '.join(output.given_up)} at {load}: first tokens as fast as the others allow"
    return f"{output.binding or 'the upper bound'} binds at {load}"


def _decision(
    before: TuningState,
    after: TuningState,
    now: float,
    hold: HoldReason | None,
    trigger: str,
    output: ControlOutput | None = None,
) -> Decision:
    return Decision(at=now, before=before.policy, policy=after.policy, hold=hold, trigger=trigger, output=output)
