"""An engine's own counts of requests, held against what their clients measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from flyball_engine.contract import Metric, MetricName, ObjectiveSpec
from support.measured import Measurement, Wish, measure
from support.served import Served
from support.vllm_server import MODEL_NAME
from support.waiting import eventually

#: How far the engine's share and the clients' may be apart: 2 points.
POINTS = 0.02
#: Share of a threshold that lies between the two clocks: the clients' stops later, by the way of an answer through the
#: HTTP server and the socket, and by as much as other processes hold up the clients'. Latencies crowd around their
#: median, so a few milliseconds there are more than 2 points of requests.
ON_THE_WAY = 0.05


class Counted:
    """A server's counts since the last time its objectives were set."""

    def __init__(self, served: Served) -> None:
        self.server = served.server
        self._served = served
        self._before: dict[str, float] = {}

    def against(self, objectives: Sequence[ObjectiveSpec]) -> None:
        """Count against these from now on."""
        self.put(objectives=tuple(objectives))
        self._before = self._scrape()

    def put(self, **fields: Any) -> None:
        """The next setpoint."""
        self._served.set(**fields)

    def _scrape(self) -> dict[str, float]:
        samples = re.findall(r"^(flyball_\w+(?:\{.*\})?) (\S+)$", self._served.control.metrics(), flags=re.MULTILINE)
        return {name: float(value) for name, value in samples}

    def __call__(self, name: MetricName, **labels: str) -> float:
        written = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
        return self.total(f"{name.value}{{{written}}}" if labels else name.value)

    def total(self, key: str) -> float:
        """A counter as it is scraped, since then."""
        return self._scrape()[key] - self._before.get(key, 0.0)

    def share(self, objective: ObjectiveSpec) -> float:
        """The share of one objective's units that met it."""
        met, violated = (
            self(MetricName.OBJECTIVE_REQUESTS, objective=objective.id, outcome=outcome)
            for outcome in ("met", "violated")
        )
        return met / (met + violated)

    def share_of_all(self, objectives: Sequence[ObjectiveSpec]) -> float:
        """The share of requests that met all of them."""
        names = ",".join(objective.id for objective in objectives)
        met, violated = (
            self(MetricName.ALL_OBJECTIVES_REQUESTS, objectives=names, outcome=outcome)
            for outcome in ("met", "violated")
        )
        return met / (met + violated)

    def outcomes(self) -> dict[str, int]:
        """Requests by outcome, those there were."""
        names = ("finished", "abandoned", "aborted", "refused", "error", "uncounted")
        found = {outcome: int(self(MetricName.REQUESTS, outcome=outcome)) for outcome in names}
        return {outcome: number for outcome, number in found.items() if number}

    def expect_outcomes(self, **outcomes: int) -> None:
        """Wait for these; the server hears of a client that left a moment later."""
        eventually(lambda: self.outcomes() == outcomes, expecting=f"{outcomes}, got {self.outcomes()}", within=30)


def scaled(objective: ObjectiveSpec, factor: float) -> ObjectiveSpec:
    """The same objective with another threshold."""
    return ObjectiveSpec(metric=objective.metric, threshold_seconds=factor * objective.threshold_seconds)


def near_what_was_seen(seen: Measurement) -> list[ObjectiveSpec]:
    """Objectives that some of the requests meet: the most that a difference can do."""
    return [
        ObjectiveSpec(metric=metric, threshold_seconds=round(factor * seen.median(metric), 4))
        for metric in Metric
        for factor in ((3.0,) if metric is Metric.INTER_TOKEN_LATENCY else (1.0, 1.3))
    ]


def expect_agreement(
    counted: Counted, seen: Measurement, objectives: Sequence[ObjectiveSpec], note: Callable[[str], None]
) -> None:
    """The engine's shares are the clients', for each objective and for all together."""
    less, more = (tuple(scaled(one, 1 + sign * ON_THE_WAY) for one in objectives) for sign in (-1, 1))
    for one, least, most in zip(objectives, less, more, strict=True):
        engine = counted.share(one)
        note(f"{one.id}: {engine:.3f} met by the engine's count, {seen.met(one):.3f} by the clients'")
        assert seen.met(least) - POINTS <= engine <= seen.met(most) + POINTS, one.id
    engine = counted.share_of_all(objectives)
    note(f"all: {engine:.3f} met by the engine's count, {seen.met_all(objectives):.3f} by the clients'")
    assert seen.met_all(less) - POINTS <= engine <= seen.met_all(more) + POINTS


async def expect_all_counted(
    counted: Counted, wishes: Sequence[Wish], *, concurrency: int, threshold: float, met: float
) -> None:
    """Every request is counted against an objective of each metric, and this share meets it.

    For engines whose latencies say little beside their clients' clocks: the threshold is far from all of them.
    """
    objectives = [ObjectiveSpec(metric=metric, threshold_seconds=threshold) for metric in Metric]
    counted.against(objectives)
    await measure(counted.server.url, MODEL_NAME, wishes, concurrency=concurrency)
    counted.expect_outcomes(finished=len(wishes))
    assert [counted.share(one) for one in objectives] == [met] * len(objectives)
    assert counted.share_of_all(objectives) == met
    assert counted(MetricName.GENERATED_TOKENS) == sum(wish.n * wish.prompts * wish.max_tokens for wish in wishes)
