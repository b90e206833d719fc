"""How long mixed steps take, over the budget they were to take: with the reflex, and under fixed token limits.

The plant has what the model lacks: KV re-read by every chunk, 4 ms for any step with prefill, scatter of 5 %, stalls.
And how many short answers keep their time per token beside a neighbour that slows the engine down now and then.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from flyball_lab.benches.law.plays import STEP_MARGIN, FixedSetpoint, LoadCase, play, tokens_in_time
from flyball_lab.quantiles import quantile
from flyball_lab.simulator.lengths import SHAPES, Lognormal, Shape
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.requests import Fate
from flyball_lab.simulator.virtual import TimedAct, slow_down
from flyball_lab.simulator.workload import ArrivalPhase

SECONDS = 120.0
SEEDS = (1, 2, 3)
#: Preset, budget in seconds, requests per second of conversations and of 25k-token prompts.
LOADS = (("h100-8b", 0.030, 12.0, 0.3), ("a100-8b", 0.050, 4.0, 0.1), ("b200-8b", 0.020, 20.0, 0.5))
#: Steps that a neighbour stays, or stays away, in the mean: less than an answer of `DOCUMENTS` takes, and more.
NEIGHBOUR_STEPS: Final = (10, 20, 70)
#: How many times as long steps take while it is there.
NEIGHBOUR_FACTOR: Final = 1.4
#: Documents with short answers, more of them than the engine carries: each step is full.
DOCUMENTS: Final = Shape(prompt=Lognormal(median=2000, sigma=0.3), output=Lognormal(median=16, sigma=0.3))
DOCUMENTS_RATE: Final = 30.0  # [requests/s]
DOCUMENTS_BUDGET: Final = 0.030  # [s]
#: Seconds to the first token by which they are refused.
DOCUMENTS_DEADLINE: Final = 4.0


def cases() -> Iterator[tuple[LoadCase, float]]:
    """Each case with its budget."""
    for name, budget, chats, long in LOADS:
        conversation = ArrivalPhase(seconds=SECONDS, rate=chats, shape=SHAPES["conversation"])
        fewer = ArrivalPhase(seconds=SECONDS, rate=0.7 * chats, shape=SHAPES["conversation"])
        retrieval = ArrivalPhase(seconds=SECONDS, rate=long, shape=SHAPES["retrieval"])
        for title, phases in (("conversations", [conversation]), ("and 25k prompts", [[fewer, retrieval]])):
            case = LoadCase(
                name=f"{name}, {title}", preset=PRESETS[name], phases=phases, mean_context=1200, seconds=SECONDS
            )
            yield case, budget


def measure() -> dict[str, dict[str, float]]:
    """Seconds of mixed steps over the budget, at the 95th and 99th percentile, the worst of the seeds."""
    figures: dict[str, dict[str, float]] = {}
    for case, budget in cases():
        setpoints = {"reflex": FixedSetpoint(budget=budget)} | {
            f"{n} tokens": FixedSetpoint(tokens=n) for n in (512, 2048, 8192)
        }
        for title, fixed in setpoints.items():
            figures[f"{case.name}: {title}"] = _worst(case, fixed, budget)
        slower = [slow_down(SECONDS / 2, 1.4)]
        for title, biased in (("with the bias", True), ("without", False)):
            steps = [
                play(case, FixedSetpoint(budget=budget), seed=seed, events=slower, biased=biased) for seed in SEEDS
            ]
            second_half = [quantile(one.mixed[len(one.mixed) // 2 :], 0.95) / budget for one in steps]
            figures[f"{case.name}: 40 % slower half-way, {title}"] = {"p95": max(second_half)}
    for stay in NEIGHBOUR_STEPS:
        for title, biased in (("with the bias", True), ("without", False)):
            shares = [tokens_kept(stay, seed=seed, biased=biased) for seed in SEEDS]
            figures[f"short answers, a neighbour for {stay} steps, {title}"] = {"tokens kept": min(shares)}
    return figures


def tokens_kept(steps: int, *, seed: int, seconds: float = SECONDS / 2, biased: bool = True) -> float:
    """Share of the answers of `DOCUMENTS` that keep their time per token beside a neighbour; the budget is its margin.

    The neighbour comes and goes by chance, after so many `steps` in the mean.
    """
    case = LoadCase(
        name="documents",
        preset=PRESETS["h100-8b"],
        phases=[ArrivalPhase(seconds=seconds, rate=DOCUMENTS_RATE, shape=DOCUMENTS)],
        mean_context=2000,
        seconds=seconds,
    )
    fixed = FixedSetpoint(budget=DOCUMENTS_BUDGET, deadline=DOCUMENTS_DEADLINE)
    comes_and_goes = list(_neighbour(steps * DOCUMENTS_BUDGET, until=2 * seconds, random=Random(seed)))
    played = play(case, fixed, seed=seed, events=comes_and_goes, biased=biased)
    answered = [request for request in played.requests if request.fate is Fate.FINISHED]
    return sum(tokens_in_time(request, DOCUMENTS_BUDGET / STEP_MARGIN) for request in answered) / len(answered)


def _neighbour(seconds: float, *, until: float, random: Random) -> Iterator[TimedAct]:
    """It comes and goes, after so many seconds in the mean."""
    at, there = 0.0, False
    while at < until:
        at, there = at + random.expovariate(1.0 / seconds), not there
        yield slow_down(at, NEIGHBOUR_FACTOR if there else 1.0)


def _worst(case: LoadCase, fixed: FixedSetpoint, budget: float) -> dict[str, float]:
    played = [play(case, fixed, seed=seed).mixed for seed in SEEDS]
    return {
        f"p{round(100 * share)}": max(quantile(mixed, share) for mixed in played) / budget for share in (0.95, 0.99)
    }
