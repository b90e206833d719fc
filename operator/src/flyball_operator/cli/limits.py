"""Batch limits of a status, and what a spec asks of the queue, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from flyball_operator.api.v1alpha1 import Strategy, Tuning

#: What a setpoint may give, by field, in the order in which it is told.
LIMIT_WORDS: Final = {
    "max_num_active_seqs": "requests at once",
    "max_num_scheduled_tokens": "tokens in a step",
    "long_prefill_token_threshold": "tokens of one prompt in a step",
    "num_speculative_tokens": "drafts for each request in a step",
    "step_budget": "time of a step",
    "first_token_deadline": "the deadline after which requests are refused",
    "first_token_margin": "the share of the deadline that a prediction may take",
    "refusal_status": "the HTTP status of who is refused",
    "on_time_deadline": "the deadline by which requests are ordered",
    "on_time_margin": "the share of the deadline that the order plans with",
    "class_deadlines": "the deadlines of classes of requests",
    "queued_tokens": "prompt tokens that may wait",
}

#: What moves before the model of a step's time is trusted, for a sentence on limits that stay.
OVERLOAD_EXCEPTION: Final = "the time of a step, the order and the deadline follow an overload"


def limits_in_words(setpoint: Mapping[str, Any]) -> str:
    """The limits of a setpoint as the API spells it, for a sentence; what nobody has set yet is said so."""
    parts = []
    if (requests := setpoint.get("maxNumActiveSeqs")) is not None:
        parts.append(f"{requests} requests at once")
    if (tokens := setpoint.get("maxNumScheduledTokens")) is not None:
        parts.append(f"{tokens} tokens in a step")
    if (drafts := setpoint.get("numSpeculativeTokens")) is not None:
        parts.append(f"{drafts} drafts for each request")
    if budget := setpoint.get("stepBudget"):
        parts.append(f"steps of {budget}")
    return ", ".join(parts) or "none set yet, pods run at the upper bounds"


def given(setpoint: Mapping[str, Any]) -> dict[str, int | str]:
    """What a setpoint as the API spells it gives, by field."""
    found = {name: setpoint.get(to_camel(name)) for name in LIMIT_WORDS}
    by_class = [f"{one['deadline']} for {one['name']}" for one in found["class_deadlines"] or ()]
    found["class_deadlines"] = ", ".join(by_class)
    return {name: value for name, value in found.items() if value not in (None, "")}


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any], *, absent: str
) -> Iterator[tuple[str, int | str, int | str]]:
    """What changed between two setpoints as the API spells them: what it is in words, from, to."""
    left, right = given(before), given(after)
    for name, words in LIMIT_WORDS.items():
        if left.get(name) != right.get(name):
            yield words, left.get(name, absent), right.get(name, absent)


def change_in_words(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What changed between two setpoints, for a sentence."""
    parts = (f"{words} from {left} to {right}" for words, left, right in changes(before, after, absent="none"))
    return ", ".join(parts) or "no limit"


def queueing_in_words(tuning: Tuning, *, paused: bool) -> str:
    """What is asked of the queue, as a sentence; empty if nothing is. An edit waits while tuning is `paused`."""
    batching, queue = tuning.batching, tuning.queue
    parts = {
        _strategy_in_words(batching.strategy): batching.strategy,
        f"an admission delay of {batching.admission_delay}": batching.admission_delay,
        "noEvict": batching.no_evict,
        f"at most {batching.max_concurrent_prefills} prompts at once": batching.max_concurrent_prefills,
        f"queue policy {batching.policy}": batching.policy,
        f"at most {queue.max_num_queued_reqs} requests in a pod": queue.max_num_queued_reqs,
        f"at most {queue.max_num_queued_tokens} queued prompt tokens in a pod": queue.max_num_queued_tokens,
    }
    asked = ", ".join(words for words, value in parts.items() if value is not None)
    waits = "; edits wait, tuning is paused" if paused else ""
    return f"spec.tuning asks for {asked}{waits}." if asked else ""


def _strategy_in_words(strategy: Strategy | None) -> str:
    if strategy is None:
        return ""
    of = "" if strategy.batch_size is None else f", batches of at most {strategy.batch_size} requests"
    after = "" if strategy.max_delay is None else f" that wait for at most {strategy.max_delay}"
    return f"strategy {strategy.type}{of}{after}"
