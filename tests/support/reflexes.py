"""Step budgets, and vLLM's order of serving: what a step with some room becomes."""

from __future__ import annotations

from dataclasses import asdict

from flyball_engine.batching.step_statistics import Step
from flyball_engine.batching.step_token_budgeter import Queue
from flyball_engine.contract import ModelSpec, StepBudget
from flyball_engine.model import StepModel


def a_budget(seconds: float, model: StepModel, *, trusted: bool = True, least_prefill_chunk: int = 16) -> StepBudget:
    """A budget with this model."""
    spec = ModelSpec(id="test", trusted=trusted, **asdict(model))
    return StepBudget(seconds=seconds, model=spec, least_prefill_chunk=least_prefill_chunk)


def served(queue: Queue, tokens: int) -> tuple[Step, list[int], int]:
    """The step vLLM makes of it, the tokens of each prompt, and the decodes that got theirs.

    What cannot be split is a state-space block here: all parts of a prompt but its last are whole blocks.
    """
    fed = min(queue.decodes, tokens // queue.tokens_per_decode)
    left, chunks, attention = tokens - fed * queue.tokens_per_decode, list[int](), 0.0
    for prompt in (*queue.prefilling, *queue.waiting):
        chunk = min(left, prompt.remaining)
        if queue.indivisible and chunk < prompt.remaining:
            chunk -= chunk % queue.indivisible
        chunks.append(chunk)
        attention += chunk * (prompt.context + chunk / 2)
        left -= chunk
    step = Step(
        tokens=tokens - left,
        prefill_tokens=sum(chunks),
        decodes=fed,
        kv_tokens=queue.kv_tokens,
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
        kv_tokens=step.kv_tokens,
    )
