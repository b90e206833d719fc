"""How long mixed steps take, over the budget they were to take: with the reflex, and under fixed token limits.

The plant has what the model lacks: KV re-read by every chunk, 4 ms for any step with prefill, scatter of 5 %, stalls.
"""

from __future__ import annotations

from collections.abc import Iterator

from flyball_lab.benches.law.plays import FixedSetpoint, LoadCase, play
from flyball_lab.quantiles import quantile
from flyball_lab.simulator.lengths import SHAPES
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.virtual import slow_down
from flyball_lab.simulator.workload import ArrivalPhase

SECONDS = 120.0
SEEDS = (1, 2, 3)
#: Preset, budget in seconds, requests per second of conversations and of 25k-token prompts.
LOADS = (("h100-8b", 0.030, 12.0, 0.3), ("a100-8b", 0.050, 4.0, 0.1), ("b200-8b", 0.020, 20.0, 0.5))


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
    return figures


def _worst(case: LoadCase, fixed: FixedSetpoint, budget: float) -> dict[str, float]:
    played = [play(case, fixed, seed=seed).mixed for seed in SEEDS]
    return {
        f"p{round(100 * share)}": max(quantile(mixed, share) for mixed in played) / budget for share in (0.95, 0.99)
    }
