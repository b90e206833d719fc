"""What the law's choice comes to, in words: figures, and whether each objective is kept. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flyball_engine.contract import Metric
from flyball_engine.figures import figure, format_duration
from flyball_operator.tuning.control_input import ControlOutput
from flyball_operator.tuning.spec import LatencyObjective
from flyball_operator.tuning.status_codec import brief

#: What `figures` has, in its order. The first four are limits.
NAMES: Final = (
    "Requests at once",
    "Tokens of a step",
    "Time of a step",
    "Deadline of a first token",
    "Predicted time to first token",
    "Predicted time per token",
    "Predicted gap between tokens",
    "Capacity of one core",
    "What binds",
    "Objectives that no limits hold",
)


def figures(output: ControlOutput) -> tuple[str, ...]:
    """A choice for people."""

    def duration(seconds: float | None) -> str:
        return "any" if seconds is None else format_duration(seconds, digits=3)

    return (
        str(output.seqs),
        str(output.tokens),
        duration(output.budget),
        duration(output.deadline),
        brief(output.predicted.ttft),
        brief(output.predicted.tpot),
        brief(output.predicted.gap),
        f"{figure(output.capacity, 2)} requests/s",
        output.binding or "the upper bound",
        ", ".join(output.given_up) or "none",
    )


@dataclass(frozen=True)
class Attainment:
    """An objective's threshold, and what is predicted. `kept`: whether the mean request keeps it."""

    threshold: str
    predicted: str
    kept: bool


def attainment(output: ControlOutput, objective: LatencyObjective) -> Attainment:
    """How an objective is met under a choice."""
    seconds = {
        Metric.TIME_TO_FIRST_TOKEN: output.predicted.ttft,
        Metric.END_TO_END_LATENCY: output.predicted.e2e,
        Metric.TIME_PER_OUTPUT_TOKEN: output.predicted.tpot,
        Metric.INTER_TOKEN_LATENCY: output.predicted.gap,
    }[objective.metric]
    kept = objective.name not in output.given_up and seconds <= objective.seconds
    return Attainment(format_duration(objective.seconds), brief(seconds), kept)
