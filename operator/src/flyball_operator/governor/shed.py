"""The law behind a gate: limits, the time of a step, and the deadline by which requests are refused.

What stands before the queue trims it, so nothing is ever drained and no token objective is given up for the queue: a
late token spoils every running request, a late first token one. The batch is the largest that keeps the token
objectives in the mean, and a little more; the tokens of a step are left to the engine, which fits each step into its
time by itself. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flyball_engine.contract import Metric
from flyball_operator.api.v1alpha1 import DEADLINES
from flyball_operator.governor.guard import FIRST_TOKEN_MARGIN, TOKEN_MARGIN
from flyball_operator.governor.law import KEEP, calm_seqs, has_token_objective, kv_seqs, point_at, token_budget
from flyball_operator.governor.situation import Choice, Margins, Regime, Situation
from flyball_operator.governor.spec import Objective

#: Where margins begin behind a gate.
GATED_MARGINS: Final = Margins(token=TOKEN_MARGIN[1], first_token=FIRST_TOKEN_MARGIN[1])
#: The engine holds each step within its time, so that the batch may pass what is balanced in the mean by what it
#: scatters: found in simulation, where without room requests that the gate let in waited for a place.
SEQS_ROOM: Final = 1.3
#: Share of an end-to-end objective that is left to the first token at least: else a few long answers would make a
#: deadline that no request can meet, and with none let in nothing would show that answers are short again.
LEAST_FIRST_SHARE: Final = 0.25


def choose_gated(situation: Situation) -> Choice:
    """What one core shall do. Some objective must bound the first token, else see `law.choose`."""
    held = _feasible(situation)
    wide = replace(situation, margins=replace(situation.margins, token=GATED_MARGINS.token))
    if len(at_most := _feasible(wide)) > len(held):
        # Violations must not trim a budget until it leaves prompts no room, and the objective is given up for good.
        situation, held = wide, at_most
    calm = replace(situation, objectives=held)
    seqs, binding = calm_seqs(calm)
    budgets = [budget for objective in held if (budget := token_budget(objective, calm)) is not None]
    budget = min(budgets, default=None)
    if budget is not None:
        span = situation.envelope.seqs
        seqs = max(seqs, min(int(SEQS_ROOM * seqs), span.most, kv_seqs(situation.demand)))
    point = point_at(calm, seqs, _tokens(calm, seqs, budget))
    regime, lost = Regime.SHEDDING, [o.name for o in situation.objectives if o not in held]
    if lost:
        regime, binding = Regime.TOKEN_BOUND, lost[0]
    elif not has_token_objective(situation.objectives):
        regime = Regime.THROUGHPUT
    return Choice(
        seqs=seqs,
        tokens=situation.envelope.tokens.most,
        regime=regime,
        binding=binding,
        predicted=point.predicted,
        budget=budget,
        deadline=_deadline(situation, _token_seconds(calm, seqs, budget)),
    )


def _feasible(situation: Situation) -> tuple[Objective, ...]:
    """The objectives but for those of tokens that leave a prompt too little of each step, even on an idle engine.

    The engine would keep to such a budget, and the gate refuse everything.
    """
    first = min(o.seconds for o in situation.objectives if o.metric in DEADLINES) * situation.margins.first_token

    def leaves_room(objective: Objective) -> bool:
        budget = token_budget(objective, situation)
        return budget is None or situation.demand.uncached * budget <= first * _chunk(situation, 1.0, budget)

    return tuple(filter(leaves_room, situation.objectives))


def _chunk(situation: Situation, decodes: float, budget: float) -> float:
    """Prefill tokens that fit into a step's time beside some decodes, no more than a step may have."""
    decode_tokens = decodes * situation.demand.drafted
    return min(situation.largest_chunk(decodes, seconds=budget), situation.envelope.tokens.most - decode_tokens)


def _tokens(situation: Situation, seqs: int, budget: float | None) -> int:
    """Tokens of the largest step within its time, for what is predicted."""
    most, decodes = situation.envelope.tokens.most, situation.decodes(seqs)
    if budget is None:
        return most
    return min(most, int(decodes * situation.demand.drafted + max(1.0, _chunk(situation, decodes, budget))))


def _token_seconds(situation: Situation, seqs: int, budget: float | None) -> float:
    """What a token takes in a batch whose steps are held to their time."""
    seconds = situation.token_seconds(seqs)
    return seconds if budget is None else min(seconds, budget / situation.demand.made)


def _deadline(situation: Situation, token_seconds: float) -> float | None:
    """The earliest that the objectives leave for a first token; None if none says.

    Of an end-to-end objective that is what the tokens of a mean answer leave. It moves with every window's lengths, so
    that the present one is kept while it is near.
    """
    made = situation.demand.output * token_seconds
    given = [o.seconds for o in situation.objectives if o.metric is Metric.TIME_TO_FIRST_TOKEN]
    left = [
        max(LEAST_FIRST_SHARE * o.seconds, o.seconds - made)
        for o in situation.objectives
        if o.metric is Metric.END_TO_END_LATENCY
    ]
    earliest = min([*given, *left], default=None)
    present = situation.deadline
    if earliest is None or earliest in given or present is None:
        return earliest
    near = abs(earliest - present) <= KEEP * present and present <= min(given, default=present)
    return present if near else earliest
