"""The governor: signals in, a policy out, one decision per tick; the same inputs give the same decision.

It always decides, in every mode: in Recommend and Disabled, and while tuning is paused, the decision is a shadow that
is published or kept, so that switching to Auto starts from what the law would have by now, not from the top. Nothing is
decided on what was not observed. Pure: state goes in and comes out, time is a parameter (Unix seconds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

from flyball_engine.contract import Limits
from flyball_engine.model import StepModel
from flyball_operator.api.v1alpha1 import DEADLINES
from flyball_operator.governor import capacity, guard
from flyball_operator.governor.capacity import Balance, Search
from flyball_operator.governor.demand import Seen
from flyball_operator.governor.guard import Hold, Trial
from flyball_operator.governor.identify import Learner, learn
from flyball_operator.governor.law import choose, has_token_objective, kv_seqs
from flyball_operator.governor.pipeline import in_rounds, in_steps
from flyball_operator.governor.policy import Policy, asked_deadline, settled
from flyball_operator.governor.shed import GATED_MARGINS, choose_gated
from flyball_operator.governor.signals import Load, Observation, Outcome, Signals, StepWindow, Unobserved, blind_spot
from flyball_operator.governor.situation import Choice, Demand, Margins, Regime, Situation
from flyball_operator.governor.spec import Envelope, TuningSpec

#: Tokens of a step before anything is known of the engine, where a gate will stand and tokens have an objective: near
#: full speed on what vLLM runs on, and short beside most objectives. A whole step of long prompts is several of them.
FIRST_TOKENS: Final = 512
#: Samples older than this are not acted on: three scrapes at Prometheus' usual 5 s.
STALE_SECONDS: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class State:
    """What is remembered from tick to tick of one service; bounded.

    `policy`: the law's, live in Auto. `counted_until`: end of the last window whose counts were used.
    `halved`: whether its budget is half of what it should be, to learn; `explore_at`: when that may change.
    `live_since`: when the law's limits became live, infinite while they are a shadow, whose counts teach nothing.
    `balance`: the load against what the engines carry, None until there is a model, and the `search` that this was
    found by; `advised`: the replicas that were advised last, whatever is known now. `changes`: when the law changed
    the policy by itself, the last minute's.
    """

    policy: Policy
    learner: Learner = field(default_factory=Learner)
    margins: Margins = field(default_factory=Margins)
    seen: Seen = field(default_factory=Seen)
    seqs_rose_at: float = float("-inf")
    counted_until: float = float("-inf")
    trial: Trial | None = None
    held_until: float = float("-inf")
    last_outcome: Outcome | None = None
    regime: Regime = Regime.BALANCED
    live_since: float = float("inf")
    halved: bool = False
    explore_at: float = float("inf")
    balance: Balance | None = None
    search: Search | None = None
    advised: int | None = None
    changes: tuple[float, ...] = ()

    @property
    def limits(self) -> Limits:
        """The policy's limits."""
        return self.policy.limits


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One tick's outcome. `policy` is the law's after it; `hold` says why it did not move, None if it did.

    `trigger` is one sentence for people. `choice` is what the law wanted, None where it was not asked.
    """

    at: float
    before: Policy
    policy: Policy
    hold: Hold | None
    trigger: str
    choice: Choice | None = None

    @property
    def changed(self) -> bool:
        """Whether the policy moved."""
        return self.policy != self.before


def start(spec: TuningSpec) -> State:
    """State of a service never tuned before: at the upper bounds, as its pods are, but for first steps to be careful.

    Only behind a gate: a queue that nobody trims is drained by the largest steps.
    """
    limits, span = spec.envelope.upper(), spec.envelope
    if spec.refuses and has_token_objective(spec.objectives):
        first = span.tokens.clip(max(FIRST_TOKENS, 2 * span.seqs.most))
        limits = guard.replace_limits(limits, seqs=span.seqs.most, tokens=first)
    return State(policy=Policy(limits=limits))


def decide(state: State, observation: Observation, spec: TuningSpec, now: float) -> tuple[State, Decision]:
    """One tick. What the spec does not allow any more is mended first, whatever is observed."""
    inside = guard.clipped(state.limits, spec.envelope)
    if inside != state.limits:
        moved = replace(state, policy=replace(state.policy, limits=inside), trial=None)
        return moved, _decision(state, moved, now, None, "the bounds changed, and the limits with them")
    if state.policy.shed is not None and not spec.sheds:
        # Margins found behind a gate say nothing of a queue.
        moved = replace(state, policy=state.policy.ungated, margins=Margins(), regime=Regime.BALANCED, trial=None)
        return moved, _decision(state, moved, now, None, "no request is refused any more")
    shed = state.policy.shed
    if shed is not None and (deadline := asked_deadline(shed.ttft_deadline_seconds, spec.objectives)) is not None:
        edited = shed.model_copy(update={"ttft_deadline_seconds": deadline})
        moved = replace(state, policy=replace(state.policy, shed=edited))
        return moved, _decision(state, moved, now, None, "the first-token objective changed, and the deadline with it")
    blind = blind_spot(observation, STALE_SECONDS)
    if blind is not None or isinstance(observation, Unobserved) or isinstance(observation.load, Unobserved):
        return state, _decision(state, state, now, Hold.NOT_OBSERVED, blind.detail if blind is not None else "")
    watched = _watch(_lived(state, spec, observation.at), observation, observation.load, spec)
    watched = _weigh(watched, observation, observation.load, spec, now)
    if watched.trial is not None and watched.trial.worse >= guard.WORSE_WINDOWS:
        return _roll_back(watched, spec.envelope, now)
    return _paced(watched, *_act(watched, observation, observation.load, spec, now), observation.load, spec)


def learn_steps(state: State, window: StepWindow) -> State:
    """Learn from steps that came another way than with signals: the read-backs, while Prometheus is away."""
    return replace(state, learner=learn(state.learner, window))


def _lived(state: State, spec: TuningSpec, at: float) -> State:
    """Note whether the law's limits are live; a shadow is not on trial."""
    if not spec.live:
        return replace(state, live_since=float("inf"), trial=None, last_outcome=None)
    return state if state.live_since <= at else replace(state, live_since=at)


