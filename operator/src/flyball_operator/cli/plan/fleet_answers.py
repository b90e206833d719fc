"""Windows out of Prometheus' answers. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from flyball_operator.cli.plan.windows import Share, Window
from flyball_operator.prometheus.queries import FIELD, JOB
from flyball_operator.prometheus.vector import Vector
from flyball_operator.tuning.spec import LatencyObjective

#: The labels that make up a service, in the order of the grouping.
Group = tuple[str, ...]
#: Figures by their name, and by bucket where they have buckets.
Figures = Mapping[tuple[str, str], float]
_NEEDED = ("replicas", "present", "waiting", "running_peak", "kv", "kv_peak")


def by_group(answer: Vector, labels: tuple[str, ...]) -> dict[Group, Figures]:
    """The figures of each service, as the job has them that sees most pods."""
    found: dict[Group, dict[str, dict[tuple[str, str], float]]] = {}
    for sample in answer:
        named, value = sample.metric, _number(sample.value[1])
        if value is not None:
            jobs = found.setdefault(tuple(named.get(label, "") for label in labels), {})
            jobs.setdefault(named.get(JOB, ""), {})[named.get(FIELD, ""), named.get("le", "")] = value

    def pods(figures: Figures) -> float:
        return figures.get(("replicas", ""), 0.0)

    return {group: max(sorted(jobs.items()), key=lambda job: pods(job[1]))[1] for group, jobs in found.items()}


def ceilings(answer: Vector, labels: tuple[str, ...]) -> dict[Group, dict[str, float]]:
    """What engines were started with, by the name of the knob."""
    found: dict[Group, dict[str, float]] = {}
    for sample in answer:
        named = sample.metric
        if (value := _number(sample.value[1])) is not None:
            found.setdefault(tuple(named.get(label, "") for label in labels), {})[named.get("knob", "")] = value
    return found


def pods_of(figures: Figures | None) -> int:
    """The pods that there are; none where nobody scrapes any."""
    return 0 if figures is None else round(figures.get(("replicas", ""), 0.0))


def window_of(figures: Figures, *, at: float, seconds: float, arrivals: float, refused: float = 0.0) -> Window | None:
    """The window, without how objectives were met; None where it is to be left out.

    That is where a gauge is not known, as it has too few scrapes, and where there was no pod at times. Its pods would
    be those of the other times, its requests those of the whole window.
    """
    known = {name: figures[name, ""] for name in _NEEDED if (name, "") in figures}
    if len(known) < len(_NEEDED) or known["present"] < 1.0:
        return None
    return Window(
        at=at,
        seconds=seconds,
        arrivals=arrivals,
        refused=refused,
        replicas=known["replicas"],
        waiting=known["waiting"],
        running_peak=known["running_peak"],
        kv=known["kv"],
        kv_peak=known["kv_peak"],
    )


def vllm_arrivals(figures: Figures, seconds: float) -> float | None:
    """Requests per second that came: those that ended, and by how many more there are now. None: not known."""
    ended = figures.get(("ended", ""))
    return None if ended is None else max(0.0, ended + figures.get(("grown", ""), 0.0)) / seconds


def share(figures: Figures, objective: LatencyObjective) -> tuple[Share, tuple[float, float]] | None:
    """How an objective was met by vLLM's buckets, and the bounds around its threshold; None where nothing counts it."""
    buckets = sorted(
        (edge, value)
        for (name, le), value in figures.items()
        if name == objective.metric.value and (edge := _edge(le)) is not None
    )
    if not buckets or buckets[-1][0] < math.inf:
        return None
    total = buckets[-1][1]
    low, least = max(((edge, value) for edge, value in buckets if edge <= objective.seconds), default=(0.0, 0.0))
    high, most = min((edge, value) for edge, value in buckets if edge >= objective.seconds)
    if total <= 0.0:
        return Share(1.0, 1.0, 0.0), (low, high)
    return Share(min(1.0, least / total), min(1.0, most / total), total), (low, high)


def _edge(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _number(text: str) -> float | None:
    value = _edge(text)
    return value if value is not None and math.isfinite(value) else None
