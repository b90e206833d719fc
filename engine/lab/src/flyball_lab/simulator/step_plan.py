"""What a simulated step processes."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_engine.batching.step_statistics import Step
from flyball_lab.simulator.requests import Request


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a step processes: `chunks` of prompts beside all decodes. `reread_tokens`: contexts before the chunks.

    `preempted` lost their blocks for it, `admitted` got theirs.
    """

    step: Step
    chunks: dict[Request, int]
    reread_tokens: int
    preempted: tuple[Request, ...] = ()
    admitted: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step on its way: it takes so many `seconds`, and ends at `end`."""

    plan: StepPlan
    seconds: float
    end: float
