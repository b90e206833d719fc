"""What was seen of a service over a look-back, window by window. Pure; seconds, Unix time, requests per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from flyball_operator.tuning.spec import LatencyObjective

#: Requests of a window from which on its shares say something.
LEAST_REQUESTS: Final = 30


class Kind(StrEnum):
    """What a service's figures come from."""

    PLUGIN = "plugin"
    """Flyball's plugin: exact counts and step statistics."""
    VLLM = "vllm"
    """vLLM's own metrics: histograms."""


class Held(StrEnum):
    """Whether a window held an objective."""

    HELD = "held"
    MISSED = "missed"
    UNCLEAR = "unclear"
    """vLLM's buckets do not tell."""
    QUIET = "quiet"
    """Too few requests to tell."""


@dataclass(frozen=True)
class Share:
    """Of `total` requests, or gaps, the least and the most that may have met an objective, as shares 0…1."""

    least: float
    most: float
    total: float

    def held(self, allowed: float) -> Held:
        """Whether so few were late as are allowed."""
        if self.total < LEAST_REQUESTS:
            return Held.QUIET
        if self.least >= 1.0 - allowed:
            return Held.HELD
        return Held.MISSED if self.most < 1.0 - allowed else Held.UNCLEAR


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What one replica carries of a window's mix by the step-time model, under all objectives and under each alone.

    `asked`: requests per second that replicas are needed for. `binding`: the objective nearest to its threshold.
    `reachable`: thresholds that an idle engine can keep, of the objectives that it cannot.
    """

    rate: float
    asked: float
    alone: Mapping[str, float]
    binding: str = ""
    reachable: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Window:
    """One window, which ended `at`. Figures are of the whole service, means unless they say otherwise.

    `arrivals` and `refused`: requests per second that came, and of them those that were refused. `running_peak`,
    `kv_peak`: the most at any time in any engine. `met`: of those let in, by the name of the objective. `capacity`:
    None where no model says.
    """

    at: float
    seconds: float
    replicas: float
    arrivals: float
    waiting: float
    running_peak: float
    kv: float
    kv_peak: float
    refused: float = 0.0
    met: Mapping[str, Share] = field(default_factory=dict)
    capacity: Capacity | None = None

    @property
    def requests(self) -> float:
        """Those that came."""
        return self.arrivals * self.seconds

    @property
    def load(self) -> float:
        """Requests per second to each replica."""
        return self.arrivals / max(1.0, self.replicas)

    @property
    def refused_share(self) -> float:
        """Of the requests that came."""
        return self.refused / self.arrivals if self.arrivals > 0.0 else 0.0

    def too_many_refused(self, objectives: tuple[LatencyObjective, ...]) -> bool:
        """Whether more were refused than may miss one of these; objectives count only requests that were let in."""
        return self.refused_share > min((one.allowed for one in objectives), default=0.0)

    def held(self, objectives: tuple[LatencyObjective, ...]) -> Held:
        """Whether it held all of these."""
        if self.requests >= LEAST_REQUESTS and self.too_many_refused(objectives):
            return Held.MISSED
        found = {
            self.met[one.name].held(one.allowed) if one.name in self.met else Held.QUIET for one in objectives
        } or {Held.QUIET}
        worst = (Held.MISSED, Held.QUIET, Held.UNCLEAR, Held.HELD)
        return next(one for one in worst if one in found)


@dataclass(frozen=True, kw_only=True)
class ServicePast:
    """A service over the look-back, its windows by time. `now`: replicas at the end of it.

    `ceiling`: requests that an engine was started to run at once, None where nothing says. `gpus`: of one replica, None
    where nothing says. `edges`: the bounds of vLLM's buckets around each objective that is not on one. `error`: of the
    step-time model, None without one; `doubt` then says why, where there could be one. `left_out`: windows that are
    not among them, as no pod was seen at times, or too little of one.
    """

    name: str
    kind: Kind
    objectives: tuple[LatencyObjective, ...]
    windows: tuple[Window, ...]
    now: int
    ceiling: float | None = None
    gpus: int | None = None
    edges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    error: float | None = None
    doubt: str = ""
    left_out: int = 0

    @property
    def requests(self) -> float:
        """Those of all windows."""
        return sum(window.requests for window in self.windows)