def _watch(state: State, signals: Signals, load: Load, spec: TuningSpec) -> State:
    """Take in what a tick brings: steps, lengths, mix, and counts once per window."""
    steps = signals.steps if isinstance(signals.steps, StepWindow) else None
    learnt = replace(
        state,
        learner=learn(state.learner, steps) if steps is not None else state.learner,
        seen=state.seen.after(load, steps, at=signals.at, seconds=signals.window_seconds),
    )
    if signals.at - max(state.counted_until, state.live_since) < signals.window_seconds - 0.5:
        return learnt
    return _count(learnt, signals, load, spec)


def _count(state: State, signals: Signals, load: Load, spec: TuningSpec) -> State:
    """Use a window's counts: judge the change on trial, trim the margins unless the queue explains the violations."""
    output = state.seen.lengths.output if state.seen.lengths is not None else 1.0
    margins = state.margins
    if state.regime is not Regime.DRAINING:
        margins = guard.trim(margins, spec.objectives, dict(signals.outcomes), output)
    trial = state.trial
    if trial is not None and signals.goodput is not None and signals.at - signals.window_seconds >= trial.since:
        ratio = state.seen.mix.ratio if state.seen.mix is not None else 0.0
        trial = guard.judge(trial, signals.goodput, arrivals=load.arrivals, ratio=ratio)
    return replace(state, margins=margins, trial=trial, counted_until=signals.at, last_outcome=signals.goodput)


