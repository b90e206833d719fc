"""The governor: signals in, a policy out, one decision per tick; the same inputs give the same decision.

It always decides, in every mode: in Recommend and Disabled, and while tuning is paused, the decision is a shadow that
is published or kept, so that switching to Auto starts from what the law would have by now, not from the top. Nothing is
decided on what was not observed. Pure: state goes in and comes out, time is a parameter (Unix seconds).
"""

from __future__ import annotations

from dataclasses import replace

from flyball_engine.model import StepModel
from flyball_operator.tuning import capacity
from flyball_operator.tuning.control_input import Choice, Demand, Situation
from flyball_operator.tuning.estimate import doubts
from flyball_operator.tuning.estimate.margins import MARGINS, scattered
from flyball_operator.tuning.estimate.step_time import learn
from flyball_operator.tuning.filters import hysteresis
from flyball_operator.tuning.filters.hysteresis import Hold
from flyball_operator.tuning.first_policy import edited_first
from flyball_operator.tuning.observe.signals import Load, Observation, Signals, StepWindow, Unobserved, blind_spot
from flyball_operator.tuning.optimise import choose
from flyball_operator.tuning.pipeline_parallel import in_rounds, in_steps
from flyball_operator.tuning.policy import MOVED, Policy, asked_deadlines, rounded, settled
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import STALE_SECONDS, Decision, State


def decide(state: State, observation: Observation, spec: TuningSpec, now: float) -> tuple[State, Decision]:
    """One tick. What the spec does not allow any more is mended first, whatever is observed."""
    if (edited := _edited(state, spec)) is not None:
        moved, said = edited
        return moved, _decision(state, moved, now, None, said)
    blind = blind_spot(observation, STALE_SECONDS)
    if blind is not None or isinstance(observation, Unobserved) or isinstance(observation.load, Unobserved):
        return state, _decision(state, state, now, Hold.NOT_OBSERVED, blind.detail if blind is not None else "")
    watched = _weigh(_watch(state, observation, observation.load), observation, observation.load, spec, now)
    return _paced(watched, *_act(watched, observation, observation.load, spec, now), spec)


def _edited(state: State, spec: TuningSpec) -> tuple[State, str] | None:
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
    if (first := edited_first(policy, spec, trusted=state.learner.model is not None)) is not None:
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


def learn_steps(state: State, window: StepWindow) -> State:
    """Learn from steps that came another way than with signals: the read-backs, while Prometheus is away."""
    return replace(state, learner=learn(state.learner, window))


def _watch(state: State, signals: Signals, load: Load) -> State:
    """Take in what a tick brings: steps, lengths and mix."""
    steps = signals.steps if isinstance(signals.steps, StepWindow) else None
    return replace(
        state,
        learner=learn(state.learner, steps) if steps is not None else state.learner,
        seen=state.seen.after(load, steps, at=signals.at, seconds=signals.window_seconds, cores=signals.cores),
    )


def _weigh(state: State, signals: Signals, load: Load, spec: TuningSpec, now: float) -> State:
    """Hold the load against what the engines carry. Without a model that stays as it was known."""
    if not spec.objectives:
        return replace(state, balance=None)
    if signals.cores < 1 or not capacity.due(state.balance, spec, now):
        return state
    model, demand, before = state.learner.model, _demand(state, load, signals), state.balance
    if model is not None and demand is not None:
        found = capacity.carried(_situation(state, model, demand, spec))
    elif before is not None and before.asked == capacity.asked(spec):
        found = before.carried
    else:
        return replace(state, balance=None)
    balance = capacity.weighed(
        before,
        found,
        arrivals=load.arrivals + load.refused,
        cores=signals.cores / state.seen.fullest,
        pods=signals.cores if signals.pods is None else signals.pods,
        unseen=signals.unseen,
        spec=spec,
        now=now,
        advised=state.advised,
    )
    return replace(state, balance=balance, advised=balance.advised)


def _act(state: State, signals: Signals, load: Load, spec: TuningSpec, now: float) -> tuple[State, Decision]:
    if now < state.held_until:
        return state, _decision(state, state, now, Hold.ROLLED_BACK, "holding after a change was undone")
    if load.running + load.waiting + load.arrivals + load.refused <= 0:
        return state, _decision(state, state, now, Hold.IDLE, "no requests")
    model, demand = state.learner.model, _demand(state, load, signals)
    if model is None or demand is None:
        first = state.seen.first_demand(load, cores=signals.cores)
        return _learn_on(state, demand or first, spec, now, window=signals.window_seconds)
    situation = _situation(state, model, demand, spec)
    choice = in_steps(choose(situation), spec.stages)
    limits, hold = hysteresis.restrain(state.limits, choice, spec.envelope)
    policy = settled(state.policy, limits, choice, model, situation.margins, spec)
    moved = replace(state, policy=policy)
    said = explain(choice, demand, policy, spec)
    return moved, _decision(state, moved, now, hold if policy == state.policy else None, said, choice)


def _paced(state: State, moved: State, decision: Decision, spec: TuningSpec) -> tuple[State, Decision]:
    """What was decided, or the policy as it is where that changed a moment ago: the next tick weighs it anew."""
    # A shadow's moves are no setpoints, which is what there may not be too many of.
    if not decision.changed or not spec.live:
        return moved, decision
    # A first gate cannot wait: what is let in meanwhile is late.
    gates = decision.before.shed is None and decision.policy.shed is not None
    if gates or not 0.0 <= decision.at - state.changed_at < hysteresis.CHANGES_APART:
        return replace(moved, changed_at=decision.at), decision
    said = f"{decision.trigger}; changed less than {hysteresis.CHANGES_APART:.0f} s ago: this change waits"
    return state, replace(decision, policy=state.policy, hold=Hold.CHANGED_OFTEN, trigger=said)


