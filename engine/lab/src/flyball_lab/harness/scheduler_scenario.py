"""What a scheduler scenario is told of, and what is counted in it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from flyball_engine.batching.watchdog import PATIENCE_SECONDS
from flyball_engine.contract import STEP_FIELDS, ModelSpec

#: What the made-up model takes, synchronously: see `CoreLoop._schedule` and `_update`.
FIXED_SECONDS, SECONDS_PER_TOKEN = 0.003, 0.0001
LEAST_CHUNK = 16


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What to play. `blocks` decides whether the KV cache is roomy or tight; `once` are limits applied when 20 run."""

    seed: int
    asynchronous: bool = False
    policy: str = "fcfs"
    blocks: int = 4000
    requests: int = 250
    longest: int = 120
    arrivals: float = 0.5
    retunes: float = 0.3
    aborts: float = 0.01
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    ratchet: bool = False
    patience: float = PATIENCE_SECONDS
    broken_floors: bool = False
    once: dict[str, int] = field(default_factory=dict)
    switches: float = 0.0
    """How often the strategy changes between two steps."""
    extremes: float = 0.0
    """How often any setpoint is drawn that the contract accepts, all of it."""
    batching: dict[str, Any] = field(default_factory=dict)
    """The strategy to begin with."""
    unnamed: float = 0.0
    """Share of requests that name no max_tokens."""
    drafts: bool = False
    """Started with a speculative depth of 4, 2 or 0 by batch size; the made-up model drafts nothing."""
    ordered: float = 0.0
    """Share of the random setpoints under which prompts are served in the on-time order."""
    grammars: float = 0.0
    """Share of requests that wait for a grammar at first."""


@dataclass
class Tally:
    """What happened."""

    steps: int = 0
    retunes: int = 0
    aborted: int = 0
    preemptions: int = 0
    wrong_outputs: int = 0
    starved_decodes: int = 0
    over_cap: int = 0
    over_tokens: int = 0
    over_budget: int = 0
    budgeted: int = 0
    unfinished: int = 0
    most_running: int = 0
    overlapped: int = 0
    switches: int = 0
    ordered: int = 0
    parked: int = 0
    parked_in_vain: int = 0
    in_batches: int = 0
    broken: list[str] = field(default_factory=list)
    sums: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0] * len(STEP_FIELDS)))


def a_model(fixed: float, per_token: float) -> ModelSpec:
    """A trusted model with a cost per step and per token."""
    return ModelSpec(id="made up", trusted=True, t0=fixed, h=0.0, c1=per_token, c2=per_token, beta=0.0, g=0.0, kappa=1)


def token_of(request_id: str, position: int) -> int:
    """The token the made-up model says at a position: lost, doubled or swapped ones show."""
    return 10 + hash((request_id, position)) % 1000
