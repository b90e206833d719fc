"""Two classes of requests beyond what an engine carries: people who wait, and batch work that fills what they leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from flyball_engine.contract import Classes, RequestClass, Setpoint
from flyball_lab.benches.law.contenders import RunFigures
from flyball_lab.benches.law.orders import KINDS, QUEUE, SECONDS, QueueDiscipline
from flyball_lab.benches.law.scenarios import Scenario
from flyball_lab.simulator.lengths import SHAPES
from flyball_lab.simulator.plant import CALM
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.virtual import build, retune, run
from flyball_lab.simulator.workload import ArrivalPhase, workload

#: Shares of the capacity: together 1.5 times what the engine carries.
INTERACTIVE: Final = 0.75
BATCH: Final = 0.75
_NAMES: Final = ("interactive", "batch")
#: Seconds from the first arrival in which all batch work is done.
_UNTIL: Final = 5 * SECONDS


@dataclass(frozen=True)
class TwoClasses:
    """Requests of one kind in two classes: those of `interactive` have the objectives, those of `batch` none.

    `batch`: share of the capacity that comes as batch work.
    """

    kind: str
    variation: float = 1.0
    batch: float = BATCH

    @property
    def name(self) -> str:
        """For people."""
        arrivals = "Poisson" if self.variation == 1.0 else "bursts"
        which = "and batch work" if self.batch else "without batch work"
        return f"{self.kind} {which}, {arrivals}, {INTERACTIVE + self.batch:g} × capacity"

    @property
    def alone(self) -> TwoClasses:
        """The same interactive requests, and no others."""
        return replace(self, batch=0.0)

    @property
    def capacity(self) -> float:
        """Requests/s of which an engine carries the objectives."""
        return KINDS[self.kind][0]

    @property
    def like(self) -> Scenario:
        """The objectives, and the engine."""
        return KINDS[self.kind][1]

    def requests(self, seed: int) -> list[Request]:
        """Both classes, in order of arrival."""
        random, shape = Random(seed), SHAPES[self.like.phases[0][1]]
        phases = [
            ArrivalPhase(
                seconds=SECONDS, rate=share * self.capacity, shape=shape, variation=self.variation, of_class=name
            )
            for name, share in zip(_NAMES, (INTERACTIVE, self.batch), strict=True)
        ]
        return workload([phases], random)

    def setpoint(self, discipline: QueueDiscipline = QUEUE) -> Setpoint:
        """Only the interactive class has a deadline."""
        told = discipline.setpoint(self.like)
        assert told.on_time is not None
        deadline = told.on_time.first_token_deadline_seconds
        classes = Classes(
            classes=(
                RequestClass(name=_NAMES[0], value=_NAMES[0], first_token_deadline_seconds=deadline),
                RequestClass(name=_NAMES[1], value=_NAMES[1]),
            )
        )
        objectives = tuple(one.model_copy(update={"of_class": _NAMES[0]}) for one in told.objectives)
        return told.model_copy(update={"classes": classes, "objectives": objectives})

    def feasible(self, request: Request) -> bool:
        """Whether an idle engine keeps the objectives of such a request.

        Its steps take as long as expected, and it has cached the prefix if there is one.
        """
        prefix = request.prefix
        earlier = [Request(0.0, prefix.tokens + 1, 1, prefix=prefix)] if prefix is not None else []
        alone = Request(SECONDS, request.prompt, request.output, prefix=prefix, of_class=request.of_class)
        core = build(self.like.hardware, disturbances=CALM)
        run(core, [*earlier, alone], until=_UNTIL, events=[retune(0.0, self.setpoint())])
        return self.like.good(alone)

    def play(self, discipline: QueueDiscipline, seed: int) -> RunFigures:
        """One run.

        `kept`: the share of the interactive requests, without those that are `infeasible`. `goodput`: batch requests
        that ended while requests came, over what the interactive ones leave of the capacity. `first`: the share of
        batch requests that ended at all.
        """
        requests = self.requests(seed)
        run(self.like.core(seed), requests, until=_UNTIL, events=[retune(0.0, self.setpoint(discipline))])
        mine, batch = ([one for one in requests if one.of_class == name] for name in _NAMES)
        ended = [one for one in batch if one.fate is Fate.FINISHED]
        left = self.capacity - len(mine) / SECONDS
        good = sum(map(self.like.good, mine))
        infeasible = sum(not self.like.good(one) and not self.feasible(one) for one in mine)
        return RunFigures(
            goodput=sum(one.ended <= SECONDS for one in ended) / SECONDS / left,
            kept=good / (len(mine) - infeasible),
            changes=0,
            first=len(ended) / max(1, len(batch)),
            infeasible=infeasible,
        )


#: What is played.
TWO_CLASSES: Final = tuple(TwoClasses(kind) for kind in KINDS)