def _weigh(state: State, signals: Signals, load: Load, spec: TuningSpec, now: float) -> State:
    """Hold the load against what the engines carry. Without a model that stays as it was known."""
    if not spec.objectives:
        return replace(state, balance=None)
    if signals.cores < 1 or not capacity.due(state.balance, spec, now):
        return state
    model, demand, before = state.learner.model, _demand(state, load, signals), state.balance
    if model is not None and demand is not None:
        situation = _situation(state, model, demand, spec)
        search = capacity.searched(state.search, situation, gated=spec.refuses, now=now)
        state, found = replace(state, search=search), search.found
    elif before is not None and before.asked == capacity.asked(spec):
        found = before.carried
    else:
        return replace(state, balance=None)
    balance = capacity.weighed(
        before,
        found,
        arrivals=load.arrivals + load.refused,
        cores=signals.cores,
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
    if model is None or demand is None or state.learner.fit is None:
        first = state.seen.first_demand(load, at=signals.at, cores=signals.cores, seconds=signals.window_seconds)
        learnt = _learn_on(state, demand or first, spec, now, window=signals.window_seconds)
        return _explored(*learnt, until=now + signals.window_seconds) if now >= state.explore_at else learnt
    situation = _situation(state, model, demand, spec)
    choice = in_steps(choose_gated(situation) if spec.sheds else choose(situation), spec.stages)
    urgent = load.kv_usage > guard.KV_URGENT
    cooled = urgent or now - state.seqs_rose_at >= guard.SEQS_COOL_DOWN
    # Steps that are held to a time need no other bound.
    reach = state.learner.fit.reach if choice.budget is None else spec.envelope.tokens.most
    # Means over cores do not say what the fullest one has.
    used = math.inf if urgent else max(demand.running + demand.waiting, demand.decodes)
    # A queue loses less by what is preempted than by places that are missing; behind a gate whoever is let in counts.
    fits = kv_seqs(demand) if spec.sheds else spec.envelope.seqs.most
    limits, hold = guard.restrain(state.limits, choice, spec.envelope, reach=reach, cooled=cooled, used=used, fits=fits)
    moved = _moved(state, limits, load, now) if hold is None else state
    policy = settled(state.policy, limits, choice, model, situation.margins)
    if state.policy.shed is None and policy.shed is not None:
        moved = _behind_a_gate(moved, now + signals.window_seconds)
    # What a queue spoils is no verdict on the limits.
    trial = None if choice.regime is Regime.DRAINING else moved.trial
    later = now + signals.window_seconds
    moved = replace(moved, policy=policy, regime=choice.regime, trial=trial, halved=False, explore_at=later)
    said = explain(choice, demand, sheds=shed_for(spec) if policy.shed is not None else "")
    return moved, _decision(state, moved, now, hold if policy == state.policy else None, said, choice)


def _paced(state: State, moved: State, decision: Decision, load: Load, spec: TuningSpec) -> tuple[State, Decision]:
    """What was decided, or the policy as it is where that changed as often as it may.

    What is not done is not remembered as decided either: the next tick weighs it anew. But a queue that should be
    drained is one, and what it spoils is no verdict on margins or limits.
    """
    # A shadow's moves are no setpoints, which is what there may not be too many of.
    if not decision.changed or not spec.live:
        return moved, decision
    changes = guard.recent(state.changes, decision.at)
    if guard.may_change(changes, decision.at, urgent=_is_urgent(decision, load)):
        return replace(moved, changes=(*changes, decision.at)), decision
    said = f"{decision.trigger}; changed {len(changes)} times within {guard.CHANGES_SECONDS:.0f} s: the next one waits"
    held = replace(decision, policy=state.policy, hold=Hold.CHANGED_OFTEN, trigger=said)
    if moved.regime is Regime.DRAINING:
        state = replace(state, regime=Regime.DRAINING, trial=None)
    return replace(state, changes=changes), held


def _is_urgent(decision: Decision, load: Load) -> bool:
    """What every second counts for: a first gate, a batch that memory does not hold, and wider limits for a queue."""
    before, after, choice = decision.before, decision.policy, decision.choice
    if before.shed is None and after.shed is not None:
        return True
    rises = [
        (new or 0) - (old or 0)
        for new, old in (
            (after.limits.max_num_active_seqs, before.limits.max_num_active_seqs),
            (after.limits.max_num_scheduled_tokens, before.limits.max_num_scheduled_tokens),
        )
    ]
    if load.kv_usage > guard.KV_URGENT and rises[0] < 0:
        return True
    return choice is not None and choice.regime is Regime.DRAINING and max(rises) > 0


def _learn_on(
    state: State, demand: Demand | None, spec: TuningSpec, now: float, *, window: float
) -> tuple[State, Decision]:
    """Nothing is decided before there is a model, but one thing: an overload need not wait for it.

    Past capacity all steps are full, and so alike that they make no model. But a queue is made of just such steps, and
    what foretells them is enough to refuse by. It says less of smaller steps, which the engine's own bias mends; and
    steps that are fitted to a budget are of other sizes, so that there is a model soon. S stays.
    """
    fit = state.learner.fit
    # A budget that is held rests on a better model, and the engine's own bias keeps that right.
    held = state.policy.budget is not None
    if not spec.sheds or held or demand is None or fit is None or not fit.foretells:
        return state, _decision(state, state, now, Hold.LEARNING, _learning(state))
    situation = _situation(state, fit.model, demand, spec)
    choice = choose_gated(situation)
    if choice.regime is Regime.TOKEN_BOUND:
        # What of a full step is fixed is a guess, and a budget by it no token objective's: half steps will tell.
        reach = spec.stages * fit.reach
        decodes = min(situation.demand.decodes, (reach - 1.0) / demand.drafted)
        choice = replace(choice, budget=situation.step(decodes, reach - decodes * demand.drafted) / 2)
    # What holds steps to a time is the budget from now on: of other sizes, too, so that there is a model soon.
    seqs = state.limits.max_num_active_seqs or spec.envelope.seqs.most
    limits = guard.replace_limits(state.limits, seqs=seqs, tokens=spec.envelope.tokens.most)
    policy = settled(state.policy, limits, in_steps(choice, spec.stages), fit.model, situation.margins)
    moved = _behind_a_gate(state, now + window) if state.policy.shed is None else state
    moved = replace(moved, policy=policy, regime=Regime.SHEDDING)
    hold = Hold.LEARNING if policy == state.policy else None
    return moved, _decision(state, moved, now, hold, f"{_learning(state)}; what would miss {shed_for(spec)} is refused")


def _explored(state: State, decision: Decision, *, until: float) -> tuple[State, Decision]:
    """While steps that a budget holds are still too alike for a model, every other window's are half as long."""
    step, fit = state.policy.step, state.learner.fit
    if decision.changed or step is None or state.policy.budget is None or fit is None or not fit.foretells:
        return state, decision
    halved = step.model_copy(update={"seconds": step.seconds * (2.0 if state.halved else 0.5)})
    moved = replace(state, policy=replace(state.policy, step=halved), halved=not state.halved, explore_at=until)
    return moved, replace(decision, policy=moved.policy, hold=None)


def _situation(state: State, model: StepModel, demand: Demand, spec: TuningSpec) -> Situation:
    shed = state.policy.shed
    # Behind a gate violations are few, and the margins begin where they may end: they fall at once if need be.
    margins = GATED_MARGINS if spec.sheds and shed is None else state.margins
    situation = Situation(
        model,
        demand,
        spec.objectives,
        guard.scattered(margins, spec.objectives, demand),
        spec.envelope,
        state.limits.max_num_scheduled_tokens or spec.envelope.tokens.most,
        draining=state.regime is Regime.DRAINING,
        deadline=shed.ttft_deadline_seconds if shed is not None else None,
    )
    return in_rounds(situation, spec.stages)


def _behind_a_gate(state: State, settled_at: float) -> State:
    """How requests fared that nobody refused teaches nothing of those that a gate lets in.

    Counts begin with the window after `settled_at`: what waited before the gate is worked off first.
    """
    return replace(
        state, margins=GATED_MARGINS, counted_until=settled_at, explore_at=settled_at, trial=None, last_outcome=None
    )


def _moved(state: State, limits: Limits, load: Load, now: float) -> State:
    """What is remembered of a change of limits; a trial begins unless one runs: then its windows start anew."""
    rose = (limits.max_num_active_seqs or 0) > (state.limits.max_num_active_seqs or 0)
    trial = state.trial
    if trial is not None:
        trial = replace(trial, since=now, worse=0)
    elif state.last_outcome is not None and state.seen.mix is not None:
        trial = Trial(
            since=now,
            before=state.limits,
            baseline=state.last_outcome,
            arrivals=load.arrivals,
            ratio=state.seen.mix.ratio,
        )
    return replace(state, trial=trial, seqs_rose_at=now if rose else state.seqs_rose_at)


def _roll_back(state: State, envelope: Envelope, now: float) -> tuple[State, Decision]:
    assert state.trial is not None  # noqa: S101 - narrows for the type checker
    before = replace(state.policy, limits=guard.clipped(state.trial.before, envelope))
    moved = replace(state, policy=before, trial=None, held_until=now + guard.ROLLBACK_HOLD, last_outcome=None)
    reason = (
        f"two windows after the last change were worse than before it: undone, held for {guard.ROLLBACK_HOLD:.0f} s"
    )
    return moved, _decision(state, moved, now, Hold.ROLLED_BACK if before == state.policy else None, reason)


def _demand(state: State, load: Load, signals: Signals) -> Demand | None:
    return state.seen.demand(load, at=signals.at, cores=signals.cores, seconds=signals.window_seconds)


def _learning(state: State) -> str:
    fit = state.learner.fit
    if fit is None or state.seen.lengths is None or state.seen.mix is None:
        return "learning the step-time model: too little traffic so far"
    return f"learning the step-time model: {fit.doubt.value if fit.doubt else 'no data'} after {fit.steps} steps"


def shed_for(spec: TuningSpec) -> str:
    """Names of the objectives that requests are refused for."""
    return ", ".join(objective.name for objective in spec.objectives if objective.metric in DEADLINES)


def explain(choice: Choice, demand: Demand, *, sheds: str = "") -> str:
    """One sentence: the regime, what binds, what the demand is, and what is shed for."""
    said = _explained(choice, demand)
    return f"{said}; what would miss {sheds} is refused" if sheds else said


def _explained(choice: Choice, demand: Demand) -> str:
    size = f"{demand.uncached:.0f}+{demand.output:.0f} tokens"
    load = f"{demand.arrivals:.2g}/s per core of {size}, {demand.waiting:.0f} waiting"
    if choice.regime is Regime.DRAINING:
        return f"{choice.binding or 'the queue'} cannot be held at {load}: draining as fast as the engine can"
    if choice.regime is Regime.TOKEN_BOUND:
        return f"no limits hold {choice.binding} at {load}: first tokens as fast as the engine can"
    if choice.regime is Regime.THROUGHPUT:
        return f"no token objective: largest rate at {load}"
    return f"{choice.binding or 'the upper bound'} binds at {load}"


def _decision(
    before: State, after: State, now: float, hold: Hold | None, trigger: str, choice: Choice | None = None
) -> Decision:
    return Decision(at=now, before=before.policy, policy=after.policy, hold=hold, trigger=trigger, choice=choice)
