"""How `flyball plan` shows a fleet's plan: text of 80 columns, and JSON with units in the names. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flyball_engine.figures import figure, format_duration, percent
from flyball_operator.cli.plan.limits import MEANING, Limit
from flyball_operator.cli.plan.planned import ServicePlan
from flyball_operator.cli.plan.replicas import Replicas
from flyball_operator.cli.plan.windows import Kind, Share, Window
from flyball_operator.cli.replay_report import number
from flyball_operator.cli.terminal import printable
from flyball_operator.cli.time_range import rfc3339
from flyball_operator.tuning.spec import LatencyObjective

_WIDTH: Final = 80
_LABEL: Final = 12
#: A label, and the text beside it; an empty one goes on with the row above.
Row = tuple[str, str]
_KINDS: Final = {Kind.PLUGIN: "by Flyball's plugin", Kind.VLLM: "by vLLM's own metrics"}


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """All services, and the look-back: Unix seconds, and the seconds of a window.

    `unseen`: names of services that are in the cluster but not in Prometheus.
    """

    services: Sequence[ServicePlan]
    start: float
    end: float
    window: float
    unseen: Sequence[str] = ()


def as_text(fleet: FleetPlan) -> str:
    """A block for each service, and the sum."""
    lines = [
        look_back(fleet),
        *(line for plan in fleet.services for line in ("", heading(plan), *_wrapped(rows(plan)))),
        "",
        *_wrapped(total(fleet)),
    ]
    return "\n".join(lines)


def as_json(fleet: FleetPlan) -> dict[str, Any]:
    """The same, and each window."""
    return {
        "from": rfc3339(fleet.start),
        "to": rfc3339(fleet.end),
        "window_seconds": fleet.window,
        "services": [_service_json(plan) for plan in fleet.services],
        "not_scraped": list(fleet.unseen),
    }


def look_back(fleet: FleetPlan) -> str:
    """What was looked at."""
    count = round((fleet.end - fleet.start) / fleet.window)
    return f"{rfc3339(fleet.start)} to {rfc3339(fleet.end)}, {count} windows of {format_duration(fleet.window)}"


def heading(plan: ServicePlan) -> str:
    """A service, and what its figures come from."""
    return printable(f"{plan.past.name} ({_KINDS[plan.past.kind]})")


def rows(plan: ServicePlan) -> Iterator[Row]:
    """What is said of a service."""
    yield "limits", f"{plan.limit}: {MEANING[plan.limit]}{_more_of_limits(plan)}"
    if plan.busiest is None:
        yield "replicas", f"{plan.past.now} now"
    else:
        yield from _of_load(plan, plan.busiest)
    yield from (("note", note) for note in plan.notes)


def _of_load(plan: ServicePlan, busiest: Window) -> Iterator[Row]:
    refused = f" ({percent(busiest.refused_share)} refused)" if busiest.refused > 0.0 else ""
    mean = sum(window.arrivals for window in plan.past.windows) / len(plan.past.windows)
    peak = f"{figure(busiest.arrivals)}/s in the busiest window{refused}: {figure(busiest.load)}/s per replica"
    yield "load", f"{figure(mean)}/s in the mean, {peak}"
    yield from (("objective", _objective(plan, objective)) for objective in plan.past.objectives)
    yield "replicas", f"{plan.past.now} now; {_advice(plan.replicas)}"
    if (saved := savings(plan)) is not None:
        yield "", saved
    if plan.replicas.why:
        yield "rests on", f"{number(plan.replicas.windows, 'window')}: {plan.replicas.why}"


def _more_of_limits(plan: ServicePlan) -> str:
    if plan.limit in (Limit.IDLE, Limit.NOTHING, Limit.UNKNOWN):
        capacity = None if plan.busiest is None else plan.busiest.capacity
        return f"; {capacity.binding} would be missed first" if capacity is not None and capacity.binding else ""
    others = ", ".join(f"{limit} in {count}" for limit, count in plan.counts.most_common() if limit is not plan.limit)
    of = f" ({plan.counts[plan.limit]} of {plan.counts.total()} windows"
    return f"{of}; {others})" if others else f"{of})"


def _objective(plan: ServicePlan, objective: LatencyObjective) -> str:
    found = plan.attained.get(objective.name)
    head = f"{objective.name} {format_duration(objective.seconds)}"
    if objective.of_class:
        head += f" of class {objective.of_class}"
    of = " of those let in" if any(window.refused > 0.0 for window in plan.past.windows) else ""
    met = "not counted" if found is None else f"{_met(found.share)}{of} met it"
    worst = "" if found is None or found.worst is None else f", {_met(found.worst)} in the worst window"
    text = f"{head}: {met}{worst}; {_target(objective)} asked"
    alone = plan.alone.get(objective.name)
    return f"{text}; alone {_number(alone)}" if alone is not None and alone.advised is not None else text


def _met(share: Share) -> str:
    least, most = percent(share.least, 1), percent(share.most, 1)
    return least if least == most else f"{least.removesuffix(' %')} to {most}"


def _target(objective: LatencyObjective) -> str:
    return f"{figure(100.0 * (1.0 - objective.allowed), 6)} %"


def _advice(found: Replicas) -> str:
    if found.advised is None:
        return "no number can be told"
    return f"{_number(found)} would hold all objectives at the busiest load"


def needed(found: Replicas) -> str:
    """The number with its interval, a dash where there is none."""
    return "–" if found.advised is None else _number(found)


def _number(found: Replicas) -> str:
    low = "?" if found.least is None else found.least
    interval = "" if found.least == found.most else f" ({low} to {found.most})"
    return f"{found.advised}{interval}"


def savings(plan: ServicePlan) -> str | None:
    """Replicas and GPUs that the advice saves or costs, None where there is no number."""
    saved = plan.saved
    if saved is None:
        return None
    if saved == 0:
        return "saves and costs nothing"
    gpus = plan.gpus(abs(saved))
    found, sign = plan.replicas, 1 if saved > 0 else -1
    ends = sorted(sign * (plan.past.now - end) for end in (found.least, found.most) if end is not None)
    interval = f" ({ends[0]} to {ends[-1]})" if len(ends) == 2 and ends[0] < ends[1] else ""
    what = f"{number(abs(saved), 'replica')}{interval}"
    of_gpus = number(gpus, "GPU") if gpus is not None else "GPUs not known: give --gpus-per-replica"
    return f"{'saves' if saved > 0 else 'costs'} {what}, {of_gpus}"


def total(fleet: FleetPlan) -> Iterator[Row]:
    """The sum, and what Prometheus does not see."""
    told = [plan for plan in fleet.services if plan.saved is not None]
    left = len(fleet.services) - len(told)
    of = f"{len(told)} of {len(fleet.services)} services" if left else number(len(told), "service")
    now, advised = sum(plan.past.now for plan in told), sum(plan.replicas.advised or 0 for plan in told)
    text = f"{of}: {number(now, 'replica')} now, {advised} would do"
    gpus = [(plan.gpus(plan.past.now), plan.gpus(plan.replicas.advised)) for plan in told]
    if told and all(before is not None for before, _ in gpus):
        text += f"; {number(sum(before or 0 for before, _ in gpus), 'GPU')} now, {sum(after or 0 for _, after in gpus)}"
    yield "sum", text if told else f"{of} have a number"
    if fleet.unseen:
        yield "not scraped", printable(", ".join(fleet.unseen))


def _wrapped(found: Iterable[Row]) -> Iterator[str]:
    for label, text in found:
        yield from textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=f"  {label:<{_LABEL}}",
            subsequent_indent=" " * (_LABEL + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )


def _service_json(plan: ServicePlan) -> dict[str, Any]:
    past, saved = plan.past, plan.saved
    return {
        "service": past.name,
        "source": past.kind.value,
        "limit": plan.limit.value,
        "limits_in_windows": {limit.value: count for limit, count in plan.counts.most_common()},
        "replicas_now": plan.past.now,
        "gpus_per_replica": past.gpus,
        "peak_requests_per_second": None if plan.busiest is None else _figure(plan.busiest.arrivals),
        "objectives": [_objective_json(plan, objective) for objective in past.objectives],
        "replicas": _replicas_json(plan.replicas),
        "saved_replicas": saved,
        "saved_gpus": None if saved is None or past.gpus is None else saved * past.gpus,
        "model_error_ratio": past.error,
        "windows_left_out": past.left_out,
        "notes": list(plan.notes),
        "windows": [_window_json(window) for window in past.windows],
    }


def _objective_json(plan: ServicePlan, objective: LatencyObjective) -> dict[str, Any]:
    found, alone = plan.attained.get(objective.name), plan.alone.get(objective.name)
    return {
        "name": objective.name,
        "metric": objective.metric.value,
        "threshold_seconds": objective.seconds,
        "class": objective.of_class or None,
        "target_ratio": round(1.0 - objective.allowed, 8),
        "met_ratio": None if found is None else _share_json(found.share),
        "met_ratio_worst_window": None if found is None or found.worst is None else _share_json(found.worst),
        "replicas_alone": None if alone is None else _replicas_json(alone),
    }


def _share_json(share: Share) -> list[float]:
    return [round(share.least, 4), round(share.most, 4)]


def _replicas_json(found: Replicas) -> dict[str, Any]:
    return {
        "advised": found.advised,
        "least": found.least,
        "most": found.most,
        "windows": found.windows,
        "why": found.why,
    }


def _window_json(window: Window) -> dict[str, Any]:
    return {
        "to": rfc3339(window.at),
        "replicas": _figure(window.replicas),
        "requests_per_second": _figure(window.arrivals),
        "refused_per_second": _figure(window.refused),
        "waiting": _figure(window.waiting),
        "running_peak": _figure(window.running_peak),
        "kv_cache_usage": _figure(window.kv),
        "kv_cache_usage_peak": _figure(window.kv_peak),
        "met_ratio": {name: _share_json(share) for name, share in window.met.items()},
        "requests_per_second_per_replica_by_model": None if window.capacity is None else _figure(window.capacity.rate),
    }


def _figure(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
