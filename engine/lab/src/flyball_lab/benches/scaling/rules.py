"""Rules for the number of replicas, each asked every 15 s. Flyball's is the operator's own code; others are rewritten.

- HPA on queue depth: waiting requests per pod, with the defaults of autoscaling/v2.
- llm-d's SLO law for KEDA: the larger of p90 over objective, 1 min, with a dead band.
- Workload Variant Autoscaler, version 1: spare KV cache and spare queue, one replica at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from flyball_lab.benches.law.closed_loop import Sample, sample, signals_between
from flyball_lab.benches.scaling.replica_fleet import Replica, ReplicaFleet, requests_of
from flyball_lab.quantiles import quantile
from flyball_lab.simulator.fleet import fleet
from flyball_lab.simulator.requests import Fate, Request
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.replicas import Bounds
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import TuningState, start

#: Seconds between two decisions: the HPA's own period.
PERIOD: Final = 15.0
#: Fewest and most replicas, of all rules.
LEAST: Final = 1
MOST: Final = 12
#: For so long fewer replicas must do before they are removed: the default of the HPA and of `spec.scaling`, in seconds.
DOWN_SECONDS: Final = 300.0


class ScalingRule(Protocol):
    """One run's rule, with its memory."""

    def replicas(self, fleet: ReplicaFleet, recent: Sequence[Request]) -> int:
        """How many there shall be. `recent`: requests of the last minutes, in order of arrival."""


class Flyball:
    """Signals as Prometheus sums them, through the operator's `decide`: model, workload, capacity and replicas."""

    def __init__(self, tuning: TuningSpec) -> None:
        self._tuning = tuning
        self._state: TuningState = start(tuning)
        self._before: Sample | None = None

    def replicas(self, fleet_: ReplicaFleet, recent: Sequence[Request]) -> int:  # noqa: ARG002 - others need it
        """As the operator sets it; what runs while nothing is known."""
        everything = fleet(fleet_.cores)
        now = sample(everything)
        before, self._before = self._before, now
        if before is None or not fleet_.ready:
            return fleet_.wanted
        ready = len(fleet_.ready)
        signals = signals_between(before, now, everything, self._tuning, cores=ready)
        self._state, _ = decide(self._state, signals, self._tuning, fleet_.now)
        balance = self._state.balance
        if balance is None or not balance.settled or self._state.desired is None:
            return fleet_.wanted
        return self._state.desired.replicas


@dataclass
class Stabilised:
    """What the HPA makes of recommendations: windows, and at most so many pods more or less in a period."""

    up_seconds: float = 0.0
    down_seconds: float = DOWN_SECONDS
    most_removed: tuple[int, float] = (MOST, PERIOD)
    up_period: float = PERIOD
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _changes: deque[tuple[float, int]] = field(default_factory=deque)

    def replicas(self, now: float, current: int, wanted: int) -> int:
        """The number by windows and policies: 100 % or 4 pods up in `up_period`, `most_removed` down."""
        self._seen.append((now, wanted))
        while self._seen[0][0] <= now - max(self.up_seconds, self.down_seconds, PERIOD):
            self._seen.popleft()
        up = min(number for at, number in self._seen if at > now - self.up_seconds or at == now)
        down = max(number for at, number in self._seen if at > now - self.down_seconds or at == now)
        number = up if up > current else min(current, down)
        added = sum(change for at, change in self._changes if change > 0 and at > now - self.up_period)
        pods, period = self.most_removed
        removed = -sum(change for at, change in self._changes if change < 0 and at > now - period)
        began = current - added
        number = min(number, max(began + max(began, 4), current)) if number > current else number
        number = max(number, current + removed - pods) if number < current else number
        number = max(LEAST, min(MOST, number))
        self._changes.append((now, number - current))
        while self._changes[0][0] <= now - max(period, self.up_period):
            self._changes.popleft()
        return number


class QueueDepth:
    """HPA: `target` waiting requests per pod in the mean of all. `speed`: of the day, by which windows are shorter."""

    def __init__(self, target: float, *, speed: float = 1.0) -> None:
        self._target = target
        self._stabilised = Stabilised(down_seconds=DOWN_SECONDS / speed)

    def replicas(self, fleet: ReplicaFleet, recent: Sequence[Request]) -> int:  # noqa: ARG002 - others need it
        """⌈replicas · usage/target⌉, outside a tolerance of a tenth."""
        ready, current = fleet.ready, fleet.wanted
        _, waiting = requests_of(ready)
        ratio = waiting / (self._target * max(1, len(ready)))
        wanted = current if abs(ratio - 1.0) <= 0.1 else math.ceil(len(ready) * ratio)
        if ratio > 1.1:
            # Pods that start count as idle, so that a queue is not answered twice.
            wanted = max(current, math.ceil(waiting / self._target))
        return self._stabilised.replicas(fleet.now, current, wanted)


