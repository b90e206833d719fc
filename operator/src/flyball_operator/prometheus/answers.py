"""Turns Prometheus' answers into figures, trusting nothing: wrong forms are refused, NaN and infinities are absent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final, NamedTuple

from flyball_engine.contract import StepKind
from flyball_operator.prometheus.queries import CELLS, FIELD, JOB, NAMESPACE, PRESENT, UID
from flyball_operator.tuning.observe.signals import (
    Applied,
    Attainment,
    CellKey,
    Identity,
    Missing,
    ObjectiveCounts,
    OrderOutcome,
    RequestLoad,
    Signals,
    StepWindow,
    Sums,
    Unobserved,
)


class BadVectorError(Exception):
    """An answer does not have the form of an instant vector."""


#: Characters of a figure at most.
_LONGEST: Final = 64
_TIMES: Final = frozenset({float, int})
_STEP_FIELDS: Final = frozenset(f.name for f in fields(Sums))
#: Figures of the load that are the same however many targets lead to an engine.
_NO_SUMS: Final = frozenset({"cores", "pods", "age", "interval", "kv_tokens", "uneven"})
#: Cells that are kept, so that all services have the same ones: twice those that engines have.
_MOST_CELLS: Final = 84
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


def samples_of(answer: Any) -> Iterator[tuple[dict[str, str], float, str]]:
    """Labels, time and value of each sample of an instant vector. Raises `BadVectorError` on another form.

    By hand: there are a hundred thousand in a tick of many services, and a validator takes as long as all the rest.
    """
    if not isinstance(answer, list):
        raise BadVectorError("not an instant vector: no list of samples")
    for sample in answer:
        try:
            labels, (at, text) = sample["metric"], sample["value"]
            sound = type(text) is str and type(at) in _TIMES
            # Raises for what is no string, in a third of the time that looking at each type takes.
            "".join(labels.values())
        except (AttributeError, KeyError, TypeError, ValueError):
            sound = False
        if not sound or len(text) > _LONGEST:
            raise BadVectorError("not an instant vector: a sample has labels, a time, and a value of 64 characters")
        yield labels, at, text


def figures(answer: Any) -> Figures:
    """An instant vector by service. Raises `BadVectorError` on another form."""
    found: dict[Identity, list[Figure]] = {}
    for labels, at, text in samples_of(answer):
        try:
            value = float(text)
        except ValueError:
            continue
        if (uid := labels.get(UID)) is None or not math.isfinite(value):
            continue
        identity = (labels.get(NAMESPACE, ""), uid)
        if (group := found.get(identity)) is None:
            group = found[identity] = []
        group.append(Figure(labels, value, at))
    return found


def step_window(found: list[Figure], window: int) -> StepWindow | Unobserved:
    """The steps of a window, or why they are not known. A sum that is not there is zero: see `queries.steps`."""
    seen, cells = False, dict[tuple[str, str], dict[str, float]]()
    for labels, value, _ in found:
        field = labels.get(FIELD, "")
        if field in _STEP_FIELDS:
            cell = (labels.get("bucket", ""), labels.get("kind", ""))
            if (sums := cells.get(cell)) is None:
                sums = cells[cell] = {}
            sums[field] = max(0.0, value)
        elif field == CELLS:
            seen = True
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


@lru_cache(_MOST_CELLS)
def _cell(bucket: str, kind: str) -> CellKey | None:
    try:
        return CellKey(int(bucket), StepKind(kind))
    except ValueError:
        return None


def named(found: list[Figure]) -> dict[str, float]:
    """Figures by the label `field`."""
    return {figure.labels[FIELD]: figure.value for figure in found if FIELD in figure.labels}


def load_of(by_name: Mapping[str, float], window: int) -> RequestLoad | Unobserved:
    """The load, or why it is not known: gauges are needed, and counters with two scrapes in the window."""
    needed = ("running", "waiting", "ended", "finished", "prompt_tokens", "generated_tokens")
    missing = [name for name in needed if name not in by_name]
    if missing:
        return Unobserved(Missing.TOO_FEW_SAMPLES, f"no value for {', '.join(missing)} in the last {window} s")
    return RequestLoad(
        arrivals=max(0.0, by_name["ended"] + by_name.get("grown", 0.0)) / window,
        finished=by_name["finished"],
        prompt_tokens=by_name["prompt_tokens"],
        cached_tokens=by_name.get("cached_tokens", 0.0),
        generated_tokens=by_name["generated_tokens"],
        running=by_name["running"],
        waiting=by_name["waiting"],
        kv_tokens=by_name.get("kv_tokens", 0.0),
        held_tokens=by_name.get("held_tokens", 0.0),
        refused=max(0.0, by_name.get("shed", 0.0)) / window,
        uneven=max(1.0, by_name.get("uneven", 1.0)),
    )


def attained_of(found: list[Figure]) -> Attainment:
    """What came of requests as one job has it: the one that counted the most of them."""
    single = [figure for figure in found if figure.labels.get(FIELD) == "objective"]
    counted = dict.fromkeys(sorted({figure.labels.get(JOB, "") for figure in found}), 0.0)
    for figure in single:
        counted[figure.labels.get(JOB, "")] += figure.value
    job = max(counted, key=counted.__getitem__, default="")
    return Attainment(outcomes=outcomes_of(of_job(single, job)), order=_order_of(named(of_job(found, job))))


def _order_of(by_name: Mapping[str, float]) -> OrderOutcome | None:
    names = [name.name for name in fields(OrderOutcome)]
    if any(name not in by_name for name in names):
        return None
    return OrderOutcome(**{name: max(0.0, by_name[name]) for name in names})


def outcomes_of(found: list[Figure]) -> dict[str, ObjectiveCounts]:
    """Outcomes by objective id."""
    counts: dict[str, dict[str, float]] = {}
    for figure in found:
        name = figure.labels.get("objective", "")
        counts.setdefault(name, {})[figure.labels.get("outcome", "")] = max(0.0, figure.value)
    return {name: ObjectiveCounts(count.get("met", 0.0), count.get("violated", 0.0)) for name, count in counts.items()}


def ran_of(found: list[Figure]) -> Ran:
    """The limits in effect, where both the least and the most are known."""
    by_field: dict[str, dict[str, float]] = {"least": {}, "most": {}}
    for figure in found:
        by_field.get(figure.labels.get(FIELD, ""), {})[figure.labels.get("knob", "")] = figure.value
    least, most = by_field["least"], by_field["most"]
    return {knob: (least[knob], most[knob]) for knob in sorted(least.keys() & most.keys())}


class Scrapes(NamedTuple):
    """Who scrapes a service. `job` is the one that is believed, and `interval` the seconds between its scrapes.

    `share`: by which its sums are multiplied, as several of its targets may lead to one engine. `twice`: what else
    leads to the same pods, for people; empty if nothing does.
    """

    job: str
    interval: float = 0.0
    share: float = 1.0
    twice: str = ""


#: Of a service that no job scrapes.
UNSCRAPED: Final = Scrapes("")


def scrapes_of(load: list[Figure], ready: int) -> Scrapes:
    """Of the jobs that scrape a service's pods the one to be believed: that of the most pods, then the fastest one.

    Of pods only as many count as are `ready`, and more than that count against a job: where it honours labels, one pod
    can claim to be many. Taking figures of several jobs would count requests twice, or hold the steps of one scrape
    against the seconds of another.
    """

    def rank(name: str) -> tuple[float, float, float, str]:
        pods = jobs[name].get("pods", 0.0)
        return -min(pods, ready), max(pods, ready), jobs[name].get("interval", math.inf), name

    jobs = {job: named(of_job(load, job)) for job in {figure.labels.get(JOB, "") for figure in load}}
    if not jobs:
        return UNSCRAPED
    job = min(jobs, key=rank)
    problems = []
    if len(jobs) > 1:
        names = ", ".join(f"`{name}`" for name in sorted(jobs))
        problems.append(f"jobs {names} scrape its pods; only `{job}` is counted, remove the others")
    cores = jobs[job].get("cores", 1.0)
    share = cores / max(cores, jobs[job].get("series", cores))
    if share < 1.0:
        problems.append(
            f"job `{job}` has several targets for one engine; only one is counted, drop the others (init containers)"
        )
    return Scrapes(job, jobs[job].get("interval", 0.0), share, "; ".join(problems))


def of_job(found: list[Figure], job: str) -> list[Figure]:
    """The figures of one job."""
    return [figure for figure in found if figure.labels.get(JOB, "") == job]


def _once(found: list[Figure], scrapes: Scrapes) -> list[Figure]:
    """What one job says, its sums as if one of its targets led to each engine."""
    if scrapes.share == 1.0:
        return of_job(found, scrapes.job)
    return [
        figure if figure.labels.get(FIELD) in _NO_SUMS else figure._replace(value=figure.value * scrapes.share)
        for figure in of_job(found, scrapes.job)
    ]


def signals_of(
    *,
    steps: list[Figure] | None,
    load: list[Figure],
    outcomes: list[Figure],
    scrapes: Scrapes,
    window: int,
    pods: int,
) -> Signals | Unobserved:
    """All of one service, or why it is not known. `pods` are those that should be scraped, and `scrapes` who does.

    `steps`: None where they were not asked for.
    """
    load, outcomes = (_once(found, scrapes) for found in (load, outcomes))
    by_name = named(load)
    if "cores" not in by_name or "age" not in by_name:
        return Unobserved(Missing.NOT_SCRAPED, f"Prometheus has no series {PRESENT} of the service")
    scraped = by_name.get("pods", 0.0)
    if scraped < pods / 2:
        return Unobserved(Missing.PARTIAL, f"job `{scrapes.job}` scrapes {scraped:.0f} of {pods} Ready pods")
    return Signals(
        at=load[0].at,
        twice=scrapes.twice,
        age_seconds=max(0.0, by_name["age"]),
        window_seconds=float(window),
        cores=int(by_name["cores"]),
        pods=int(scraped),
        unseen=max(0, pods - int(scraped)),
        steps=None if steps is None else step_window(_once(steps, scrapes), window),
        load=load_of(by_name, window),
        outcomes=outcomes_of(outcomes),
        applied=_applied_of(by_name),
    )


def _applied_of(by_name: Mapping[str, float]) -> Applied | None:
    try:
        return Applied(by_name["epoch"], by_name["generation"], by_name["trips"])
    except KeyError:
        return None
