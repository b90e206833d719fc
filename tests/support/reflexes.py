"""Step budgets, and vLLM's order of serving: what a step with some room becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from flyball_engine.batching.reflex import Prompt, Queue, Room
from flyball_engine.batching.step_statistics import Step
from flyball_engine.contract import ModelSpec, StepBudget
from flyball_engine.model import StepModel


def a_budget(seconds: float, model: StepModel, *, trusted: bool = True, least_prefill_chunk: int = 16) -> StepBudget:
    """A budget with this model."""
    spec = ModelSpec(id="test", trusted=trusted, **asdict(model))
    return StepBudget(seconds=seconds, model=spec, least_prefill_chunk=least_prefill_chunk)


def served(queue: Queue, room: Room, *, decodes_first: int | None = None) -> tuple[Step, list[int], int]:
    """The step vLLM makes of it, the tokens of each prompt, and the decodes that got theirs.

    `decodes_first` of the decodes stand before the prompts that have begun; without it all do.
    """
    first = queue.decodes if decodes_first is None else decodes_first
    cap = room.threshold or room.tokens
    left, fed, chunks, attention = room.tokens, 0, list[int](), 0.0

    def feed(decodes: int) -> None:
        nonlocal left, fed
        for _ in range(decodes):
            if left >= queue.tokens_per_decode:
                left -= queue.tokens_per_decode
                fed += 1

    def serve(prompts: Sequence[Prompt]) -> None:
        nonlocal left, attention
        for prompt in prompts:
            chunk = min(left, cap, prompt.remaining)
            chunks.append(chunk)
            attention += chunk * (prompt.context + chunk / 2)
            left -= chunk

    feed(first)
    serve(queue.prefilling)
    feed(queue.decodes - first)
    serve(queue.waiting)
    step = Step(
        tokens=room.tokens - left,
        prefill_tokens=sum(chunks),
        decodes=fed,
        kv_tokens=0,
        prefill_attention=attention,
    )
    return step, chunks, fed


def seconds(model: StepModel, step: Step) -> float:
    """What the model says the step takes."""
    return model.step_seconds(
        tokens=step.tokens,
        decodes=step.decodes,
        prefills=step.prefill_tokens > 0,
        attention=step.prefill_attention,
    )
