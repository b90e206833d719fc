"""What stands between the law's wish and the engine: slew, hysteresis, cool-down, roll-back, and the margins' trim.

The law is a jump to where the model points; a wrong model must not be able to jump far, nor a noisy one often. Every
refusal has a reason. Margins move one-sided by counts: they widen slowly while all is well and fall at once with
violations; a symmetric trim relaxes in calm and pays for it in the next overload. Pure; times in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist
from typing import Final

from flyball_engine.contract import Limits, Metric
from flyball_operator.governor.signals import Outcome
from flyball_operator.governor.situation import Choice, Demand, Margins, Regime
from flyball_operator.governor.spec import Envelope, Objective

#: A change must be worth it: relative change of S and of C up to which the limits stay, for S one place at least, see
#: below. The law's candidates for C are quarter octaves: a neighbour is no change.
SEQS_HYSTERESIS: Final = 0.10
TOKENS_HYSTERESIS: Final = 0.20
#: Of so few places each counts: the last ones of an engine whose requests hardly fit into its memory.
FEW_SEQS: Final = 3
#: S may fall to this share, or rise by this factor and step, in one decision. C leaves nothing behind and may jump.
SLEW_DOWN: Final = 0.7
SLEW_UP: Final = 1.5
SLEW_STEP: Final = 8
#: Where it binds nobody S follows what memory holds once that is less than this share of it: lengths scatter.
MEMORY_MOVED: Final = 0.75
#: Places beyond this multiple of those in use, and a step, are idle: S may fall there at once.
IDLE_PLACES: Final = 2.0
#: Seconds after a rise of S before it may fall, unless KV memory is nearly full: a batch must show what it does.
SEQS_COOL_DOWN: Final = 15.0
KV_URGENT: Final = 0.95
#: C may grow to this multiple of the largest steps the model was learnt from.
REACH: Final = 4
#: Windows in a row, each worse by so many standard deviations, that undo a change; then nothing moves for a while.
WORSE_WINDOWS: Final = 2
WORSE_DEVIATIONS: Final = 2.0
ROLLBACK_HOLD: Final = 120.0
#: Changes that the law makes by itself in so many seconds at most, each being a setpoint that every pod must confirm;
#: the last ones are left to what must not wait.
CHANGES: Final = 6
CHANGES_SECONDS: Final = 60.0
URGENT_CHANGES: Final = 2
#: Seconds between two that may wait, two usual ticks: so that the last of a row never has to wait for long.
CHANGES_APART: Final = 9.5
#: A window is compared only with one of similar load, and with enough requests in both.
LIKE_LOAD: Final = 1.25
LEAST_REQUESTS: Final = 20.0
#: Trim: share of a margin per violation beyond the allowed ones, and where margins end.
TRIM: Final = 0.002
TOKEN_MARGIN: Final = (0.70, 0.92)
FIRST_TOKEN_MARGIN: Final = (0.50, 0.85)
#: At most so many requests are counted in one trim, so that a single window cannot throw a margin across its range.
TRIM_REQUESTS: Final = 100.0
#: No objective is held for more than all requests but this share.
LEAST_ALLOWED: Final = 1e-4
_NORMAL: Final = NormalDist()


class Hold(StrEnum):
    """Why the limits stay as they are."""

    NOT_OBSERVED = "NotObserved"
    """Signals are missing, stale or partial."""
    IDLE = "Idle"
    """No requests: there is nothing to decide on."""
    LEARNING = "Learning"
    """The step-time model is not trusted yet."""
    GOOD_ENOUGH = "GoodEnough"
    """The change would be within the hysteresis, or a lower S that binds nobody."""
    COOLING_DOWN = "CoolingDown"
    """S rose a moment ago and may not fall yet."""
    CHANGED_OFTEN = "ChangedOften"
    """It changed a moment ago, or as often as it may in a minute, and this change may wait."""
    ROLLED_BACK = "RolledBack"
    """A change was undone; nothing moves until the hold ends."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A change under observation: what was before it, and how requests fared then."""

    since: float
    before: Limits
    baseline: Outcome
    arrivals: float
    ratio: float
    worse: int = 0


def restrain(
    current: Limits, choice: Choice, envelope: Envelope, *, reach: int, cooled: bool, used: float, fits: int
) -> tuple[Limits, Hold | None]:
    """The limits after slew and hysteresis; a reason if they are the current ones.

    `used`: places of a core that requests have or wait for; infinite where S is to fall whoever has one. S falls once
    there are too few for them: before that a lower one holds nothing back, and when the mix changes it is in the way of
    more than it was meant for. `fits`: requests that memory holds, which it never exceeds.
    """
    seqs, tokens = _given(current, envelope)
    binds = used > choice.seqs
    aim = choice.seqs if binds else max(choice.seqs, fits if fits < MEMORY_MOVED * seqs else seqs)
    # A draining batch jumps up: that is the direction of the start values, and every second of it is queue.
    most = envelope.seqs.most if choice.regime is Regime.DRAINING else SLEW_UP * seqs + SLEW_STEP
    least = min(SLEW_DOWN * seqs, IDLE_PLACES * used + SLEW_STEP)
    wanted = envelope.seqs.clip(min(max(aim, least), most))
    held = wanted < seqs and not cooled
    new_seqs = seqs if held or _near(wanted, seqs, _worth(seqs)) else wanted
    reachable = choice.tokens if choice.regime is Regime.DRAINING else min(choice.tokens, max(tokens, REACH * reach))
    new_tokens = tokens if _near(reachable, tokens, TOKENS_HYSTERESIS) else envelope.tokens.clip(reachable)
    if (new_seqs, new_tokens) == (seqs, tokens):
        return current, Hold.COOLING_DOWN if held else Hold.GOOD_ENOUGH
    return replace_limits(current, seqs=new_seqs, tokens=new_tokens), None


