"""From the requests of a run, as its client saw them, to the figures of the table. Pure.

The client's view. Objectives are judged by the requests that were let in, as the engine judges them; one that failed
meets none. A refused request is no failure and no success: it is counted apart, and among all that were sent it is one
that was not served. Percentiles are of all requests served (all gaps, for the time between tokens), by nearest rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from flyball_engine.contract import Metric
from flyball_lab.benchmark import requests
from flyball_lab.benchmark.requests import Percentiles
from flyball_operator.api.v1alpha1 import Objective

#: What the load generator says of 503, HTTP's own words for it; nothing but the engine answers at its Service.
REFUSED = "Service Unavailable"


class MeasuredRequest(requests.RequestRecord):
    """One request as the load generator saw it, and what it came to."""

    @property
    def refused(self) -> bool:
        """Answered with 503 before anything was generated: the gate's doing."""
        return self.error == REFUSED

    def outcomes(self, metric: Metric, threshold: float) -> tuple[int, int]:
        """How often this request met and violated a threshold: once per request, for InterTokenLatency once per gap."""
        if self.failed:
            return 0, 1
        values: Sequence[float | None]
        match metric:
            case Metric.TIME_TO_FIRST_TOKEN:
                values = (self.ttft,)
            case Metric.TIME_PER_OUTPUT_TOKEN:
                values = (self.per_token,)
            case Metric.INTER_TOKEN_LATENCY:
                values = self.gaps
            case Metric.END_TO_END_LATENCY:
                values = (self.latency,)
        met = sum(value <= threshold for value in values if value is not None)
        return met, sum(value is not None for value in values) - met

    def good(self, objectives: Sequence[Objective]) -> bool:
        """True if this request met all objectives, by the engine's rule: of its gaps the mean counts."""
        return not self.failed and all(self._kept(objective) for objective in objectives)

    def _kept(self, objective: Objective) -> bool:
        if objective.metric is Metric.INTER_TOKEN_LATENCY:
            return not self.gaps or sum(self.gaps) / len(self.gaps) <= objective.threshold_seconds
        return not self.outcomes(objective.metric, objective.threshold_seconds)[1]


class Measured(BaseModel):
    """Figures of one run.

    `requests`: all that were sent. `refused` were answered with 503 at once; `failed` otherwise, or broken off. `met`:
    percentage by objective, of those let in. `good`: percentage of those sent that met all objectives, `good_let_in`
    of those let in. `errors`: how often each error ended a request, by the last line of what the generator said of it.
    """

    requests: int
    refused: int
    failed: int
    truncated: int
    errors: dict[str, int]
    seconds: float
    met: dict[str, float | None]
    good: float
    good_let_in: float | None
    goodput: float
    tokens_per_second: float
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles


def measure(requests: Sequence[MeasuredRequest], objectives: Sequence[Objective]) -> Measured:
    """The figures of a run. Its time is from the first request's start to the last token of all."""
    let_in = [request for request in requests if not request.refused]
    served = [request for request in let_in if not request.failed]
    begin = min((request.start for request in requests), default=0.0)
    seconds = max((request.start + request.latency for request in served), default=begin) - begin
    good = sum(request.good(objectives) for request in requests)
    return Measured(
        requests=len(requests),
        refused=len(requests) - len(let_in),
        failed=len(let_in) - len(served),
        truncated=sum(request.truncated for request in requests),
        errors=Counter(request.reason for request in let_in if request.failed),
        seconds=round(seconds, 1),
        met={objective.name: _met(let_in, objective) for objective in objectives},
        good=percentage(good, len(requests)) or 0.0,
        good_let_in=percentage(good, len(let_in)),
        goodput=good / seconds if seconds else 0.0,
        tokens_per_second=sum(request.output_tokens for request in served) / seconds if seconds else 0.0,
        ttft=Percentiles.of(request.ttft for request in served),
        tpot=Percentiles.of(request.per_token for request in served if request.per_token is not None),
        itl=Percentiles.of(gap for request in served for gap in request.gaps),
    )


def _met(requests: Sequence[MeasuredRequest], objective: Objective) -> float | None:
    outcomes = [request.outcomes(objective.metric, objective.threshold_seconds) for request in requests]
    met, violated = (sum(column) for column in zip(*outcomes, strict=True)) if outcomes else (0, 0)
    return percentage(met, met + violated)


def percentage(part: float, whole: float) -> float | None:
    """`part` of `whole` in percent; None of nothing."""
    return 100.0 * part / whole if whole else None


def requests_of(streams: Mapping[str, Any]) -> list[MeasuredRequest]:
    """The requests of all streams of a run, as the load pod reports them."""
    return [MeasuredRequest.model_validate(row) for stream in streams.values() for row in stream["requests"]]
