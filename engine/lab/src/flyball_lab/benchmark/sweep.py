"""Makes a sweep: sets the engine, warms it up, measures, keeps each point, and puts the engine back however it ends."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from pydantic import BaseModel, Field, ValidationError

from flyball_engine.figures import figure
from flyball_lab.benchmark.arguments import arguments, warm_up
from flyball_lab.benchmark.control import Switch
from flyball_lab.benchmark.errors import EndpointError, GeneratorError
from flyball_lab.benchmark.files import ResultsFile
from flyball_lab.benchmark.load import Tick
from flyball_lab.benchmark.measurements import Measurement, measure
from flyball_lab.benchmark.points import Point
from flyball_lab.benchmark.requests import RequestRecord
from flyball_lab.benchmark.watch import ProgressLines, Sampler


class LoadGenerator(Protocol):
    """What makes a run: `load.GeneratorProcess`."""

    def run(self, arguments: Sequence[str], *, seconds: float, started: Tick, tick: Tick) -> Mapping[str, Any]:
        """Make a run and return its stream."""


class _Stream(BaseModel):
    """What the generator says of a run."""

    duration: float = Field(gt=0)
    tokens_per_draft: float | None = None
    requests: list[RequestRecord]


@dataclass(frozen=True, kw_only=True)
class Rig:
    """What points are measured with.

    `switch` is absent where settings are left alone; `timeout`: seconds that a run may take;
    `interrupted` raises KeyboardInterrupt once a signal was heard.
    """

    generator: LoadGenerator
    sampler: Sampler
    progress: ProgressLines
    results: ResultsFile
    switch: Switch | None
    tokenizer: str
    salted: bool
    timeout: float
    engine: str
    interrupted: Tick
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def measure_all(points: Sequence[Point], rig: Rig) -> None:
    """Measure the points in turn and keep each. Raises a BenchError; what was measured before it is kept."""
    for point in points:
        rig.progress.begin()
        one = _measured(point, rig)
        rig.results.append(one)
        rig.progress.end(_said(one))


def _measured(point: Point, rig: Rig) -> Measurement:
    def tick() -> None:
        rig.interrupted()
        rig.sampler.tick()
        rig.progress.tick()

    def run(one: Point, started: Tick) -> _Stream:
        salt = f"{one.key}-{uuid.uuid4().hex[:8]}" if rig.salted else None
        stream = rig.generator.run(
            arguments(one, tokenizer=rig.tokenizer, salt=salt), seconds=rig.timeout, started=started, tick=tick
        )
        try:
            return _Stream.model_validate(stream)
        except ValidationError as error:
            raise GeneratorError(
                f"the load generator's result is not understood: {error.errors()[0]['msg']}"
            ) from error

    if rig.switch is not None:
        rig.switch.use(point.setting, concurrency=point.concurrency)
    run(warm_up(point), lambda: None)
    stream = run(point, rig.sampler.start)
    samples = rig.sampler.take()
    if rig.switch is not None:
        rig.switch.check()
    one = measure(
        point,
        stream.requests,
        seconds=stream.duration,
        samples=samples,
        measured_at=rig.now().isoformat(timespec="seconds"),
        engine=rig.engine,
        tokens_per_draft=stream.tokens_per_draft,
    )
    if not one.completed:
        reason = next(iter(one.errors), "no request was made")
        raise EndpointError(f"{point.describe()}: every request failed, so the point is not kept: {reason}")
    return one


def _said(one: Measurement) -> str:
    failed = f", {one.failed} FAILED" if one.failed else ""
    return f"{figure(one.output_tokens_per_second)} output tokens/s in {one.seconds:.1f} s{failed}"
