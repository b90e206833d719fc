"""What the law makes of a service's engines: limits, the time of a step, the order of prompts, and a deadline.

Whatever is sent anew is a new generation that every pod must confirm. So a learnt model and a budget are sent only when
they differ from what is there. Figures are rounded as status holds them, so that the next leader goes on with the same.
Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from flyball_engine.contract import (
    DEFAULT_CLASS,
    LARGEST_COEFFICIENT,
    LARGEST_LIMIT,
    Limits,
    Metric,
    ModelSpec,
    OnTime,
    Setpoint,
    Shed,
    StepBudget,
)
from flyball_engine.figures import format_duration, significant
from flyball_engine.model import StepModel
from flyball_operator.api.quantities import parse_duration
from flyball_operator.api.v1alpha1 import DEADLINES
from flyball_operator.tuning.control_input import ControlOutput, Margins
from flyball_operator.tuning.queueing import Queueing
from flyball_operator.tuning.spec import Envelope, LatencyObjective, TuningSpec, of_class
from flyball_operator.tuning.tunables import TUNABLES

#: Stands for no budget: no step takes so long. Gate and order need a model, and that is sent with a budget.
NO_BUDGET: Final = 60.0
#: Models whose figures are kept: each is asked about until the next window of its service. Likewise of durations,
#: deadlines and budgets, most of which follow from the objectives alone.
_MODELS: Final = 4096
#: Steps that models are compared by: running decodes, prefill tokens, context before them, and that of each decode.
_COMPARED: Final = (
    (1, 0, 0, 0),
    (16, 0, 0, 1024),
    (64, 0, 0, 1024),
    (8, 128, 0, 1024),
    (32, 512, 0, 1024),
    (32, 512, 4096, 4096),
    (64, 2048, 0, 1024),
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What engines are told besides what they count. Without `step` the limits alone hold, without `shed` all wait.

    `on_time`: the order that prompts are served in; without it, vLLM's own. `class_deadlines`: seconds to the first
    token by class of requests; that of the others stands in `shed` and `on_time`. `queued_tokens`: while so many tokens
    of prompts are unserved vLLM refuses, absent never: what stands in for a gate until there is one.
    """

    limits: Limits
    step: StepBudget | None = None
    shed: Shed | None = None
    on_time: OnTime | None = None
    class_deadlines: tuple[tuple[str, float], ...] = ()
    queued_tokens: int | None = None

    @classmethod
    def of(cls, setpoint: Setpoint, asked: Queueing) -> Policy:
        """What a setpoint tells, without what users `asked` for."""
        queued = setpoint.queue.max_num_queued_tokens if asked.queue.max_num_queued_tokens is None else None
        classes = () if setpoint.classes is None else setpoint.classes.classes
        due = {o.name: o.first_token_deadline_seconds for o in classes if o.first_token_deadline_seconds is not None}
        return cls(
            limits=setpoint.limits,
            step=setpoint.step,
            shed=setpoint.shed,
            on_time=setpoint.on_time,
            class_deadlines=tuple(sorted(due.items())),
            queued_tokens=queued,
        )

    def within(self, *, sheds: bool, orders: bool) -> Policy:
        """The policy without refusals, or the order, where these are not to be."""
        shed, on_time = self.shed if sheds else None, self.on_time if orders else None
        if (shed, on_time) == (self.shed, self.on_time):
            return self
        # Without a budget the model is for gate and order alone.
        needed = shed is not None or on_time is not None or self.budget is not None
        due = self.class_deadlines if shed is not None or on_time is not None else ()
        step = self.step if needed else None
        return replace(self, step=step, shed=shed, on_time=on_time, class_deadlines=due)

    def due_by(self, deadlines: Mapping[str, float]) -> Policy:
        """The policy with other deadlines of first tokens by class, where it has any."""
        shed, on_time, default = self.shed, self.on_time, deadlines.get(DEFAULT_CLASS)
        if not deadlines or (shed is None and on_time is None):
            return self.within(sheds=False, orders=False)
        if shed is not None:
            shed = shed.model_copy(update={"ttft_deadline_seconds": default})
        if on_time is not None:
            on_time = on_time.model_copy(update={"first_token_deadline_seconds": default})
        return replace(self, shed=shed, on_time=on_time, class_deadlines=_of_classes(deadlines))

    def without_classes(self) -> Policy:
        """The policy for engines that cannot tell classes apart: all have the deadline of requests without a class."""
        deadline = self.deadline
        return self.due_by({} if deadline is None else {DEFAULT_CLASS: deadline})

    @property
    def deadlines(self) -> dict[str, float]:
        """Seconds to the first token by class, where requests are refused by it, or served first."""
        deadline = self.deadline
        return {**({} if deadline is None else {DEFAULT_CLASS: deadline}), **dict(self.class_deadlines)}

    def refusing_with(self, status: Literal[503, 429]) -> Policy:
        """The policy with another HTTP status of refusals, where it refuses."""
        if self.shed is None:
            return self
        return replace(self, shed=self.shed.model_copy(update={"refusal_status": status}))

    @property
    def deadline(self) -> float | None:
        """Seconds to the first token by which requests are refused, or served first; None if there is none."""
        if self.shed is not None:
            return self.shed.ttft_deadline_seconds
        return self.on_time.first_token_deadline_seconds if self.on_time is not None else None

    @property
    def budget(self) -> float | None:
        """Seconds that a step may take, None where no objective bounds one."""
        return self.step.seconds if self.step is not None and self.step.seconds < NO_BUDGET else None


