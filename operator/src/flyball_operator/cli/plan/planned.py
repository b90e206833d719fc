"""The plan of a service, out of its past: what limits it, what would hold its objectives, and what that saves. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.figures import format_duration, percent
from flyball_operator.cli.plan.limits import MEANING, Limit, limits, main_limit
from flyball_operator.cli.plan.replicas import Replicas, replicas
from flyball_operator.cli.plan.windows import LEAST_REQUESTS, Held, Kind, ServicePast, Share, Window
from flyball_operator.cli.replay_report import number

#: A window that is so much below the load that the model says is carried should have held the objectives.
_BELOW: Final = 0.9


@dataclass(frozen=True, kw_only=True)
class Attained:
    """How an objective was met: over all windows, and in the worst one with enough requests, if there is one."""

    share: Share
    worst: Share | None


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """What is said of a service. `busiest`: None where no request came.

    `alone`: replicas by objective, each alone. `notes`: what else has to be said, in sentences.
    """

    past: ServicePast
    counts: Counter[Limit]
    limit: Limit
    busiest: Window | None
    replicas: Replicas
    alone: Mapping[str, Replicas]
    attained: Mapping[str, Attained]
    notes: tuple[str, ...]

    @property
    def saved(self) -> int | None:
        """Replicas fewer than now; below zero: more. None where no number is told, or none runs."""
        return None if self.replicas.advised is None or not self.past.now else self.past.now - self.replicas.advised

    def gpus(self, replicas: int | None) -> int | None:
        """Of so many replicas, None where that is not known."""
        return None if replicas is None or self.past.gpus is None else replicas * self.past.gpus


def planned(past: ServicePast) -> ServicePlan:
    """The plan."""
    counts = limits(past)
    busiest = max(past.windows, key=lambda one: one.arrivals, default=None)
    busiest = None if busiest is None or busiest.arrivals <= 0.0 else busiest
    idle = "no request came" if past.windows else MEANING[Limit.UNKNOWN]
    together = replicas(past, past.objectives) if busiest is not None else Replicas(why=idle)
    several = len(past.objectives) > 1 and busiest is not None
    plan = ServicePlan(
        past=past,
        counts=counts,
        limit=main_limit(counts),
        busiest=busiest,
        replicas=together,
        alone={one.name: replicas(past, (one,)) for one in past.objectives} if several else {},
        attained={one.name: found for one in past.objectives if (found := _attained(past, one.name)) is not None},
        notes=(),
    )
    return replace(plan, notes=(*_left_out(past), *(_notes(plan) if busiest is not None else ())))


def _attained(past: ServicePast, name: str) -> Attained | None:
    shares = [window.met[name] for window in past.windows if name in window.met]
    total = sum(share.total for share in shares)
    if total <= 0.0:
        return None
    least = sum(share.total * share.least for share in shares) / total
    most = sum(share.total * share.most for share in shares) / total
    judged = [share for share in shares if share.total >= LEAST_REQUESTS]
    return Attained(share=Share(least, most, total), worst=min(judged, key=lambda one: one.most, default=None))


def _left_out(past: ServicePast) -> Iterator[str]:
    if past.left_out:
        yield f"Without {number(past.left_out, 'window')} in which pods or figures were not seen all the time."


def _notes(plan: ServicePlan) -> Iterator[str]:
    past = plan.past
    for one in past.objectives:
        if one.name not in plan.attained:
            yield f"Nothing counted how {one.name} was met."
        elif one.name in past.edges and any(window.held((one,)) is Held.UNCLEAR for window in past.windows):
            yield _bounds(one.name, *past.edges[one.name])
    if past.error is not None:
        if off := _disagreements(plan):
            yield (
                f"In {number(off, 'window')} objectives were missed, or requests refused, at a load that the model "
                "says is carried: trust it less."
            )
    elif past.objectives:
        if past.doubt:
            yield f"There is no step-time model: {past.doubt}."
        yield from _untried(plan)


def _bounds(name: str, low: float, high: float) -> str:
    """Where vLLM counts, around a threshold that is not there."""
    if high == math.inf:
        return f"vLLM counts {name} at {format_duration(low)} at the most: an objective there is told exactly."
    between = f"{format_duration(low)} and {format_duration(high)}, not between"
    return f"vLLM counts {name} at {between}: an objective there is told exactly."


def _disagreements(plan: ServicePlan) -> int:
    return sum(
        window.capacity is not None
        and window.load < _BELOW * window.capacity.rate
        and window.held(plan.past.objectives) is Held.MISSED
        for window in plan.past.windows
    )


def _untried(plan: ServicePlan) -> Iterator[str]:
    """What a fleet without a model cannot know, and how to learn it."""
    if plan.past.kind is Kind.VLLM:
        yield "vLLM's own metrics do not say what a replica carries beyond the loads that were seen."
    if plan.limit is not Limit.NOTHING or plan.replicas.advised is None or plan.busiest is None:
        return
    full = max(window.kv_peak for window in plan.past.windows)
    yield f"Nobody waited, and at most {percent(full)} of a KV cache were used: fewer replicas may do."
    if (now := plan.past.now) > 1:
        more = now / (now - 1) - 1.0
        yield f"To learn it, run {now - 1} for a busy window: each then gets {percent(more)} more load."
