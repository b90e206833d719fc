"""What the law makes of an edited manifest: limits, and how each objective is met, before and after. Pure.

It rests on what status tells: the step-time model, and what one engine core is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from flyball_operator.api.v1alpha1 import ConditionType, InferenceService, WorkloadStatus
from flyball_operator.cli.manifest_changes import Pods
from flyball_operator.tuning.control_input import ControlOutput
from flyball_operator.tuning.insight import remembered
from flyball_operator.tuning.model_sharing import kind_of
from flyball_operator.tuning.outlook import NAMES, Attainment, attainment, figures
from flyball_operator.tuning.spec import TuningSpec, tuning_spec

#: Of the figures of a choice, those that are limits.
_LIMITS: Final = 4
_NO_LOAD: Final = "status tells of no load yet: requests and an objective are needed"
_OTHER_ENGINE: Final = (
    "model, image, arguments, accelerator or parallelism change, so the step-time model is learnt anew"
)
_CAPACITY: Final = NAMES.index("Capacity of one core")


@dataclass(frozen=True)
class Met:
    """An objective by name. None: there is none of that name."""

    name: str
    before: Attainment | None
    after: Attainment | None


@dataclass(frozen=True)
class Figure:
    """A figure of the law's choice."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Predicted:
    """`unknown`: why nothing is predicted, empty where it is. `load`: what it rests on. `not_live`: why it stays so."""

    unknown: str = ""
    load: WorkloadStatus | None = None
    not_live: str = ""
    objectives: tuple[Met, ...] = ()
    limits: tuple[Figure, ...] = ()


def predicted(before: InferenceService | None, after: InferenceService, pods: Pods) -> Predicted:
    """Between two services; `before`: None if it would be created."""
    if before is None:
        return Predicted(unknown="the service is new: there is no step-time model yet")
    if after.spec.workload is not None:
        return Predicted(unknown="what engines of others were started with, status does not say")
    if kind_of(before) != kind_of(after):
        return Predicted(unknown=_OTHER_ENGINE)
    known, spec = remembered(before), tuning_spec(after.spec, after.metadata.annotations)
    if known.fit is None or known.workload is None:
        return Predicted(unknown=_untrusted(before) if known.fit is None else _NO_LOAD)
    scaled = pods.replicas_before and pods.replicas_after
    share = pods.replicas_before / pods.replicas_after if scaled else 1.0
    now, then = known.under(known.spec), known.under(spec, share=share)
    if now is None or then is None:
        return Predicted(unknown="the law has no answer")
    shown = zip(NAMES, figures(now), figures(then), strict=True)
    limits = tuple(Figure(*one) for at, one in enumerate(shown) if at < _LIMITS or at == _CAPACITY)
    return Predicted(
        load=before.status.tuning.workload,
        not_live="" if spec.live else f"mode {spec.mode.value} or a pause keeps the law's limits from the engines",
        objectives=tuple(_met(known.spec, now, spec, then)),
        limits=limits,
    )


def _untrusted(service: InferenceService) -> str:
    """Why there is no model, as the tuner says."""
    said = next((one for one in service.status.conditions if one.type == ConditionType.TUNED), None)
    why = f": {said.reason}: {said.message}" if said is not None else ": it was never tuned"
    return f"status has no step-time model that is trusted{why}"


def _met(before: TuningSpec, now: ControlOutput, after: TuningSpec, then: ControlOutput) -> Iterator[Met]:
    had = {one.name: attainment(now, one) for one in before.objectives}
    have = {one.name: attainment(then, one) for one in after.objectives}
    for name in dict.fromkeys([*had, *have]):
        yield Met(name, had.get(name), have.get(name))


def as_json(found: Predicted) -> dict[str, Any]:
    """The part of the document of `-o json`."""
    load = None if found.load is None else found.load.model_dump(by_alias=True)
    return {**asdict(found), "load": load}


def as_lines(found: Predicted) -> Iterator[str]:
    """The same for people: a paragraph or an item a line."""
    if found.load is None:
        yield f"prediction: none, because {found.unknown}"
        return
    load = f"{found.load.arrivals}/s per core of {found.load.uncached}+{found.load.output} tokens"
    yield f"prediction: by the load that status tells, {load}"
    if found.not_live:
        yield f"  {found.not_live}"
    for met in found.objectives:
        yield f"  {met.name}: {_attained(met.before)} -> {_attained(met.after)}"
    for one in found.limits:
        yield f"  {one.name}: {one.before}" + ("" if one.before == one.after else f" -> {one.after}")


def _attained(found: Attainment | None) -> str:
    if found is None:
        return "(absent)"
    return f"{found.predicted} of {found.threshold}, {'kept' if found.kept else 'missed'}"
