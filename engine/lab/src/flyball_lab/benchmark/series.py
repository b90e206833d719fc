"""Measurements that differ in load alone (clients, or request rate), in order: a line of the plot. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from flyball_lab.benchmark.measurements import Measurement
from flyball_lab.benchmark.points import EngineSetting, Workload


@dataclass(frozen=True)
class Series:
    """One setting of one endpoint under one workload, by rising load.

    `name` is for people, and unique in its workload.
    """

    name: str
    label: str
    setting: EngineSetting
    workload: Workload
    measurements: tuple[Measurement, ...]

    def at(self, load: float) -> Measurement | None:
        """The measurement with so many clients, or at this rate."""
        return next((one for one in self.measurements if one.point.load == load), None)


Key = tuple[Workload, str, EngineSetting, str, str]


def series_of(measurements: Iterable[Measurement]) -> tuple[Series, ...]:
    """All series, in the order they were first measured. Of a point measured twice the later one counts."""
    latest: dict[tuple[Key, float], Measurement] = {}
    for one in sorted(measurements, key=lambda measured: measured.measured_at):
        latest[_key(one), one.point.load] = one
    groups: dict[Key, list[Measurement]] = defaultdict(list)
    for (key, _), one in latest.items():
        groups[key].append(one)
    plain = Counter((key[0], _name(key)) for key in groups)
    return tuple(
        Series(
            # Two endpoints without labels would look like one.
            name=_name(key) if plain[key[0], _name(key)] == 1 else f"{_name(key)} ({key[4]} at {key[3]})",
            label=key[1],
            setting=key[2],
            workload=key[0],
            measurements=tuple(sorted(group, key=lambda one: one.point.load)),
        )
        for key, group in groups.items()
    )


def _key(one: Measurement) -> Key:
    point = one.point
    return point.workload, point.label, point.setting, point.endpoint, point.model


def _name(key: Key) -> str:
    return f"{key[2].describe()} · {key[1]}" if key[1] else key[2].describe()
