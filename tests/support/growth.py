"""Whether what processes hold grows with their age, over several lives of one program that is killed now and then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One look: the process that was looked at, its age then in seconds, and the figure."""

    life: str
    age: float
    figure: float


def slope(samples: Sequence[Sample], *, settled: float) -> float | None:
    """Growth per hour, by least squares with one slope for all lives and an offset for each.

    What is younger than `settled` seconds fills its caches and is left out. None where nothing is old enough.
    """
    lives: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.age >= settled:
            lives[sample.life].append(sample)
    above = below = 0.0
    for life in lives.values():
        age, figure = (sum(values) / len(life) for values in ([s.age for s in life], [s.figure for s in life]))
        above += sum((sample.age - age) * (sample.figure - figure) for sample in life)
        below += sum((sample.age - age) ** 2 for sample in life)
    return 3600 * above / below if below else None
