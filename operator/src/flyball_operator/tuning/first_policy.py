"""What engines are told before anything is known of them. Pure; seconds and tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flyball_engine.contract import LARGEST_LIMIT, Metric
from flyball_operator.tuning.policy import Policy, replace_limits
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.tunables import TUNABLES

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
    wanted = first_policy(spec)
    if present.shed is not None or present.queued_tokens in (None, wanted.queued_tokens):
        return None
    return replace(present, queued_tokens=wanted.queued_tokens) if trusted else wanted


def _first_queue(spec: TuningSpec, tokens: int) -> int | None:
    """Tokens of prompts that may wait before a gate can say how long they take; None if the objectives do not say.

    First steps of so many `tokens` are thought to take what a token may: so many as fit before a first token is due.
    An engine whose steps take longer loses its tokens whoever waits, and the first window corrects both.
    """
    first, token = (
        min((one.seconds for one in spec.objectives if one.metric is metric), default=None)
        for metric in (Metric.TIME_TO_FIRST_TOKEN, Metric.TIME_PER_OUTPUT_TOKEN)
    )
    return None if first is None or token is None else min(LARGEST_LIMIT, int(tokens * max(1.0, first / token)))