def _learn_on(
    state: State, demand: Demand | None, spec: TuningSpec, now: float, *, window: float
) -> tuple[State, Decision]:
    """Nothing is decided before there is a model, but one thing: an overload need not wait for it.

    Past capacity all steps are full, and so alike that they make no model. But a queue is made of just such steps, and
    what foretells them is enough to refuse and to order by. It says less of smaller steps, which the engine's own bias
    mends; and steps that are fitted to a budget are of other sizes, so that there is a model soon. S stays.
    """
    fit = state.learner.fit
    if not (spec.sheds or spec.orders) or demand is None or fit is None or not fit.foretells:
        return state, _decision(state, state, now, Hold.LEARNING, _learning(state))
    situation = _situation(state, fit.model, demand, spec)
    asked, _ = situation.mean_budget
    if state.policy.budget is not None and asked is not None:
        return _explored(state, asked / spec.stages, spec, now, window=window)
    choice = choose(situation)
    if choice.given_up:
        # What of a full step is fixed is a guess, and a budget by it no token objective's: half steps will tell.
        reach = spec.stages * fit.reach
        decodes = min(situation.demand.decodes, (reach - 1.0) / demand.drafted)
        choice = replace(choice, budget=situation.step(decodes, reach - decodes * demand.drafted) / 2)
    # What holds steps to a time is the budget from now on: of other sizes, too, so that there is a model soon.
    seqs = state.limits.max_num_active_seqs or spec.envelope.seqs.most
    limits = hysteresis.replace_limits(state.limits, seqs=seqs, tokens=spec.envelope.tokens.most)
    policy = settled(state.policy, limits, in_steps(choice, spec.stages), fit.model, situation.margins, spec)
    moved = replace(state, policy=policy)
    hold = Hold.LEARNING if policy == state.policy else None
    said = f"{_learning(state)}; {_deadline_said(policy, spec)}"
    return moved, _decision(state, moved, now, hold, said)


def _explored(state: State, asked: float, spec: TuningSpec, now: float, *, window: float) -> tuple[State, Decision]:
    """While steps that a budget holds are too alike for a model, windows have budgets of different size.

    One that is a guess, above what the objectives leave (`asked`, seconds), is halved until it is there. From there on
    every other one is half as long. None is ever more than that, or than the one before.
    """
    step = state.policy.step
    if step is None or not spec.live or 0.0 <= now - state.changed_at < window:
        return state, _decision(state, state, now, Hold.LEARNING, _learning(state))
    if step.seconds > (1.0 + MOVED) * asked:
        seconds = max(asked, step.seconds / 2)
    else:
        seconds = asked if step.seconds < (1.0 - MOVED) * asked else step.seconds / 2
    policy = replace(state.policy, step=step.model_copy(update={"seconds": rounded(seconds)}))
    moved = replace(state, policy=policy)
    return moved, _decision(state, moved, now, None, _learning(state))


def _situation(state: State, model: StepModel, demand: Demand, spec: TuningSpec) -> Situation:
    situation = Situation(
        model,
        demand,
        spec.objectives,
        scattered(MARGINS, spec.objectives, demand),
        spec.envelope,
        budget=state.policy.budget,
    )
    return in_rounds(situation, spec.stages)


def _demand(state: State, load: Load, signals: Signals) -> Demand | None:
    return state.seen.demand(load, cores=signals.cores)


def _learning(state: State) -> str:
    fit = state.learner.fit
    if fit is None or not state.seen.lengths or state.seen.recent.steps.decodes <= 0.0:
        return "learning the step-time model: too little traffic so far"
    return f"learning the step-time model: {doubts.said(fit)} ({fit.steps:,} steps so far)"


def explain(choice: Choice, demand: Demand, policy: Policy, spec: TuningSpec) -> str:
    """One sentence: what binds, what the demand is, and what becomes of who comes too late."""
    said, deadline = _explained(choice, demand), _deadline_said(policy, spec)
    return f"{said}; {deadline}" if deadline else said


def _deadline_said(policy: Policy, spec: TuningSpec) -> str:
    """What becomes of requests that would miss their first token; empty if nothing does."""
    ends = []
    if policy.on_time is not None:
        ends.append(f"what can meet {spec.deadlines} is served first")
    if policy.shed is not None:
        ends.append(f"what would miss {spec.deadlines} is refused")
    return ", ".join(ends)


def _explained(choice: Choice, demand: Demand) -> str:
    size = f"{demand.uncached:.0f}+{demand.output:.0f} tokens"
    load = f"{demand.arrivals:.2g}/s per core of {size}, {demand.waiting:.0f} waiting"
    if choice.given_up:
        return f"no limits hold {', '.join(choice.given_up)} at {load}: first tokens as fast as the others allow"
    return f"{choice.binding or 'the upper bound'} binds at {load}"


def _decision(
    before: State, after: State, now: float, hold: Hold | None, trigger: str, choice: Choice | None = None
) -> Decision:
    return Decision(at=now, before=before.policy, policy=after.policy, hold=hold, trigger=trigger, choice=choice)
