"""What the next step serves of the prompts, given the order to serve them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple

from flyball_engine.batching.pending import Pending, R


class StepOrder(NamedTuple, Generic[R]):
    """What the next step serves of the prompts.

    `running`: those that have begun, in order. `parked`: have begun, and wait this step. `joining`: to be admitted, in
    order. `threshold`: tokens of one prompt at most, 0 for no cap.
    """

    running: tuple[R, ...] = ()
    parked: tuple[R, ...] = ()
    joining: tuple[R, ...] = ()
    threshold: int = 0


def step_order(
    pending: Iterable[Pending[R]],
    begun: Sequence[R],
    *,
    tokens: int,
    slots: int,
    most: int,
    least_cap: int = 1,
    memory: float = math.inf,
) -> StepOrder[R]:
    """Who has the prompt `tokens` of the next step, where vLLM serves what has `begun` before what it admits.

    `pending`: in the order to serve them; read no further than the tokens last. `begun`: in that order, too. `slots`:
    requests that may join. `most`: requests that are looked at beside those that have begun. `least_cap`: the least cap
    on the tokens of one request that an engine can run with. `memory`: tokens that the KV cache has free for those that
    join. From the first prompt on that is longer, nobody joins: others would be parked for it, and keep what it lacks.

    A prompt that has begun and comes after one that joins is parked, or else it would take the tokens of the one that
    joins. It keeps its slot and its KV blocks. One runs all the same where a cap on each prompt leaves those before it
    what they need.
    """
    running: list[R] = []
    joining: list[R] = []
    has_begun = set(begun)
    left, longest, looked, cap = float(tokens), 0.0, 0, 0
    for one in pending:
        if left <= 0 or looked >= most:
            break
        request, needs = one.request, one.tokens
        if request in has_begun:
            if joining:
                if cap or not max(longest, least_cap) <= left:
                    continue
                cap = int(left)
            running.append(request)
        else:
            looked += 1
            memory -= needs
            if len(joining) >= slots or memory < 0:
                slots = len(joining)
                continue
            joining.append(request)
        left -= needs
        longest = max(longest, needs)
    served = set(running)
    after = [request for request in begun if request not in served]
    if not joining:
        return StepOrder((*running, *after))
    return StepOrder(tuple(running), tuple(after), tuple(joining), cap)
