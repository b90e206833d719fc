"""What a step of vLLM's processes, as it is counted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flyball_engine.batching.step_statistics import Occupancy, Step


def served_prompts(scheduled: Mapping[str, int], prompts: Sequence[Any]) -> list[tuple[Any, int]]:
    """Those of these requests that a step has tokens for, and how many."""
    return [(request, tokens) for request in prompts if (tokens := scheduled.get(request.request_id, 0))]


class FoundTokens:
    """What the prefix cache had of each running request's prompt when it joined last.

    Not what vLLM says of a request: that is of its first admission, and another after a preemption.
    """

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def follow(self, output: Any, joined: Iterable[Any]) -> None:
        """A step was planned in which these joined; who ended before it is gone."""
        for name in output.finished_req_ids:
            self._found.pop(name, None)
        for request in joined:
            name = request.request_id
            self._found[name] = request.num_computed_tokens - output.num_scheduled_tokens.get(name, 0)

    def __len__(self) -> int:
        """Requests of which it is remembered."""
        return len(self._found)

    def of(self, request: Any) -> int:
        """Those of a request; 0 of one that is not known."""
        return self._found.get(request.request_id, 0)


def composition(
    output: Any, served: Sequence[tuple[Any, int]], found: FoundTokens, *, kv_tokens: int, occupancy: Occupancy
) -> Step:
    """What the step processes, of which prompts are `served`. Who joins in a step does so with its prompt.

    `kv_tokens`: those that all of its requests have in the KV cache.
    """
    prefill_tokens, attention, squares = 0, 0.0, 0
    for request, processed in served:
        context = request.num_computed_tokens
        prefill_tokens += processed
        # A connector that failed to load a part sets a request back behind what was found.
        begun = max(0, context - processed - found.of(request))
        squares += processed * (2 * begun + processed)
        attention += processed * (context - processed / 2)
        kv_tokens -= context
    return Step(
        output.total_num_scheduled_tokens,
        prefill_tokens,
        occupancy.requests - len(served),
        kv_tokens,
        attention,
        occupancy,
        squares,
    )
