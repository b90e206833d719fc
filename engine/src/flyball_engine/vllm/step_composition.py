"""What a step of vLLM's processes, as it is counted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flyball_engine.batching.step_statistics import Occupancy, Step


def served_prompts(scheduled: Mapping[str, int], prompts: Sequence[Any]) -> list[tuple[Any, int]]:
    """Those of these requests that a step has tokens for, and how many."""
    return [(request, tokens) for request in prompts if (tokens := scheduled.get(request.request_id, 0))]


def composition(output: Any, served: Sequence[tuple[Any, int]], *, kv_tokens: int, occupancy: Occupancy) -> Step:
    """What the step processes, of which prompts are `served`. Who joins in a step does so with its prompt.

    `kv_tokens`: those that all of its requests have in the KV cache.
    """
    prefill_tokens, attention = 0, 0.0
    for request, processed in served:
        context = request.num_computed_tokens
        prefill_tokens += processed
        attention += processed * (context - processed / 2)
        kv_tokens -= context
    return Step(
        output.total_num_scheduled_tokens,
        prefill_tokens,
        occupancy.requests - len(served),
        kv_tokens,
        attention,
        occupancy,
    )
