"""What to do about the measured points, by kind of work; nothing is said that no point shows. Pure.

The rules:

- **Lengths** (uniform, mixed, another generator's): settings are compared at the largest load that two or more were
  measured at. More than `ALIKE` apart in output tokens/s, the faster is advised; else the one whose first tokens come
  sooner (99th percentile).
- **Real time**: of the points at the knees, the one with the largest power; beyond it answers get slower faster than
  they get more.
- **Bulk**: the largest output throughput of all points; of those within `ALIKE` the one with the fewest clients. Not of
  an open loop: what comes out there is at most what arrives.

Points with a failed request advise nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from flyball_engine.figures import format_duration, percent
from flyball_engine.knobs import Frozen
from flyball_lab.benchmark.knee import knee, power
from flyball_lab.benchmark.measurements import Measurement
from flyball_lab.benchmark.points import PromptMix, Workload, WorkloadName
from flyball_lab.benchmark.series import Series

#: Throughputs this close are the same: what repeated runs of one point differ by.
ALIKE: Final = 0.05


class AdviceTopic(StrEnum):
    """What the advice is for."""

    UNIFORM = "uniform lengths"
    MIXED = "mixed lengths"
    OTHER = "lengths of another load generator"
    REAL_TIME = "real time"
    BULK = "bulk"


_LENGTHS: Final = {WorkloadName.UNIFORM: AdviceTopic.UNIFORM, WorkloadName.MIXED: AdviceTopic.MIXED}


class Advice(Frozen):
    """A short rule, and the measured figures that it rests on."""

    work: AdviceTopic
    workload: str
    text: str
    figures: tuple[str, ...]


def advise(series: Sequence[Series]) -> tuple[Advice, ...]:
    """All that the points allow to say."""
    by_workload: dict[Workload, list[Series]] = defaultdict(list)
    for one in series:
        by_workload[one.workload].append(one)
    return tuple(
        advice
        for workload, group in by_workload.items()
        for advice in (_lengths(workload, group), _real_time(workload, group), _bulk(workload, group))
        if advice is not None
    )


def _lengths(workload: Workload, group: Sequence[Series]) -> Advice | None:
    shared = _largest_shared(group)
    if shared is None:
        return None
    there = [(one.name, point) for one in group if (point := _sound(one.at(shared)))]
    fastest = max(there, key=lambda pair: pair[1].output_tokens_per_second)
    alike = [pair for pair in there if _within(pair[1], fastest[1])]
    rest = [pair for pair in there if pair not in alike]
    name, best = min(alike, key=lambda pair: pair[1].ttft.p99 or 0.0)
    if len(alike) > 1:
        others = ", ".join(other for other, _ in alike if other != name)
        text = f"{name}: as fast as {others} (within {percent(ALIKE)}), with the soonest first tokens of them (p99)"
    else:
        text = f"{name}: the most output tokens/s"
    if rest:
        least, most = (
            best.output_tokens_per_second / extreme(point.output_tokens_per_second for _, point in rest) - 1
            for extreme in (max, min)
        )
        gain = percent(least) if round(least, 2) == round(most, 2) else f"{percent(least)} to {percent(most)}"
        text += f"; {gain} more tokens/s than {', '.join(other for other, _ in rest)}"
    return Advice(
        work=_LENGTHS[workload.name] if isinstance(workload, PromptMix) else AdviceTopic.OTHER,
        workload=workload.describe(),
        text=text,
        figures=tuple(
            f"{other} at {point.point.describe_load()}: {_rate(point)}, first token p99 {_time(point.ttft.p99)}"
            for other, point in there
        ),
    )


def _real_time(workload: Workload, group: Sequence[Series]) -> Advice | None:
    knees = [
        (value, one, point)
        for one in group
        if (found := knee(one.measurements)) is not None
        and (point := _sound(one.at(found.load))) is not None
        and (value := power(point)) is not None
    ]
    if not knees:
        return None
    _, one, point = max(knees, key=lambda found: found[0])
    at = point.point.describe_load()
    limit = f"{point.point.load:g} requests/s" if workload.open_loop else f"{at} requests at once"
    beyond = next((other for other in one.measurements if other.point.load > point.point.load), None)
    latencies = (
        ("first token p99", point.ttft.p99),
        ("per token p99", point.tpot.p99),
        ("end to end p50", point.e2e.p50),
    )
    told = ", ".join(f"{what} {_time(seconds)}" for what, seconds in latencies)
    figures = [f"at {at}: {_rate(point)}, {told}"]
    if beyond is not None and beyond.e2e.p50 and point.e2e.p50:
        figures.append(
            f"at {beyond.point.describe_load()}: end to end p50 {_change(point.e2e.p50, beyond.e2e.p50)}, "
            f"output tokens/s {_change(point.output_tokens_per_second, beyond.output_tokens_per_second)}"
        )
        text = f"{one.name}, at most {limit} on each engine: the knee"
    else:
        text = f"{one.name}: no knee up to {limit}, the most that was measured"
    return Advice(work=AdviceTopic.REAL_TIME, workload=workload.describe(), text=text, figures=tuple(figures))


def _bulk(workload: Workload, group: Sequence[Series]) -> Advice | None:
    points = [(one.name, point) for one in group for point in one.measurements if _sound(point)]
    if not points:
        return None
    if workload.open_loop:
        return Advice(
            work=AdviceTopic.BULK,
            workload=workload.describe(),
            text="no advice from an open loop, where at most what arrives comes out; measure with --concurrency",
            figures=(),
        )
    _, fastest = max(points, key=lambda pair: pair[1].output_tokens_per_second)
    alike = [pair for pair in points if _within(pair[1], fastest)]
    name, best = min(alike, key=lambda pair: pair[1].point.load)
    return Advice(
        work=AdviceTopic.BULK,
        workload=workload.describe(),
        text=f"{name} with {best.point.load:g} clients: no point gives over {percent(ALIKE)} more output tokens/s",
        figures=(
            f"{_rate(best)}, {best.requests_per_second:.2f} requests/s",
            f"the most of all: {_rate(fastest)} at {fastest.point.describe_load()}",
        ),
    )


def _largest_shared(group: Sequence[Series]) -> float | None:
    counts: dict[float, int] = defaultdict(int)
    for one in group:
        for point in one.measurements:
            counts[point.point.load] += bool(_sound(point))
    return max((load for load, count in counts.items() if count > 1), default=None)


def _sound(point: Measurement | None) -> Measurement | None:
    return point if point is not None and not point.failed else None


def _within(point: Measurement, fastest: Measurement) -> bool:
    return point.output_tokens_per_second >= (1 - ALIKE) * fastest.output_tokens_per_second


def _rate(point: Measurement) -> str:
    return f"{point.output_tokens_per_second:.0f} output tokens/s"


def _change(before: float, after: float) -> str:
    share = after / before - 1
    return f"{'+' if share >= 0 else ''}{percent(share)}"


def _time(seconds: float | None) -> str:
    return "absent" if seconds is None else format_duration(seconds, digits=3)


def lines(advice: Sequence[Advice]) -> Iterator[str]:
    """As text: a line for the rule, one for each figure."""
    for one in advice:
        yield f"{one.work.value} ({one.workload}): {one.text}"
        yield from (f"    {figure}" for figure in one.figures)
