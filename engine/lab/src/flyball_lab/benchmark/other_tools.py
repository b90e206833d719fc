"""Results of guidellm and aiperf, as measured points. Pure. The files come from elsewhere and are untrusted.

- guidellm's `benchmarks.json`, report version 2, as guidellm 0.7.3 writes it (github.com/vllm-project/guidellm, tag
  v0.7.3: `src/guidellm/benchmark/schemas/report.py`, `benchmark.py`, `base.py` and `metrics.py`,
  `src/guidellm/schemas/statistics.py`, `src/guidellm/scheduler/strategies.py`). One file has the points of a sweep.
- aiperf's `profile_export_aiperf.json`, schema 1.5 (github.com/ai-dynamo/aiperf, of 2026:
  `docs/reference/json-export-schema.md`, `docs/metrics-reference.md`, `src/aiperf/config/config.py` and `phases.py`).
  One file has one point.

What they call inter-token latency is our TPOT; guidellm weights it by tokens where we weight by requests. Neither tells
what the engine did. A first token after 0 ms is how guidellm says that answers were not streamed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import to_json

from flyball_lab.benchmark.measurements import MOST_REASONS, Measurement
from flyball_lab.benchmark.points import EngineSetting, MeasuredPoint, OtherWorkload, arrivals
from flyball_lab.benchmark.requests import Percentiles

#: Benchmarks of one guidellm file, and characters of a text.
MOST_BENCHMARKS: Final = 1000
MOST_CHARACTERS: Final = 200
ACCEPTED: Final = "guidellm's benchmarks.json, report version 2, or aiperf's profile_export_aiperf.json, schema 1"


def measurements_of(document: Mapping[str, Any]) -> list[Measurement] | None:
    """The points of a file of guidellm or aiperf; None of any other. Raises ValidationError naming the field."""
    if "benchmarks" in document:
        return GuidellmReport.model_validate(document).measurements()
    if "aiperf_version" in document:
        return [AiperfExport.model_validate(document).measurement()]
    return None


def _plain(text: str) -> str:
    """Without what a terminal takes for an order."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)[:MOST_CHARACTERS]


Text = Annotated[str, AfterValidator(_plain)]
Figure = Annotated[float, Field(ge=0)]
Requests = Annotated[int, Field(ge=0, le=2**53)]
Clients = Annotated[int, Field(ge=1, le=2**31 - 1)]
RequestRate = Annotated[float, Field(gt=0)]


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class _Summary(_Read):
    """guidellm's distribution over requests."""

    class _Percentiles(_Read):
        p50: Figure
        p99: Figure

    total_sum: Figure
    max: Figure
    percentiles: _Percentiles

    def times(self, unit: float) -> Percentiles:
        """As seconds, of values in this unit of seconds."""
        return _percentiles(self.percentiles.p50, self.percentiles.p99, unit)


class _Successful(_Read):
    successful: _Summary


class _Strategy(_Read):
    """guidellm's load: a closed loop (`synchronous`, `concurrent`, `throughput`) or an open one."""

    type_: Literal["synchronous", "concurrent", "throughput", "constant", "poisson"]
    streams: Clients | None = None
    rate: RequestRate | None = None
    max_concurrency: Clients | None = None

    @model_validator(mode="after")
    def _load(self) -> Self:
        wanted = {"concurrent": "streams", "constant": "rate", "poisson": "rate"}.get(self.type_)
        if wanted and getattr(self, wanted) is None:
            raise ValueError(f"{wanted} is missing, which {self.type_!r} has")
        return self

    def arrivals(self) -> str:
        """Empty for a closed loop."""
        if self.rate is None or self.type_ not in {"constant", "poisson"}:
            return ""
        return _arrivals(1.0 if self.type_ == "poisson" else None, self.max_concurrency)