def recent(changes: tuple[float, ...], now: float) -> tuple[float, ...]:
    """Those of the law's changes, in order, that the next one has to heed."""
    return tuple(at for at in changes if 0.0 <= now - at < CHANGES_SECONDS)


def may_change(changes: tuple[float, ...], now: float, *, urgent: bool) -> bool:
    """Whether one more change may be made now, after these recent ones."""
    if urgent or not changes:
        return len(changes) < CHANGES
    return len(changes) < CHANGES - URGENT_CHANGES and now - changes[-1] >= CHANGES_APART


def clipped(current: Limits, envelope: Envelope) -> Limits:
    """The limits moved inside the envelope."""
    seqs, tokens = _given(current, envelope)
    return replace_limits(current, seqs=envelope.seqs.clip(seqs), tokens=envelope.tokens.clip(tokens))


def replace_limits(limits: Limits, *, seqs: int, tokens: int) -> Limits:
    """The same limits with another S and C."""
    return limits.model_copy(update={"max_num_active_seqs": seqs, "max_num_scheduled_tokens": tokens})


def judge(trial: Trial, outcome: Outcome, *, arrivals: float, ratio: float) -> Trial | None:
    """Advance a trial by one window: one more worse window, or None once a window is not worse or not comparable."""
    if not _comparable(trial, outcome, arrivals, ratio) or not _is_worse(trial.baseline, outcome):
        return None
    return replace(trial, worse=trial.worse + 1)


def trim(margins: Margins, objectives: tuple[Objective, ...], outcomes: dict[str, Outcome], output: float) -> Margins:
    """Margins after a window's counts: m += γ(α·N − V) for each objective, within their ranges."""
    token, first = margins.token, margins.first_token
    for objective in objectives:
        outcome = outcomes.get(objective.id)
        if outcome is None or outcome.total <= 0:
            continue
        step = _step(objective, outcome, output)
        if objective.metric in (Metric.TIME_TO_FIRST_TOKEN, Metric.END_TO_END_LATENCY):
            first = min(first + step, FIRST_TOKEN_MARGIN[1])
        else:
            token = min(token + step, TOKEN_MARGIN[1])
    return Margins(token=max(TOKEN_MARGIN[0], token), first_token=max(FIRST_TOKEN_MARGIN[0], first))


def scattered(margins: Margins, objectives: tuple[Objective, ...], demand: Demand) -> Margins:
    """The margins, narrowed for what short answers scatter: so that all but the allowed share keep their token time.

    A request's time per token is a mean over its steps, so that of few steps it scatters nearly as each of them does.
    With speculation the tokens of a step scatter, too: between one and all drafts, by a variance that their mean bounds
    (Bhatia and Davis, 2000).
    """
    drafts = max(0.0, (demand.made - 1.0) * (demand.drafted - demand.made)) / demand.made**2
    scatter = math.sqrt((demand.scatter**2 + drafts) / max(1.0, demand.output / demand.made))
    token = margins.token
    for objective in objectives:
        if objective.metric is Metric.TIME_PER_OUTPUT_TOKEN:
            deviations = _NORMAL.inv_cdf(1.0 - min(0.5, max(LEAST_ALLOWED, objective.allowed)))
            token = min(token, 1.0 / (1.0 + deviations * scatter))
    return replace(margins, token=max(TOKEN_MARGIN[0], token))


def _given(limits: Limits, envelope: Envelope) -> tuple[int, int]:
    return (
        limits.max_num_active_seqs or envelope.seqs.most,
        limits.max_num_scheduled_tokens or envelope.tokens.most,
    )


def _worth(seqs: int) -> float:
    """Relative change of S that is worth a setpoint: one place is none, but where there are but a few."""
    return SEQS_HYSTERESIS if seqs <= FEW_SEQS else max(SEQS_HYSTERESIS, 1.0 / seqs)


def _near(new: float, old: float, share: float) -> bool:
    return abs(new - old) <= share * old


def _comparable(trial: Trial, outcome: Outcome, arrivals: float, ratio: float) -> bool:
    return (
        min(trial.baseline.total, outcome.total) >= LEAST_REQUESTS
        and arrivals <= LIKE_LOAD * trial.arrivals
        and ratio <= LIKE_LOAD * trial.ratio
    )


def _is_worse(before: Outcome, after: Outcome) -> bool:
    share = (before.violated + after.violated) / (before.total + after.total)
    deviation = math.sqrt(share * (1 - share) * (1 / before.total + 1 / after.total))
    return after.violated / after.total - before.violated / before.total > max(WORSE_DEVIATIONS * deviation, 1e-9)


def _step(objective: Objective, outcome: Outcome, output: float) -> float:
    """The trim of one objective. Gaps are counted per token, so they are scaled to requests."""
    scale = 1.0 / max(1.0, output) if objective.metric is Metric.INTER_TOKEN_LATENCY else 1.0
    requests = outcome.total * scale
    scale *= min(1.0, TRIM_REQUESTS / requests)
    return TRIM * (objective.allowed * outcome.total - outcome.violated) * scale