def wanted_policy(
    limits: Limits, output: ControlOutput, model: StepModel, margins: Margins, spec: TuningSpec
) -> Policy:
    """The policy with these limits and what the law asks for."""
    deadlines = {name: rounded(seconds) for name, seconds in output.deadlines.items()}
    deadline = deadlines.get(DEFAULT_CLASS)
    shed, on_time, margin = None, None, round(margins.first_token, 2)
    if deadlines and spec.sheds:
        shed = _shed(deadline, margin, spec.refusal_status)
    if deadlines and spec.orders:
        on_time = _on_time(deadline, margin)
    due = _of_classes(deadlines) if shed is not None or on_time is not None else ()
    step = None
    if output.budget is not None or shed is not None or on_time is not None:
        budget = NO_BUDGET if output.budget is None else rounded(min(NO_BUDGET, output.budget))
        step = _step_budget(budget, model)
    return Policy(limits=limits, step=step, shed=shed, on_time=on_time, class_deadlines=due)


@lru_cache(_MODELS)
def _shed(deadline: float | None, margin: float, status: Literal[503, 429]) -> Shed:
    return Shed(ttft_deadline_seconds=deadline, margin=margin, refusal_status=status)


@lru_cache(_MODELS)
def _on_time(deadline: float | None, margin: float) -> OnTime:
    return OnTime(first_token_deadline_seconds=deadline, margin=margin)


@lru_cache(_MODELS)
def _step_budget(seconds: float, model: StepModel) -> StepBudget:
    return StepBudget(seconds=seconds, model=model_spec(model))


#: Bounds, who is refused and how, the order, deadlines: `within_spec` follows one at a time, and each once.
_KINDS_OF_EDITS: Final = 5


def within_spec(present: Policy, spec: TuningSpec, *, first: Policy | None) -> tuple[Policy, str] | None:
    """The policy that an edited spec asks for in place of the present one, and why; None if that may stay.

    `first`: what it asks for while there is no model, None if the present policy may stay.
    """
    if (inside := clipped(present.limits, spec.envelope)) != present.limits:
        return replace(present, limits=inside), "the bounds changed, and the limits with them"
    if (refusing := _refusing_as(present, spec)) is not None:
        return refusing
    if present.on_time is not None and not spec.orders:
        allowed = present.within(sheds=spec.sheds, orders=False)
        return allowed, "prompts are served in order of arrival again"
    if first is not None:
        return first, "what is asked for changed, and the first policy with it"
    deadlines = asked_deadlines(present.deadlines, spec.objectives) if present.deadlines else {}
    if deadlines != present.deadlines:
        return present.due_by(deadlines), "the first-token objective changed, and the deadline with it"
    return None


def allowed(earlier: Policy, spec: TuningSpec) -> Policy:
    """An earlier policy with all that the spec asks for by now."""
    for _ in range(_KINDS_OF_EDITS):
        edited = within_spec(earlier, spec, first=None)
        if edited is None:
            break
        earlier = edited[0]
    return earlier