class _Benchmark(_Read):
    class _Config(_Read):
        class _Backend(_Read):
            target: Text
            model: Text = ""

        strategy: _Strategy
        backend: _Backend

    class _Metrics(_Read):
        class _Totals(_Read):
            successful: Requests
            errored: Requests

        request_totals: _Totals
        request_concurrency: _Successful
        request_latency: _Successful
        output_token_count: _Successful
        total_token_count: _Successful
        time_to_first_token_ms: _Successful
        inter_token_latency_ms: _Successful

    config: _Config
    metrics: _Metrics
    start_time: Figure
    duration: RequestRate

    @model_validator(mode="after")
    def _has_requests(self) -> Self:
        totals = self.metrics.request_totals
        if not totals.successful + totals.errored:
            raise ValueError("metrics.request_totals has no request that ended")
        return self

    def measurement(self, engine: str, data: str) -> Measurement:
        """As a point; `data` says of what."""
        strategy, metrics, totals = self.config.strategy, self.metrics, self.metrics.request_totals
        workload = OtherWorkload(tool="guidellm", data=data, arrivals=strategy.arrivals())
        # A throughput run without a limit sends all it has: what was at once at most is what it came to.
        peak = max(1, round(metrics.request_concurrency.successful.max))
        clients = {"synchronous": 1, "concurrent": strategy.streams}.get(
            strategy.type_, strategy.max_concurrency or peak
        )
        return Measurement(
            point=MeasuredPoint(
                endpoint=self.config.backend.target,
                model=self.config.backend.model,
                label="guidellm",
                workload=workload,
                setting=EngineSetting(),
                concurrency=None if workload.open_loop else clients,
                rate=strategy.rate if workload.open_loop else None,
                requests=totals.successful + totals.errored,
            ),
            measured_at=_when(self.start_time),
            engine=engine,
            seconds=self.duration,
            completed=totals.successful,
            failed=totals.errored,
            truncated=None,
            errors={},
            requests_per_second=totals.successful / self.duration,
            output_tokens_per_second=metrics.output_token_count.successful.total_sum / self.duration,
            total_tokens_per_second=metrics.total_token_count.successful.total_sum / self.duration,
            ttft=metrics.time_to_first_token_ms.successful.times(1e-3),
            tpot=metrics.inter_token_latency_ms.successful.times(1e-3),
            e2e=metrics.request_latency.successful.times(1.0),
        )


class GuidellmReport(_Read):
    """guidellm's file."""

    class _Metadata(_Read):
        version: Literal[2]
        guidellm_version: Text

    class _Config(_Read):
        class _Spec(_Read):
            data: list[Any] = []

        spec: _Spec

    metadata: _Metadata
    config: _Config
    benchmarks: Annotated[list[_Benchmark], Field(max_length=MOST_BENCHMARKS)]

    def measurements(self) -> list[Measurement]:
        """Its points."""
        engine, data = f"measured by guidellm {self.metadata.guidellm_version}", _data(self.config.spec.data)
        return [one.measurement(engine, data) for one in self.benchmarks]


class _Times(_Read):
    """aiperf's distribution of times."""

    unit: Literal["ms"]
    p50: Figure | None = None
    p99: Figure | None = None


class _TokenRate(_Read):
    unit: Literal["tokens/sec"]
    avg: Figure


class _RequestRate(_Read):
    unit: Literal["requests/sec"]
    avg: Figure


class _Count(_Read):
    unit: Literal["requests"] = "requests"
    avg: Requests = 0


class _Duration(_Read):
    unit: Literal["sec"]
    avg: RequestRate


class _Phase(_Read):
    """aiperf's load: a closed loop (`concurrency`) or an open one."""

    name: Text
    kind: Text = ""
    type: Text
    concurrency: Clients | None = None
    rate: RequestRate | None = None
    smoothness: RequestRate | None = None

    @property
    def profiling(self) -> bool:
        """Metrics are this phase's; those of a warm-up are not told."""
        return "profiling" in {self.name, self.kind}


