"""Engines that come and go: a new one serves after its start, one that is removed finishes what it has.

Requests go to the emptiest of so many Ready engines, which are drawn at random. All engines run under one setpoint that
never moves, that of the law at this load: only the number of engines differs between rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from flyball_engine.contract import Setpoint
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.presets import EnginePreset
from flyball_lab.simulator.requests import Request
from flyball_lab.simulator.virtual import build

#: Choices of the router: a balancer of requests has two, a Service one.
CHOICES: Final = 2


@dataclass
class Replica:
    """An engine, when it serves, and from when on it is removed."""

    core: Core
    ready_at: float
    removed_at: float | None = None

    @property
    def requests(self) -> int:
        """Those that it has."""
        return len(self.core.scheduler.running) + len(self.core.scheduler.waiting)


class ReplicaFleet:
    """The replicas of a service. `cost` counts replica-seconds: from the making of a pod until it has drained."""

    def __init__(
        self, preset: EnginePreset, setpoint: Setpoint, *, first: int, seed: int, choices: int = CHOICES
    ) -> None:
        self.now = 0.0
        self.cost = 0.0
        self.replicas: list[Replica] = []
        #: All engines that there ever were: their counters are never taken back.
        self.cores: list[Core] = []
        self._preset = preset
        self._setpoint = setpoint
        self._choices = choices
        self._random = Random(seed)
        for _ in range(first):
            self._make(ready_at=0.0)

    @property
    def ready(self) -> list[Replica]:
        """Those that serve."""
        return [one for one in self.replicas if one.removed_at is None and one.ready_at <= self.now]

    @property
    def wanted(self) -> int:
        """Those that there shall be, starting ones too."""
        return sum(one.removed_at is None for one in self.replicas)

    def run(self, until: float) -> None:
        """Each makes its steps; what has drained goes."""
        for one in self.replicas:
            one.core.run(until)
        self.cost += len(self.replicas) * (until - self.now)
        self.now = until
        self.replicas = [one for one in self.replicas if one.removed_at is None or one.requests > 0]

    def submit(self, request: Request) -> None:
        """A request comes, when `request.arrival` says."""
        ready = self.ready
        drawn = self._random.sample(ready, min(self._choices, len(ready)))
        for one in drawn:
            one.core.run(request.arrival)
        min(drawn, key=lambda one: one.requests).core.submit([request])

    def scale(self, replicas: int) -> None:
        """Kubernetes removes those first that do not serve yet, then the newest."""
        for _ in range(replicas - self.wanted):
            self._make(ready_at=self.now + self._preset.start_seconds)
        standing = sorted((one for one in self.replicas if one.removed_at is None), key=lambda one: one.ready_at)
        for one in standing[replicas:]:
            one.removed_at = self.now

    def _make(self, *, ready_at: float) -> None:
        core = build(self._preset, seed=len(self.cores) + 1)
        core.run(self.now)
        core.follow(self._setpoint)
        core.apply(self._setpoint)
        self.cores.append(core)
        self.replicas.append(Replica(core, ready_at))


def requests_of(replicas: Sequence[Replica]) -> tuple[int, int]:
    """Running and waiting requests."""
    return (
        sum(len(one.core.scheduler.running) for one in replicas),
        sum(len(one.core.scheduler.waiting) for one in replicas),
    )
