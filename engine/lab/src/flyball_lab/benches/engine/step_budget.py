"""How long mixed steps take, over the budget they were to take: with the reflex, and under fixed token limits.

The plant has what the model lacks: KV re-read by every chunk, 4 ms for any step with prefill, scatter of 5 %, stalls.
"""

from __future__ import annotations

from collections.abc import Iterator

from flyball_lab.benches.law.plays import Policy, Scene, play
from flyball_lab.quantiles import quantile
from flyball_lab.simulator.lengths import SHAPES
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.virtual import slow_down
from flyball_lab.simulator.workload import Phase

SECONDS = 120.0
SEEDS = (1, 2, 3)
#: Preset, budget in seconds, requests per second of conversations and of 25k-token prompts.
LOADS = (("h100-8b", 0.030, 12.0, 0.3), ("a100-8b", 0.050, 4.0, 0.1), ("b200-8b", 0.020, 20.0, 0.5))


def scenes() -> Iterator[tuple[Scene, float]]:
    """Each scene with its budget."""
    for name, budget, chats, long in LOADS:
        conversation = Phase(seconds=SECONDS, rate=chats, shape=SHAPES["conversation"])
        fewer = Phase(seconds=SECONDS, rate=0.7 * chats, shape=SHAPES["conversation"])
        retrieval = Phase(seconds=SECONDS, rate=long, shape=SHAPES["retrieval"])
        for title, phases in (("conversations", [conversation]), ("and 25k prompts", [[fewer, retrieval]])):
            scene = Scene(
                name=f"{name}, {title}", preset=PRESETS[name], phases=phases, mean_context=1200, seconds=SECONDS
            )
            yield scene, budget


def measure() -> dict[str, dict[str, float]]:
    """Seconds of mixed steps over the budget, at the 95th and 99th percentile, the worst of the seeds."""
    figures: dict[str, dict[str, float]] = {}
    for scene, budget in scenes():
        policies = {"reflex": Policy(budget=budget)} | {f"{n} tokens": Policy(tokens=n) for n in (512, 2048, 8192)}
        for title, policy in policies.items():
            figures[f"{scene.name}: {title}"] = _worst(scene, policy, budget)
        slower = [slow_down(SECONDS / 2, 1.4)]
        for title, biased in (("with the bias", True), ("without", False)):
            steps = [play(scene, Policy(budget=budget), seed=seed, events=slower, biased=biased) for seed in SEEDS]
            second_half = [quantile(one.mixed[len(one.mixed) // 2 :], 0.95) / budget for one in steps]
            figures[f"{scene.name}: 40 % slower half-way, {title}"] = {"p95": max(second_half)}
    return figures


def _worst(scene: Scene, policy: Policy, budget: float) -> dict[str, float]:
    played = [play(scene, policy, seed=seed).mixed for seed in SEEDS]
    return {
        f"p{round(100 * share)}": max(quantile(mixed, share) for mixed in played) / budget for share in (0.95, 0.99)
    }