class AiperfExport(_Read):
    """aiperf's file. Fields that nobody set are left out of it."""

    class _Config(_Read):
        class _Models(_Read):
            class _Model(_Read):
                name: Text

            items: Annotated[list[_Model], Field(min_length=1)]

        class _Endpoint(_Read):
            urls: Annotated[list[Text], Field(min_length=1)]

        models: _Models
        endpoint: _Endpoint
        datasets: list[Any] = []
        phases: list[_Phase]

        @model_validator(mode="after")
        def _load(self) -> Self:
            profiling = [phase for phase in self.phases if phase.profiling]
            if len(profiling) != 1:
                raise ValueError(f"phases has {len(profiling)} of kind 'profiling'; accepted: one")
            phase = profiling[0]
            if phase.type not in {"concurrency", "constant", "poisson", "gamma"}:
                raise ValueError(f"phases.type is {phase.type!r}; accepted: concurrency, constant, poisson, gamma")
            if phase.type != "concurrency" and phase.rate is None:
                raise ValueError(f"phases.rate is missing, which {phase.type!r} has")
            return self

    class _Error(_Read):
        class _Details(_Read):
            message: Text
            code: int | None = None
            type: Text | None = None

        error_details: _Details
        count: Requests

        @property
        def reason(self) -> str:
            """In a line."""
            details = self.error_details
            return " ".join(str(part) for part in (details.code, details.type, details.message) if part is not None)

    schema_version: Annotated[str, Field(pattern=r"^1\.[0-9]+$")]
    aiperf_version: Text
    start_time: Text = ""
    input_config: _Config
    benchmark_duration: _Duration
    request_count: _Count = _Count()
    error_request_count: _Count = _Count()
    request_throughput: _RequestRate
    output_token_throughput: _TokenRate
    total_token_throughput: _TokenRate
    request_latency: _Times
    time_to_first_token: _Times | None = None
    inter_token_latency: _Times | None = None
    error_summary: list[_Error] = []

    @model_validator(mode="after")
    def _has_requests(self) -> Self:
        if not self.request_count.avg + self.error_request_count.avg:
            raise ValueError("request_count has no request that ended")
        return self

    def measurement(self) -> Measurement:
        """Its point."""
        config = self.input_config
        phase = next(phase for phase in config.phases if phase.profiling)
        closed = phase.type == "concurrency"
        shape = {"constant": None, "poisson": 1.0}.get(phase.type, phase.smoothness or 1.0)
        reasons: Counter[str] = Counter()
        for error in self.error_summary:
            reasons[error.reason[:MOST_CHARACTERS]] += error.count
        return Measurement(
            point=MeasuredPoint(
                endpoint=", ".join(config.endpoint.urls),
                model=", ".join(model.name for model in config.models.items),
                label="aiperf",
                workload=OtherWorkload(
                    tool="aiperf",
                    data=_data(config.datasets),
                    arrivals="" if closed else _arrivals(shape, phase.concurrency),
                ),
                setting=EngineSetting(),
                concurrency=phase.concurrency or 1 if closed else None,
                rate=None if closed else phase.rate,
                requests=self.request_count.avg + self.error_request_count.avg,
            ),
            measured_at=self.start_time,
            engine=f"measured by aiperf {self.aiperf_version}",
            seconds=self.benchmark_duration.avg,
            completed=self.request_count.avg,
            failed=self.error_request_count.avg,
            truncated=None,
            errors=dict(reasons.most_common(MOST_REASONS)),
            requests_per_second=self.request_throughput.avg,
            output_tokens_per_second=self.output_token_throughput.avg,
            total_tokens_per_second=self.total_token_throughput.avg,
            ttft=_aiperf_times(self.time_to_first_token),
            tpot=_aiperf_times(self.inter_token_latency),
            e2e=_aiperf_times(self.request_latency),
        )


def _aiperf_times(times: _Times | None) -> Percentiles:
    return Percentiles() if times is None else _percentiles(times.p50, times.p99, 1e-3)


def _percentiles(p50: float | None, p99: float | None, unit: float) -> Percentiles:
    return Percentiles(p50=p50 * unit if p50 else None, p99=p99 * unit if p99 else None)


def _arrivals(shape: float | None, most: int | None) -> str:
    """Of an open loop; a shape of None is a constant rate."""
    told = "constant rate" if shape is None else arrivals(shape)
    return told if most is None else f"{told}, at most {most} at once"


def _data(told: Any) -> str:
    """What the tool's configuration says of its prompts, in a line that differs where that differs."""
    whole = to_json(_set(told)).decode().replace('"', "")
    line = _plain(whole)
    return line if line == whole else f"{line}… {hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _set(value: Any) -> Any:
    """Without what is not set."""
    if isinstance(value, dict):
        return {name: _set(one) for name, one in value.items() if one is not None}
    return [_set(one) for one in value] if isinstance(value, list) else value


def _when(seconds: float) -> str:
    """A Unix time; empty where no calendar has it."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""