def _refusing_as(present: Policy, spec: TuningSpec) -> tuple[Policy, str] | None:
    """The policy that refuses whom, and how, the spec says, and why; None if it does."""
    if present.shed is None:
        return None
    if not spec.sheds:
        return present.within(sheds=False, orders=spec.orders), "no request is refused any more"
    if present.shed.refusal_status != spec.refusal_status:
        message = f"requests are refused with {spec.refusal_status} from now on"
        return present.refusing_with(spec.refusal_status), message
    return None


def limits_given(limits: Limits, envelope: Envelope) -> tuple[int, int]:
    """S and C, where they are not given the most that the envelope allows."""
    return (
        limits.max_num_active_seqs or envelope.seqs.most,
        limits.max_num_scheduled_tokens or envelope.tokens.most,
    )


def replace_limits(limits: Limits, *, seqs: int, tokens: int) -> Limits:
    """The same limits with another S and C."""
    if (limits.max_num_active_seqs, limits.max_num_scheduled_tokens) == (seqs, tokens):
        return limits
    return limits.model_copy(update={"max_num_active_seqs": seqs, "max_num_scheduled_tokens": tokens})


def replace_depth(limits: Limits, depth: int, envelope: Envelope) -> Limits:
    """The same limits with another depth of speculation; the most is what engines start with, and not said."""
    wanted = depth if depth < envelope.drafts else None
    if limits.num_speculative_tokens == wanted:
        return limits
    return limits.model_copy(update={"num_speculative_tokens": wanted})


def depth_given(limits: Limits, envelope: Envelope) -> int:
    """The depth of speculation, where none is given the most that the envelope allows."""
    depth = limits.num_speculative_tokens
    return envelope.drafts if depth is None else min(depth, envelope.drafts)


def clipped(limits: Limits, envelope: Envelope) -> Limits:
    """The limits moved inside the envelope."""
    seqs, tokens = limits_given(limits, envelope)
    inside = replace_limits(limits, seqs=envelope.seqs.clip(seqs), tokens=envelope.tokens.clip(tokens))
    return replace_depth(inside, depth_given(inside, envelope), envelope)


def asked_deadline(present: float, objectives: Sequence[LatencyObjective]) -> float | None:
    """The deadline that an edited first-token objective asks for in place of the present one, None if that may stay.

    One that an end-to-end objective gave may be earlier than any first-token objective.
    """
    given = [rounded(o.seconds) for o in objectives if o.metric is Metric.TIME_TO_FIRST_TOKEN]
    others = any(o.metric is Metric.END_TO_END_LATENCY for o in objectives)
    if not given or present == min(given) or (others and present < min(given)):
        return None
    return min(given)


def asked_deadlines(present: Mapping[str, float], objectives: Sequence[LatencyObjective]) -> dict[str, float]:
    """The deadlines by class that edited objectives leave: the present ones, as far as these may stay.

    Of a class that had none the law has not spoken yet: an end-to-end objective leaves its least share.
    """
    found = {}
    for name in dict.fromkeys(o.of_class for o in objectives if o.metric in DEADLINES):
        mine, had = of_class(objectives, name), present.get(name)
        if had is not None:
            found[name] = asked_deadline(had, mine) or had
            continue
        share = {Metric.TIME_TO_FIRST_TOKEN: 1.0, Metric.END_TO_END_LATENCY: TUNABLES.least_first_share}
        found[name] = rounded(min(share[o.metric] * o.seconds for o in mine if o.metric in DEADLINES))
    return found


def _of_classes(deadlines: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((name, seconds) for name, seconds in deadlines.items() if name != DEFAULT_CLASS))


@lru_cache(_MODELS)
def model_spec(model: StepModel) -> ModelSpec:
    """The model as engines get it: three digits, trusted, named by what it says."""
    seconds = {name: value for name, value in vars(model).items() if name != "kappa"}
    digits = {name: value and min(LARGEST_COEFFICIENT, significant(value, 3)) for name, value in seconds.items()}
    identity = hashlib.sha256(f"{digits} {model.kappa}".encode()).hexdigest()[:8]
    return ModelSpec(id=identity, trusted=True, kappa=model.kappa, **digits)


