"""The closed loop of plant and law, in virtual time, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball_lab.harness.plant import EnginePlant, Observer, PlantCounters, PlantPhase, arrivals
from flyball_operator.api.v1alpha1 import Mode
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span, TuningSpec
from flyball_operator.tuning.state import Decision, TuningState, start


@dataclass
class Run:
    """A finished run: the plant with its counters, every decision, and the final state."""

    plant: EnginePlant
    decisions: list[Decision]
    state: TuningState
    offered: int
    seconds: float

    @property
    def goodput(self) -> float:
        """Requests per second that met every objective."""
        return self.plant.counts.together[0] / self.seconds

    def attained(self, name: str) -> float:
        """Share that met an objective."""
        objective = next(o for o in self.plant.objectives if o.name == name)
        met, violated = self.plant.counts.met.get(objective.id, [0, 0])
        return met / max(1, met + violated)

    @property
    def changes(self) -> list[Decision]:
        """Decisions that moved the limits."""
        return [decision for decision in self.decisions if decision.changed]


def spec(
    objectives: Sequence[LatencyObjective], *, seqs: tuple[int, int] = (4, 128), tokens: tuple[int, int] = (128, 2048)
) -> TuningSpec:
    """What the law may use."""
    return TuningSpec(Mode.AUTO, Envelope(Span(*seqs), Span(*tokens)), tuple(objectives))


def close(
    plant: EnginePlant,
    tuning: TuningSpec,
    phases: Sequence[PlantPhase | Sequence[PlantPhase]],
    *,
    auto: bool = True,
    seed: int = 1,
    tick: float = 5.0,
    state: TuningState | None = None,
) -> Run:
    """Run the phases; with `auto` the law moves the plant's limits every tick, else they stay."""
    queue = arrivals(phases, seed=seed)
    offered = len(queue)
    seconds = sum(p.seconds if isinstance(p, PlantPhase) else max(one.seconds for one in p) for p in phases)
    state, observer, decisions = state or start(tuning), Observer(plant), []
    origin = plant.now
    for request in queue:
        request.arrival += origin
    ticks = round(seconds / tick)
    for number in range(1, ticks + 1):
        plant.run(origin + number * tick, queue)
        observer.scrape()
        if auto:
            state, decision = decide(state, observer.signals(), tuning, plant.now)
            decisions.append(decision)
            plant.limits = state.limits
    return Run(plant, decisions, state, offered, seconds)


def warmed(
    plant: EnginePlant, tuning: TuningSpec, phases: Sequence[PlantPhase | Sequence[PlantPhase]], *, seed: int = 7
) -> TuningState:
    """The state after a warm-up, with the plant's counts begun anew."""
    state = close(plant, tuning, phases, seed=seed).state
    plant.counts = PlantCounters()
    return state
