"""An engine's own counts of requests, held against what their clients measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from flyball_engine.contract import Metric, MetricName, ObjectiveSpec
from flyball_lab.harness.vllm_server import MODEL_NAME
from flyball_lab.harness.waiting import eventually
from support.measured import Measurement, Wish, measure
from support.served import Served

#: How far the engine's share and the clients' may be apart: 2 points.
POINTS = 0.02
#: Share of a threshold that lies between the two clocks at least, and at most where clients are not held up: a load
#: that they are says nothing. Latencies crowd around their median, so a few milliseconds there are more than 2 points
#: of requests.
ON_THE_WAY = 0.05
HELD_UP = 0.25


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
        eventually(lambda: self.outcomes() == outcomes, expecting=f"{outcomes}, got {self.outcomes()}")


def moved(objective: ObjectiveSpec, seconds: float) -> ObjectiveSpec:
    """The same objective with a threshold that much later."""
    later = max(0.0001, objective.threshold_seconds + seconds)
    return ObjectiveSpec(metric=objective.metric, threshold_seconds=later)


def between_clocks(objective: ObjectiveSpec, seen: Measurement) -> float:
    """Seconds by which the engine's clock and a client's may differ at this objective.

    The client's stops later, by the way of an answer through the HTTP server and the socket, and by as much as other
    processes hold up the clients'. What is measured from token to token goes that way at both ends.
    """
    least = ON_THE_WAY * objective.threshold_seconds
    since_arrival = objective.metric in (Metric.TIME_TO_FIRST_TOKEN, Metric.END_TO_END_LATENCY)
    return max(least, seen.way) if since_arrival else least


def near_what_was_seen(seen: Measurement) -> list[ObjectiveSpec]:
    """Objectives that some of the requests meet: the most that a difference can do."""
    return [
        ObjectiveSpec(metric=metric, threshold_seconds=max(0.001, round(factor * seen.median(metric), 4)))
        for metric in Metric
        for factor in ((3.0,) if metric is Metric.INTER_TOKEN_LATENCY else (1.0, 1.3))
    ]


def disagreements(
    counted: Counted, seen: Measurement, objectives: Sequence[ObjectiveSpec], note: Callable[[str], None]
) -> list[str]:
    """Where the engine's shares are not the clients', of each objective and of all together."""
    less, more = (tuple(moved(one, sign * between_clocks(one, seen)) for one in objectives) for sign in (-1, 1))
    note(f"the way from clock to clock: {1000 * seen.way:.0f} ms at the 98th percentile")
    rows = [
        (one.id, counted.share(one), seen.met(least), seen.met(one), seen.met(most))
        for one, least, most in zip(objectives, less, more, strict=True)
    ]
    low, all_of_them, high = (seen.met_all(which) for which in (less, objectives, more))
    rows.append(("all", counted.share_of_all(objectives), low, all_of_them, high))
    least_threshold = min(one.threshold_seconds for one in objectives if one.metric is Metric.TIME_TO_FIRST_TOKEN)
    held_up = f"clients were held up by {seen.way:.3f} s, beside a threshold of {least_threshold:g} s"
    apart = [held_up] if seen.way > HELD_UP * least_threshold else []
    for name, engine, low, clients, high in rows:
        text = f"{name}: {engine:.3f} met by the engine's count, {clients:.3f} by the clients'"
        note(text)
        if not low - POINTS <= engine <= high + POINTS:
            apart.append(f"{text}, from {low:.3f} to {high:.3f} with what lies between the clocks")
    return apart


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