def nearly_equal(present: Policy, wanted: Policy) -> bool:
    """Whether it says nearly the same, limits apart: noise moves deadlines, model and budget a little."""
    now, then = present.deadlines, wanted.deadlines
    if now != then and now.keys() == then.keys() and all(near(now[name], then[name]) for name in now):
        wanted = wanted.due_by(now)
    step, new_step = present.step, wanted.step
    if (present.shed, present.on_time, present.queued_tokens) != (wanted.shed, wanted.on_time, wanted.queued_tokens):
        return False
    if present.class_deadlines != wanted.class_deadlines:
        return False
    if step is None or new_step is None:
        return step is new_step
    if not near(step.seconds, new_step.seconds):
        return False
    return step.model is new_step.model or _difference(step.model, new_step.model) <= TUNABLES.hysteresis


def near(present: float, wanted: float) -> bool:
    """Whether the change is within the hysteresis, a share of what is there."""
    return abs(wanted - present) <= TUNABLES.hysteresis * present


def difference(one: StepModel, other: StepModel) -> float:
    """The largest share by which two models differ over the compared steps."""
    return max(abs(b - a) / max(a, 1e-9) for a, b in zip(_compared(one), _compared(other), strict=True))


@lru_cache(_MODELS)
def _difference(one: ModelSpec, other: ModelSpec) -> float:
    return difference(one.step_model(), other.step_model())


def _compared(model: StepModel) -> tuple[float, ...]:
    return tuple(
        model.seconds(decodes=n, prefill_tokens=p, context=before, kv_tokens=n * each)
        for n, p, before, each in _COMPARED
    )


@lru_cache(_MODELS)
def rounded(seconds: float) -> float:
    """A duration as status holds it, of a microsecond at least."""
    return float(parse_duration(format_duration(max(seconds, 1e-6))))


_OF_TOKENS: Final = (Metric.TIME_PER_OUTPUT_TOKEN, Metric.INTER_TOKEN_LATENCY)


def first_policy(spec: TuningSpec) -> Policy:
    """The upper bounds, as its pods are started with, but for first steps to be careful.

    Only where requests will be refused: elsewhere those that wait go by what engines start with until a model is there.
    """
    limits, span = spec.envelope.upper(), spec.envelope
    if not spec.refuses or not any(one.metric in _OF_TOKENS for one in spec.objectives):
        return Policy(limits=limits)
    first = span.tokens.clip(max(TUNABLES.first_tokens, span.seqs.most))
    limits = replace_limits(limits, seqs=span.seqs.most, tokens=first)
    return Policy(limits=limits, queued_tokens=_first_queue(spec, first))


def edited_first(present: Policy, spec: TuningSpec, *, trusted: bool) -> Policy | None:
    """The policy that an edited spec asks for in place of the first one; None if `present` may stay, or is none.

    What the first one refuses goes with what asked for it, and need not wait for a model that may never be. The limits
    do so too, unless a model is `trusted`: then the law moves them.
    """
    if trusted and (present.shed is not None or present.queued_tokens is None):
        return None
    wanted = first_policy(spec)
    if not trusted and present == replace(wanted, queued_tokens=None):
        # The limit was the user's, who has none any more.
        return None if present == wanted else wanted
    if present.shed is not None or present.queued_tokens in (None, wanted.queued_tokens):
        return None
    return replace(present, queued_tokens=wanted.queued_tokens) if trusted else wanted


def _first_queue(spec: TuningSpec, tokens: int) -> int | None:
    """Tokens of prompts that may wait before a gate can say how long they take; None if the objectives do not say.

    First steps of so many `tokens` are thought to take what a token may: so many as fit before a first token is due.
    An engine whose steps take longer loses its tokens whoever waits, and the first window corrects both. Where users
    have set this limit, it is theirs.
    """
    if spec.queueing.queue.max_num_queued_tokens is not None:
        return None
    first, token = (
        min((one.seconds for one in spec.objectives if one.metric is metric), default=None)
        for metric in (Metric.TIME_TO_FIRST_TOKEN, Metric.TIME_PER_OUTPUT_TOKEN)
    )
    return None if first is None or token is None else min(LARGEST_LIMIT, int(tokens * max(1.0, first / token)))
