"""What came of a point: throughput, latencies, utilisation, errors. Pure.

The client's view: every request of the point counts, from the first one sent to the last one answered; the tail in
which fewer than all clients are busy is part of it. "Could not be observed" is absent, never zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from flyball_engine.knobs import Frozen
from flyball_lab.benchmark.points import MeasuredPoint, Point
from flyball_lab.benchmark.requests import Percentiles, RequestRecord

#: Version of a measurement as it is written; a file of another version is refused.
FORMAT: Final = 1
#: Fewer samples than these are no picture of a point.
LEAST_SAMPLES: Final = 3
#: Different errors kept of a point; the rest is counted together.
MOST_REASONS: Final = 8


class EngineSample(Frozen):
    """What the engine did at one moment, summed over its cores; absent is what it does not tell."""

    running: int
    waiting: int
    slots: int | None


class Utilisation(Frozen):
    """Means over the samples of a point.

    `running` and `waiting` are requests. `slots` are those that may run at once (the active limit in force), and
    `share` running requests over slots: absent where the engine does not tell its slots.
    """

    running: float
    waiting: float
    slots: int | None
    share: float | None
    samples: int


class Measurement(BaseModel):
    """A measured point. Times in seconds; tokens and requests per second of the whole point.

    `ttft`: time to first token, `tpot`: mean time per token after it, `e2e`: until the last token; of requests that
    ended well. `truncated` ended well with fewer tokens than asked for. `tokens_per_draft`: mean accepted length where
    the engine speculates.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = FORMAT
    point: Point | MeasuredPoint
    measured_at: str
    engine: str
    seconds: Annotated[float, Field(gt=0)]
    completed: int
    failed: int
    truncated: int | None
    errors: dict[str, int]
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    utilisation: Utilisation | None = None
    tokens_per_draft: float | None = None

    def labelled(self, label: str) -> Self:
        """The same with another label."""
        return self.model_copy(update={"point": self.point.model_copy(update={"label": label})})


def measure(
    point: Point,
    requests: Sequence[RequestRecord],
    *,
    seconds: float,
    samples: Sequence[EngineSample],
    measured_at: str,
    engine: str,
    tokens_per_draft: float | None = None,
) -> Measurement:
    """The figures of a point; `seconds` is how long the generator says it took."""
    served = [request for request in requests if not request.failed]
    prompts, outputs = (sum(request.prompt_tokens for request in served), sum(r.output_tokens for r in served))
    return Measurement(
        point=point,
        measured_at=measured_at,
        engine=engine,
        seconds=seconds,
        completed=len(served),
        failed=len(requests) - len(served),
        truncated=sum(request.truncated for request in served),
        errors=_reasons(requests),
        requests_per_second=len(served) / seconds,
        output_tokens_per_second=outputs / seconds,
        total_tokens_per_second=(prompts + outputs) / seconds,
        ttft=Percentiles.of(request.ttft for request in served),
        tpot=Percentiles.of(request.per_token for request in served if request.per_token is not None),
        e2e=Percentiles.of(request.latency for request in served),
        utilisation=utilisation(samples),
        tokens_per_draft=tokens_per_draft,
    )


def _reasons(requests: Sequence[RequestRecord]) -> dict[str, int]:
    counts = Counter(request.reason[:200] for request in requests if request.failed).most_common()
    kept = dict(counts[:MOST_REASONS])
    other = sum(count for _, count in counts[MOST_REASONS:])
    return kept | ({"other": other} if other else {})


def utilisation(samples: Sequence[EngineSample]) -> Utilisation | None:
    """Means of what was seen; None of too little. Slots count where every sample has the same."""
    if len(samples) < LEAST_SAMPLES:
        return None
    running = sum(sample.running for sample in samples) / len(samples)
    known = {sample.slots for sample in samples}
    slots = known.pop() if len(known) == 1 else None
    return Utilisation(
        running=running,
        waiting=sum(sample.waiting for sample in samples) / len(samples),
        slots=slots,
        share=running / slots if slots else None,
        samples=len(samples),
    )
