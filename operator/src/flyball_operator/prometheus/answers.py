"""Turns Prometheus' answers into figures, trusting nothing: wrong forms are refused, NaN and infinities are absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from flyball_engine.contract import StepKind
from flyball_operator.governor.signals import (
    CellKey,
    Load,
    Missing,
    Outcome,
    Signals,
    StepWindow,
    Sums,
    Unobserved,
)
from flyball_operator.prometheus.queries import FIELD, NAMESPACE, UID

#: A service's namespace and UID, from target labels.
Identity = tuple[str, str]


class BadAnswerError(Exception):
    """An answer does not have the form of an instant vector."""


class _Sample(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    metric: dict[str, str]
    value: tuple[float, Annotated[str, Field(max_length=64)]]


_VECTOR: Final = TypeAdapter(list[_Sample])
_STEP_FIELDS: Final = frozenset(f.name for f in fields(Sums))


@dataclass(frozen=True)
class Figure:
    """One figure of one service: its labels, its value, and the Unix time it was evaluated for."""

    labels: Mapping[str, str]
    value: float
    at: float


Figures = Mapping[Identity, list[Figure]]


def figures(answer: Any) -> Figures:
    """An instant vector by service. Raises `BadAnswerError` on another form."""
    try:
        samples = _VECTOR.validate_python(answer)
    except ValidationError as error:
        raise BadAnswerError(f"not an instant vector: {error.error_count()} errors") from error
    found: dict[Identity, list[Figure]] = {}
    for sample in samples:
        value = _number(sample.value[1])
        if value is not None and UID in sample.metric:
            identity = (sample.metric.get(NAMESPACE, ""), sample.metric[UID])
            found.setdefault(identity, []).append(Figure(sample.metric, value, sample.value[0]))
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def step_window(found: list[Figure], window: int) -> StepWindow | Unobserved:
    """The steps of a window, or why they are not known."""
    cells: dict[CellKey, dict[str, float]] = {}
    for figure in found:
        key = _cell(figure.labels)
        if key is not None and figure.labels.get(FIELD) in _STEP_FIELDS:
            cells.setdefault(key, {})[figure.labels[FIELD]] = max(0.0, figure.value)
    whole = {key: Sums(**sums) for key, sums in cells.items() if len(sums) == len(_STEP_FIELDS)}
    if not whole:
        return Unobserved(Missing.TOO_FEW_SAMPLES, f"no step statistics in the last {window} s")
    end = found[0].at
    return StepWindow(start=end - window, end=end, cells={key: sums for key, sums in whole.items() if sums.steps > 0})


def _cell(labels: Mapping[str, str]) -> CellKey | None:
    try:
        return CellKey(int(labels["bucket"]), StepKind(labels["kind"]))
    except (KeyError, ValueError):
        return None


def named(found: list[Figure]) -> dict[str, float]:
    """Figures by the label `field`."""
    return {figure.labels[FIELD]: figure.value for figure in found if FIELD in figure.labels}


def load_of(by_name: Mapping[str, float], window: int) -> Load | Unobserved:
    """The load, or why it is not known: gauges are needed, and counters with two scrapes in the window."""
    needed = ("running", "waiting", "ended", "finished", "prompt_tokens", "generated_tokens")
    missing = [name for name in needed if name not in by_name]
    if missing:
        return Unobserved(Missing.TOO_FEW_SAMPLES, f"no value for {', '.join(missing)} in the last {window} s")
    return Load(
        arrivals=max(0.0, by_name["ended"] + by_name.get("grown", 0.0)) / window,
        finished=by_name["finished"],
        prompt_tokens=by_name["prompt_tokens"],
        cached_tokens=by_name.get("cached_tokens", 0.0),
        generated_tokens=by_name["generated_tokens"],
        running=by_name["running"],
        waiting=by_name["waiting"],
        kv_usage=by_name.get("kv_usage", 0.0),
        kv_tokens=by_name.get("kv_tokens", 0.0),
        held_tokens=by_name.get("held_tokens", 0.0),
        refused=max(0.0, by_name.get("shed", 0.0)) / window,
    )


def outcomes_of(found: list[Figure]) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Outcomes by objective id, and of all objectives together by their joined ids."""
    single: dict[str, dict[str, float]] = {}
    together: dict[str, dict[str, float]] = {}
    for figure in found:
        group, label = (single, "objective") if figure.labels.get(FIELD) == "objective" else (together, "objectives")
        name = figure.labels.get(label, "")
        group.setdefault(name, {})[figure.labels.get("outcome", "")] = max(0.0, figure.value)
    return _outcomes(single), _outcomes(together)


def _outcomes(counts: Mapping[str, Mapping[str, float]]) -> dict[str, Outcome]:
    return {name: Outcome(count.get("met", 0.0), count.get("violated", 0.0)) for name, count in counts.items()}


def signals_of(
    *, steps: list[Figure], load: list[Figure], outcomes: list[Figure], window: int, pods: int
) -> Signals | Unobserved:
    """All of one service, or why it is not known. `pods` are those that should be scraped."""
    by_name = named(load)
    if "cores" not in by_name or "age" not in by_name:
        return Unobserved(Missing.NOT_SCRAPED, "Prometheus has no sample of the service's control port")
    scraped = by_name.get("pods", 0.0)
    if scraped < pods / 2:
        return Unobserved(Missing.PARTIAL, f"{scraped:.0f} of {pods} ready pods are scraped")
    single, together = outcomes_of(outcomes)
    return Signals(
        at=load[0].at,
        age_seconds=max(0.0, by_name["age"]),
        window_seconds=float(window),
        cores=int(by_name["cores"]),
        pods=int(scraped),
        steps=step_window(steps, window),
        load=load_of(by_name, window),
        outcomes=single,
        goodput=_largest(together),
    )


def _largest(together: Mapping[str, Outcome]) -> Outcome | None:
    """The set of objectives most requests are counted against: an edit leaves the older set's counters standing."""
    return max(together.values(), key=lambda outcome: outcome.total, default=None)