class SloPressure:
    """llm-d: p90 of first tokens and of tokens over their objectives; `up` and `down` are ends of the dead band.

    `speed`: of the day, by which windows are shorter.
    """

    def __init__(self, ttft: float, tpot: float, *, up: float = 0.55, down: float = 0.40, speed: float = 1.0) -> None:
        self._objectives = (ttft, tpot)
        self._up, self._down = up, down
        self._pressures: deque[float] = deque(maxlen=3)
        self._stabilised = Stabilised(
            up_seconds=30.0 / speed,
            down_seconds=180.0 / speed,
            most_removed=(1, 120.0 / speed),
            up_period=60.0 / speed,
        )

    def replicas(self, fleet: ReplicaFleet, recent: Sequence[Request]) -> int:
        """Of n that run, n + ⌈n(s·c/up − 1)⌉ above, n − ⌊n(1 − s/down)⌋ below; c is the share that is Ready."""
        now, current = fleet.now, fleet.wanted
        self._pressures.append(min(2.0, self._pressure(now, recent)))
        pressure = sum(self._pressures) / len(self._pressures)
        wanted = current
        if pressure > self._up:
            started = len(fleet.ready) / current
            wanted = current + max(0, math.ceil(current * (pressure * started / self._up - 1.0)))
        elif pressure < self._down:
            wanted = current - math.floor(current * (1.0 - pressure / self._down))
        return self._stabilised.replicas(now, current, max(LEAST, wanted))

    def _pressure(self, now: float, recent: Sequence[Request]) -> float:
        first = [
            one.first_token - one.arrival
            for one in recent
            if one.first_token is not None and now - 60.0 < one.first_token <= now
        ]
        tokens = [
            (one.ended - one.first_token) / (one.output - 1)
            for one in recent
            if one.fate is Fate.FINISHED
            and one.first_token is not None
            and one.output > 1
            and now - 60.0 < one.ended <= now
        ]
        ttft, tpot = self._objectives
        return max(_p90(first) / ttft, _p90(tokens) / tpot)


class Saturation:
    """Workload Variant Autoscaler: one more where little is spare, one fewer where the rest keeps enough."""

    KV: Final = 0.80
    QUEUE: Final = 5.0

    def __init__(self, *, spare_kv: float = 0.10, spare_queue: float = 3.0) -> None:
        self._spare = (spare_kv, spare_queue)
        self._seen: deque[tuple[float, float]] = deque(maxlen=4)
        self._turn = 0

    def replicas(self, fleet: ReplicaFleet, recent: Sequence[Request]) -> int:  # noqa: ARG002 - others need it
        """By what the engines themselves say."""
        return self.number([self._usage(one) for one in fleet.ready], fleet.wanted)

    def number(self, usage: Sequence[tuple[float, float]], current: int) -> int:
        """By the largest of the last minute; every second period, and never while one of the `current` replicas starts.

        `usage`: of each that serves, the share of the KV cache in use, and the requests that wait.
        """
        self._seen.append((_mean([kv for kv, _ in usage]), _mean([queue for _, queue in usage])))
        self._turn += 1
        if self._turn % 2 or len(usage) < current:
            return current
        kv, queue = (max(values) for values in zip(*self._seen, strict=True))
        if self._lacks(kv, queue):
            return min(MOST, current + 1)
        if current > LEAST:
            share = current / (current - 1)
            if not self._lacks(kv * share, queue * share):
                return current - 1
        return current

    def _lacks(self, kv: float, queue: float) -> bool:
        spare_kv, spare_queue = self._spare
        return self.KV - kv < spare_kv or self.QUEUE - queue < spare_queue

    @staticmethod
    def _usage(one: Replica) -> tuple[float, float]:
        scheduler = one.core.scheduler
        return scheduler.used_blocks() / scheduler.capacity, float(len(scheduler.waiting))


@dataclass(frozen=True)
class Constant:
    """As many as at the peak, always."""

    number: int

    def replicas(self, fleet: ReplicaFleet, recent: Sequence[Request]) -> int:  # noqa: ARG002 - others need it
        """The same."""
        return self.number


def bounds(speed: float = 1.0) -> Bounds:
    """Of Flyball's rule: windows as `spec.scaling` has them by default, shorter where the day passes faster."""
    return Bounds(least=LEAST, most=MOST, up_seconds=0.0, down_seconds=DOWN_SECONDS / speed)


def _p90(values: Sequence[float]) -> float:
    return quantile(values, 0.9) if values else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
