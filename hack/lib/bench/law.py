"""The law against limits that never move, and against other rules: requests per second that keep every objective.

The oracle of a scenario is the best of a grid of fixed limits, found in hindsight by trying all of it. Beside it stand
what vLLM starts with and a small C, which a person would set by hand, and the rivals (`rivals`). Every policy meets the
same requests. The plant costs what the law's model lacks (presets). Either nobody stands before the queue, or everybody
has the same gate; that of the law predicts by what it has learnt, that of all others by the plant's own coefficients.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from bench.policies import BY_HAND, COARSE, Outcome, Policy, play, policies
from bench.scenarios import SCENARIOS, Case

SEEDS: Final = (1, 2, 3)


@dataclass(frozen=True)
class _Job:
    scenario: Case
    policy: Policy
    seed: int
    gate: bool


def compare(*, gate: bool, quick: bool) -> dict[str, dict[str, float]]:
    """By scenario: goodput of the law and of limits by hand over the oracle's, means of the seeds.

    `quick`: one seed, and an oracle of six limits instead of 42.
    """
    tried, seeds = (policies(*COARSE, ticks=(5.0,)), SEEDS[:1]) if quick else (policies(), SEEDS)
    jobs = [_Job(scenario, policy, seed, gate) for scenario in SCENARIOS for policy in tried for seed in seeds]
    figures: dict[str, dict[str, float]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        outcomes = dict(zip(jobs, _told(pool.map(_play, jobs, chunksize=4), len(jobs)), strict=True))
    for scenario in SCENARIOS:
        by_policy = {policy: [outcomes[_Job(scenario, policy, seed, gate)] for seed in seeds] for policy in tried}
        figures[scenario.name] = _figures(by_policy)
    return figures | _summary(figures)


def _play(job: _Job) -> Outcome:
    return play(job.scenario, job.policy, job.seed, gate=job.gate)


def _told(outcomes: Iterable[Outcome], total: int) -> Iterable[Outcome]:
    for number, outcome in enumerate(outcomes, start=1):
        if number % 100 == 0:
            print(f"  {number} of {total} runs", file=sys.stderr, flush=True)
        yield outcome


def _figures(by_policy: Mapping[Policy, Sequence[Outcome]]) -> dict[str, float]:
    mean = {policy: statistics.fmean(one.goodput for one in found) for policy, found in by_policy.items()}
    oracle = max((policy for policy in mean if policy.in_grid), key=mean.__getitem__)
    figures = {f"oracle {oracle.name}, goodput": mean[oracle]}
    for policy, goodput in mean.items():
        if policy.tick is not None:
            figures[f"{policy.name}, over the oracle"] = goodput / mean[oracle]
            figures[f"{policy.name}, kept of those let in"] = min(one.kept for one in by_policy[policy])
            figures[f"{policy.name}, changes a minute"] = max(one.changes for one in by_policy[policy])
        elif not policy.in_grid or policy.limits in BY_HAND:
            figures[f"{policy.name} over the oracle"] = goodput / mean[oracle]
    return figures


def _summary(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Worst scenario and geometric mean."""
    kinds = [key for key in next(iter(figures.values())) if key.endswith("over the oracle")]
    found = {kind: [values[kind] for values in figures.values()] for kind in kinds}
    return {
        "worst": {kind: min(values) for kind, values in found.items()},
        "geometric mean": {kind: statistics.geometric_mean(values) for kind, values in found.items()},
    }
