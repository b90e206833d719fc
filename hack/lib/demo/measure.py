"""From the requests of a run, as its client saw them, to the figures of the table. Pure.

The client's view: every request counts, a failed one meets no objective. Percentiles are of all requests (all gaps, for
the time between tokens), by nearest rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from flyball_engine.bench import requests
from flyball_engine.bench.requests import Percentiles
from flyball_engine.contract import Metric
from flyball_operator.api.v1alpha1 import Objective


class Request(requests.Request):
    """One request as the load generator saw it, and what it came to."""

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

    `met`: percentage by objective. `good`: percentage of requests that met all objectives. `errors`: how often each
    error ended a request, by the last line of what the generator said of it.
    """

    requests: int
    failed: int
    truncated: int
    errors: dict[str, int]
    seconds: float
    met: dict[str, float | None]
    good: float
    goodput: float
    tokens_per_second: float
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles


def measure(requests: Sequence[Request], objectives: Sequence[Objective]) -> Measured:
    """The figures of a run. Its time is from the first request's start to the last token of all."""
    served = [request for request in requests if not request.failed]
    begin = min((request.start for request in requests), default=0.0)
    seconds = max((request.start + request.latency for request in served), default=begin) - begin
    good = sum(request.good(objectives) for request in requests)
    return Measured(
        requests=len(requests),
        failed=len(requests) - len(served),
        truncated=sum(request.truncated for request in requests),
        errors=Counter(request.reason for request in requests if request.failed),
        seconds=round(seconds, 1),
        met={objective.name: _met(requests, objective) for objective in objectives},
        good=percentage(good, len(requests)) or 0.0,
        goodput=good / seconds if seconds else 0.0,
        tokens_per_second=sum(request.output_tokens for request in served) / seconds if seconds else 0.0,
        ttft=Percentiles.of(request.ttft for request in served),
        tpot=Percentiles.of(request.per_token for request in served if request.per_token is not None),
        itl=Percentiles.of(gap for request in served for gap in request.gaps),
    )


def _met(requests: Sequence[Request], objective: Objective) -> float | None:
    outcomes = [request.outcomes(objective.metric, objective.threshold_seconds) for request in requests]
    met, violated = (sum(column) for column in zip(*outcomes, strict=True)) if outcomes else (0, 0)
    return percentage(met, met + violated)


def percentage(part: float, whole: float) -> float | None:
    """`part` of `whole` in percent; None of nothing."""
    return 100.0 * part / whole if whole else None


def requests_of(streams: Mapping[str, Any]) -> list[Request]:
    """The requests of all streams of a run, as the load pod reports them."""
    return [Request.model_validate(row) for stream in streams.values() for row in stream["requests"]]
