"""What becomes of twice the load an engine can carry: with the gate, and without.

Capacity is the largest load of which 95 % of the requests keep both objectives without a gate. Goodput are requests per
second that keep both; whoever is refused does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball_lab.benches.law.plays import STEP_MARGIN, FixedSetpoint, LoadCase, PlayedSteps, keeps, play
from flyball_lab.simulator.lengths import SHAPES
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.workload import ArrivalPhase

SECONDS = 180.0
WARM_UP = 30.0
SEEDS = (1, 2, 3)
KEPT = 0.95


@dataclass(frozen=True, kw_only=True)
class Service:
    """A preset, the kind of its requests, and the objectives in seconds."""

    preset: str
    shape: str
    ttft: float
    tpot: float
    mean_context: int

    def case(self, rate: float) -> LoadCase:
        """So many requests per second."""
        return LoadCase(
            name=f"{self.preset}, {self.shape}",
            preset=PRESETS[self.preset],
            phases=[ArrivalPhase(seconds=SECONDS, rate=rate, shape=SHAPES[self.shape])],
            mean_context=self.mean_context,
            seconds=SECONDS,
        )

    def keeps_ttft(self, request: Request) -> bool:
        """Whether its first token came in time."""
        return request.first_token is not None and request.first_token - request.arrival <= self.ttft

    def keeps_all(self, request: Request) -> bool:
        """Whether both objectives were kept."""
        return keeps(request, ttft=self.ttft, tpot=self.tpot)


SERVICES = (
    Service(preset="h100-8b", shape="conversation", ttft=0.5, tpot=0.030, mean_context=1200),
    Service(preset="a100-8b", shape="conversation", ttft=1.0, tpot=0.050, mean_context=1200),
    Service(preset="h100-8b", shape="code", ttft=0.5, tpot=0.030, mean_context=2000),
    Service(preset="h100-8b", shape="retrieval", ttft=4.0, tpot=0.060, mean_context=25_000),
)


def measure() -> dict[str, dict[str, float]]:
    """At twice the capacity: of those let in, the share in time; goodput over capacity, gated and not; worst seeds."""
    figures = {}
    for service in SERVICES:
        capacity = _capacity(service)
        case = service.case(2 * capacity)
        gated = [_play(service, case, seed, gated=True) for seed in SEEDS]
        open_ = [_play(service, case, seed, gated=False) for seed in SEEDS]
        figures[f"{case.name} at {2 * capacity:.2f}/s"] = {
            "admitted in time": min(_share_in_time(service, played) for played in gated),
            "goodput over capacity": min(_goodput(service, played) for played in gated) / capacity,
            "goodput over capacity without a gate": max(_goodput(service, played) for played in open_) / capacity,
        }
    return figures


def _play(service: Service, case: LoadCase, seed: int, *, gated: bool) -> PlayedSteps:
    fixed = FixedSetpoint(budget=STEP_MARGIN * service.tpot, deadline=service.ttft if gated else None)
    return play(case, fixed, seed=seed, warm_up=WARM_UP)


def _capacity(service: Service) -> float:
    """By bisection between a rate that is surely carried and one that is not, to 2 %."""
    low, high = 0.05, 100.0
    while high / low > 1.02:
        rate = (low * high) ** 0.5
        played = [_play(service, service.case(rate), seed, gated=False) for seed in SEEDS]
        requests = [request for one in played for request in one.requests]
        kept = sum(service.keeps_all(request) for request in requests) / len(requests)
        low, high = (rate, high) if kept >= KEPT else (low, rate)
    return low


def _share_in_time(service: Service, played: PlayedSteps) -> float:
    admitted = [request for request in played.requests if request.fate is not Fate.SHED]
    return sum(map(service.keeps_ttft, admitted)) / len(admitted)


def _goodput(service: Service, played: PlayedSteps) -> float:
    return sum(map(service.keeps_all, played.requests)) / (SECONDS - WARM_UP)
