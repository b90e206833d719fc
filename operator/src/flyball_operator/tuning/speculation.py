"""How many tokens a step shall draft for each decode: the depth of speculation. Pure.

A decode processes its drafts, and makes those that the model takes. A deeper draft makes more tokens in a step, and the
step takes longer. While steps wait for the weights that is nearly free; in a large batch each draft costs what a prompt
token costs. So the best depth falls as the batch grows.

First come the depths that keep the token objectives, or miss them least; of these the one whose tokens take the least
time. At high load that is the depth whose batch is the largest that keeps the objectives. So one rule serves low and
high load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from flyball_operator.tuning.control_input import ControlInput, Workload
from flyball_operator.tuning.tunables import TUNABLES


class DraftShare(NamedTuple):
    """Of decodes that might have a draft at a position the shares that had one, and for which it was accepted."""

    drafted: float
    accepted: float


def depths(drafts: Sequence[DraftShare], most: int) -> range:
    """The depths of which it is known what they bring, 0 among them; none without drafts."""
    known = min(most, len(drafts))
    return range(known + 1) if known else range(0)


def at_depth(workload: Workload, drafts: Sequence[DraftShare], depth: int) -> Workload:
    """The workload where so many tokens may be drafted for a decode."""
    drafted = 1.0 + sum(draft.drafted for draft in drafts[:depth])
    made = 1.0 + sum(draft.accepted for draft in drafts[:depth])
    return replace(workload, drafted=drafted, made=made, ratio=workload.uncached * made / workload.output)


def best_depth(inputs: Callable[[int], ControlInput], known: range, present: int) -> int:
    """The depth at which tokens take the least time, of those that are `known`; `inputs` at each.

    The `present` one stays where another is hardly better.
    """
    uses = {depth: _use(inputs(depth)) for depth in known}
    best = min(uses, key=uses.__getitem__)
    if present not in uses or best == present:
        return best
    (missed, seconds), (best_missed, best_seconds) = uses[present], uses[best]
    worth = 1.0 - TUNABLES.depth_gain
    return best if best_missed < worth * missed or best_seconds < worth * seconds else present


def _use(inputs: ControlInput) -> tuple[float, float]:
    """By how much the mean step is over its budget, 1 if it is not, and the seconds of a token.

    The budget has the margin for the scatter of drafts.
    """
    decodes = inputs.decodes(inputs.envelope.seqs.most)
    budget, _ = inputs.mean_budget
    over = 1.0 if budget is None else max(1.0, inputs.balanced_step(decodes) / budget)
    return over, inputs.token_seconds(decodes)
