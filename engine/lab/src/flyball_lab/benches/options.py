"""What benchmarks are told. Needs nothing that a Python with vLLM alone lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Objectives of recorded traffic, by the presets it can be played on: seconds to the first token, and per output token.
OBJECTIVES: Final[Mapping[str, tuple[float, float]]] = {
    "h100-8b": (0.5, 0.030),
    "a100-8b": (1.0, 0.050),
    "b200-8b": (0.5, 0.020),
}
PRESET: Final = "h100-8b"
#: Of the law's runs: of arrivals and lengths, and of what scatters in the engine.
SEEDS: Final = (1, 2, 3)
#: Share of what it carries that an engine is used to in the mean, unless told otherwise: a trace's peaks are beyond it.
SHARE: Final = 0.8


@dataclass(frozen=True, kw_only=True)
class Options:
    """`quick`: one seed and a coarse grid. `seeds`: so many, absent all. `out`: where results are kept, absent nowhere.

    `trace`: a recorded load, of which `minutes` are played on `preset`, `rate` times as fast as they were recorded;
    absent, so fast that the engine is used to `SHARE` of what it carries.

    `scenarios`: the only ones of the law's comparisons, by name; absent all.

    `ablate`: the constants of the law that are moved; absent, or "all", all.

    `services`: how many there are, one number after the other. `ticks`: over so many the tuner's tick is measured.
    """

    quick: bool = False
    seeds: int | None = None
    out: Path | None = None
    trace: Path | None = None
    rate: float | None = None
    minutes: float | None = None
    preset: str = PRESET
    scenarios: tuple[str, ...] = ()
    ablate: tuple[str, ...] = ()
    services: tuple[int, ...] = (1, 100, 1000)
    ticks: int = 20

    @property
    def played(self) -> Sequence[int]:
        """The seeds themselves; one is enough for the impatient."""
        return SEEDS[: self.seeds or (1 if self.quick else len(SEEDS))]
