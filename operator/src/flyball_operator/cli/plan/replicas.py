"""How many replicas would hold objectives at the busiest window's load, and how sure that is. Pure.

With a step-time model each window says what a replica carries of its mix. Without one only what was seen counts: the
highest load per replica at which objectives were held is proven, the lowest at which they were missed is too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.figures import format_duration, percent
from flyball_operator.cli.plan.windows import LEAST_REQUESTS, Capacity, Held, ServicePast, Window
from flyball_operator.cli.replay_report import number
from flyball_operator.tuning.spec import LatencyObjective

#: Windows from which on a number is given.
LEAST_WINDOWS: Final = 3
#: Share of the windows, at either end, that the interval leaves out.
_LEFT_OUT: Final = 0.1
#: A load that is just carried needs no replica more: figures are quotients.
_ROUNDING: Final = 1e-6
#: A cache that is used less says nothing of what fills it.
_LEAST_USAGE: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """So many replicas, and the interval that they may be in; `least` is None where nothing bounds it.

    `advised` is None where no number can be told. `why` says what it rests on, or why there is none.
    """

    advised: int | None = None
    least: int | None = None
    most: int | None = None
    windows: int = 0
    why: str = ""


def replicas(past: ServicePast, objectives: tuple[LatencyObjective, ...]) -> Replicas:
    """Those that hold these objectives of the service's."""
    if not objectives:
        return Replicas(why="no objectives are known: give --ttft, --tpot, --itl or --e2e")
    busy = [window for window in past.windows if window.requests >= LEAST_REQUESTS]
    if len(busy) < LEAST_WINDOWS:
        return _too_few(len(busy))
    seen = _by_windows(busy, objectives)
    return seen if past.error is None else _best(_by_model(past, busy, objectives), seen)


def _best(model: Replicas, seen: Replicas) -> Replicas:
    """What the model says, unless fewer were seen to do: it keeps room for waits that did not come."""
    if seen.advised is None or (model.advised is not None and model.advised <= seen.advised):
        return model
    if model.advised is None or model.least is None:
        return replace(seen, why=f"{seen.why}. The step-time model gives no number: {model.why}")
    why = f"{seen.why}. {model.advised} {model.why}"
    return replace(model, advised=seen.advised, least=min(model.least, seen.advised), windows=seen.windows, why=why)


def _too_few(windows: int) -> Replicas:
    return Replicas(
        windows=windows,
        why=f"too little data: {number(windows, 'window')} with {LEAST_REQUESTS} requests or more, "
        f"needed are {LEAST_WINDOWS}. Look back further with --since",
    )


def _by_model(past: ServicePast, busy: list[Window], objectives: tuple[LatencyObjective, ...]) -> Replicas:
    error = past.error or 0.0
    found = [window.capacity for window in busy if window.capacity is not None]
    pairs = [(capacity.asked, rate) for capacity in found if (rate := _rate(capacity, objectives, past)) > 0.0]
    if found and len(pairs) <= len(found) / 2:
        return Replicas(windows=len(found), why=_infeasible(found, objectives))
    if len(pairs) < LEAST_WINDOWS:
        return _too_few(len(pairs))
    out = len(found) - len(pairs)
    peak, (slow, fast) = max(asked for asked, _ in pairs), _quantiles(sorted(rate for _, rate in pairs))
    advised = _whole(max(asked / rate for asked, rate in pairs))
    return Replicas(
        advised=advised,
        least=min(advised, _whole(peak / (fast * (1.0 + error)))),
        most=max(advised, _whole(peak / (slow * max(0.1, 1.0 - error)))),
        windows=len(pairs),
        why=f"by the step-time model, whose error is {percent(error)}"
        + (f"; without {number(out, 'window')} in which even an idle engine misses them" if out else ""),
    )


def _rate(capacity: Capacity, objectives: tuple[LatencyObjective, ...], past: ServicePast) -> float:
    if len(objectives) == len(past.objectives):
        return capacity.rate
    return min(capacity.alone.get(one.name, 0.0) for one in objectives)


def _infeasible(found: list[Capacity], objectives: tuple[LatencyObjective, ...]) -> str:
    reachable = {name: seconds for capacity in found for name, seconds in capacity.reachable.items()}
    least = [
        f"{one.name} can be {format_duration(reachable[one.name], 2)} at the least"
        for one in objectives
        if one.name in reachable
    ]
    return f"no number of replicas holds them, even an idle engine misses: {', '.join(least) or 'all'}"


def _by_windows(busy: list[Window], objectives: tuple[LatencyObjective, ...]) -> Replicas:
    """By what was seen alone."""
    held = sorted(window.load for window in busy if window.held(objectives) is Held.HELD)
    missed = min((window.load for window in busy if window.held(objectives) is Held.MISSED), default=math.inf)
    judged = len(held) + sum(window.held(objectives) is Held.MISSED for window in busy)
    if judged < LEAST_WINDOWS:
        return Replicas(windows=judged, why="nothing tells whether the objectives were held")
    peak = max(window.arrivals for window in busy)
    proven = [load for load in held if load < missed]
    if not proven:
        return Replicas(windows=judged, why=_unproven(held, missed))
    advised = _whole(peak / proven[-1])
    # One window may have held it by chance; the next lower load is held by two.
    surer = proven[-2] if len(proven) > 1 else proven[-1]
    highest = max(missed, held[-1]) if missed < math.inf else _until_full(busy)
    least = None if highest is None else min(advised, _whole(peak / highest))
    how = f"the windows held up to {proven[-1]:.3g}/s per replica"
    more = f", and missed from {missed:.3g}/s on" if missed < math.inf else "; more was not tried"
    return Replicas(advised=advised, least=least, most=_whole(peak / surer), windows=judged, why=how + more)


def _unproven(held: list[float], missed: float) -> str:
    if not held:
        return "no load was seen at which they were held: run more replicas for a busy window, and look again"
    return (
        f"the load alone does not decide: some windows held them at up to {held[-1]:.3g}/s per replica, others missed "
        f"them at {missed:.3g}/s"
    )


def _until_full(busy: list[Window]) -> float | None:
    """The load per replica that would fill the KV cache if it grew with the load; it grows faster. None: not known."""
    return max((window.load / window.kv for window in busy if window.kv >= _LEAST_USAGE), default=None)


def _quantiles(rates: list[float]) -> tuple[float, float]:
    """The rates between which the middle of the windows is."""
    cut = int(_LEFT_OUT * len(rates))
    return rates[cut], rates[-1 - cut]


def _whole(replicas: float) -> int:
    return max(1, math.ceil(replicas - _ROUNDING))
