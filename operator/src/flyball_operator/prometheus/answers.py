"""Turns Prometheus' answers into figures, trusting nothing: wrong forms are refused, NaN and infinities are absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

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
from flyball_operator.prometheus.queries import CELLS, FIELD, NAMESPACE, UID

#: A service's namespace and UID, from target labels.
Identity = tuple[str, str]


class BadAnswerError(Exception):
    """An answer does not have the form of an instant vector."""


class _Sample(TypedDict):
    metric: dict[str, str]
    value: tuple[float, Annotated[str, Field(max_length=64)]]


_VECTOR: Final = TypeAdapter(list[_Sample])
_STEP_FIELDS: Final = frozenset(f.name for f in fields(Sums))
#: Sums that are above zero wherever there was a step.
_OF_ANY_STEP: Final = frozenset({"steps", "seconds", "seconds_squared", "tokens"})


class Figure(NamedTuple):
    """One figure of one service: its labels, its value, and the Unix time it was evaluated for.

    A tuple, and samples are no models: there are some hundred of each service in a tick.
    """

    labels: Mapping[str, str]
    value: float
    at: float


Figures = Mapping[Identity, list[Figure]]
#: The least and the most of each limit over a service's engine cores, by its name.
Ran = Mapping[str, tuple[float, float]]


def figures(answer: Any) -> Figures:
    """An instant vector by service. Raises `BadAnswerError` on another form."""
    try:
        samples = _VECTOR.validate_python(answer)
    except ValidationError as error:
        raise BadAnswerError(f"not an instant vector: {error.error_count()} errors") from error
    found: dict[Identity, list[Figure]] = {}
    for sample in samples:
        labels, (at, text) = sample["metric"], sample["value"]
        value = _number(text)
        if value is not None and UID in labels:
            found.setdefault((labels.get(NAMESPACE, ""), labels[UID]), []).append(Figure(labels, value, at))
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def step_window(found: list[Figure], window: int) -> StepWindow | Unobserved:
    """The steps of a window, or why they are not known. A sum that is not there is zero: see `queries.steps`."""
    seen, cells = False, dict[tuple[str, str], dict[str, float]]()
    for labels, value, _ in found:
        field = labels.get(FIELD, "")
        seen |= field == CELLS
        if field in _STEP_FIELDS:
            cells.setdefault((labels.get("bucket", ""), labels.get("kind", "")), {})[field] = max(0.0, value)
    if not seen:
        return Unobserved(Missing.TOO_FEW_SAMPLES, f"no step statistics in the last {window} s")
    whole = [
        (key, Sums(**sums))
        for labels_of_cell, sums in cells.items()
        if sums.keys() >= _OF_ANY_STEP and (key := _cell(*labels_of_cell)) is not None
    ]
    # In an order of their own: sums over cells shall not differ in their last digit by the order of Prometheus' series.
    whole.sort(key=lambda cell: (cell[0].bucket, cell[0].kind))
    end = found[0].at
    return StepWindow(start=end - window, end=end, cells=dict(whole))


def _cell(bucket: str, kind: str) -> CellKey | None:
    try:
        return CellKey(int(bucket), StepKind(kind))
    except ValueError:
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


def ran_of(found: list[Figure]) -> Ran:
    """The limits in effect, where both the least and the most are known."""
    by_field: dict[str, dict[str, float]] = {"least": {}, "most": {}}
    for figure in found:
        by_field.get(figure.labels.get(FIELD, ""), {})[figure.labels.get("knob", "")] = figure.value
    least, most = by_field["least"], by_field["most"]
    return {knob: (least[knob], most[knob]) for knob in sorted(least.keys() & most.keys())}


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
        unseen=max(0, pods - int(scraped)),
        steps=step_window(steps, window),
        load=load_of(by_name, window),
        outcomes=single,
        goodput=_largest(together),
    )


def _largest(together: Mapping[str, Outcome]) -> Outcome | None:
    """The set of objectives most requests are counted against: an edit leaves the older set's counters standing."""
    return max(together.values(), key=lambda outcome: outcome.total, default=None)
