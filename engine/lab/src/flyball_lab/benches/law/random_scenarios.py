"""Scenarios made from a seed, so that no constant of the law is judged by the loads it was chosen with alone."""

from __future__ import annotations

from random import Random
from typing import Final

from flyball_lab.benches.law.scenarios import Scenario
from flyball_lab.benches.law.traffic import capacity
from flyball_lab.benches.options import OBJECTIVES
from flyball_lab.simulator.lengths import SHAPES
from flyball_lab.simulator.workload import ArrivalPhase, workload

#: Of prompts this long a first token may take so many times the preset's objective.
LONG: Final = {"long-chat": 4.0, "long-prompt": 3.0, "retrieval": 8.0}
KINDS: Final = ("conversation", "conversation", "code", "short", *LONG)
#: Minutes of each, and the loads in them as shares of what the engine is reckoned to carry.
PHASES: Final = (2, 4)
LOADS: Final = (0.4, 1.8)
#: Objectives are so many times those of the preset.
STRICT: Final = (0.7, 2.0)
#: Seconds of requests, one in each, whose mean lengths tell what is carried.
SAMPLE: Final = 600.0


def random_scenarios(count: int, *, seed: int = 1) -> tuple[Scenario, ...]:
    """So many, the same for the same seed."""
    random = Random(seed)
    return tuple(_scenario(random, f"random {number + 1} of seed {seed}") for number in range(count))


def _scenario(random: Random, name: str) -> Scenario:
    rate = 0.0
    while not rate:  # long prompts are beyond some presets
        preset, kind = random.choice(sorted(OBJECTIVES)), random.choice(KINDS)
        rate = capacity(workload([[ArrivalPhase(seconds=SAMPLE, rate=1.0, shape=SHAPES[kind])]], Random(1)), preset)
    ttft, tpot = (objective * random.uniform(*STRICT) for objective in OBJECTIVES[preset])
    pods = random.choice((1, 1, 1, 4))
    return Scenario(
        name=name,
        preset=preset,
        ttft=ttft * LONG.get(kind, 1.0),
        tpot=tpot,
        phases=tuple((pods * rate * random.uniform(*LOADS), kind) for _ in range(random.randint(*PHASES))),
        variation=random.choice((1.0, 1.0, 3.0)),
        burst=random.choice((1, 1, 1, 6)),
        pods=pods,
        slow_pod=random.choice((1.0, 1.4)) if pods > 1 else 1.0,
        slow=random.choice((1.0, 1.0, 1.0, 1.4)) if pods == 1 else 1.0,
    )
