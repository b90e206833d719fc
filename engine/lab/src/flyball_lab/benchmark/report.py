"""Everything that a run, or several, came to: the document that the JSON holds and table and page show. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from flyball_lab.benchmark.advice import Advice, advise
from flyball_lab.benchmark.knee import RULE, Knee, knee
from flyball_lab.benchmark.measurements import Measurement
from flyball_lab.benchmark.points import EngineSetting, Workload
from flyball_lab.benchmark.series import series_of

#: Version of the document.
VERSION: Final = 2


class Line(BaseModel):
    """A series, its knee (absent where fewer than two points have latencies) and its points by load.

    `gain`: output tokens/s of each point over those of the series' point with one client; empty without that point.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    label: str
    setting: EngineSetting
    workload: Workload
    knee: Knee | None
    gain: dict[int, float]
    measurements: tuple[Measurement, ...]


class Report(BaseModel):
    """The document. `knee_rule` says how knees were found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[2] = VERSION
    generated_at: str
    knee_rule: str = RULE
    series: tuple[Line, ...]
    advice: tuple[Advice, ...]

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Each once, in order."""
        return tuple(dict.fromkeys(line.workload for line in self.series))

    def of(self, workload: Workload) -> tuple[Line, ...]:
        """The series of a workload."""
        return tuple(line for line in self.series if line.workload == workload)


def report(measurements: Iterable[Measurement], *, generated_at: str) -> Report:
    """The document of these measurements."""
    series = series_of(measurements)
    return Report(
        generated_at=generated_at,
        series=tuple(
            Line(
                name=one.name,
                label=one.label,
                setting=one.setting,
                workload=one.workload,
                knee=knee(one.measurements),
                gain=_gain(one.measurements),
                measurements=one.measurements,
            )
            for one in series
        ),
        advice=advise(series),
    )


def _gain(measurements: tuple[Measurement, ...]) -> dict[int, float]:
    alone = next((one for one in measurements if one.point.concurrency == 1), None)
    if alone is None or not alone.output_tokens_per_second:
        return {}
    return {
        one.point.concurrency: one.output_tokens_per_second / alone.output_tokens_per_second
        for one in measurements
        if one.point.concurrency is not None
    }
