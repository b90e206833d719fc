"""Turns Prometheus' answers into figures, trusting nothing: wrong forms are refused, NaN and infinities are absent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from flyball_engine.contract import MOST_DRAFTS, StepKind
from flyball_operator.prometheus.queries import (
    BIAS,
    CELLS,
    COMPUTED_PROMPT_TOKENS,
    COMPUTED_PROMPT_TOKENS_SQUARED,
    COUNTED,
    DRAFTS,
    ENDED,
    FIELD,
    JOB,
    NAMESPACE,
    OPEN,
    POD,
    PRESENT,
    SCRAPED,
    UID,
)
from flyball_operator.prometheus.vector import Vector
from flyball_operator.tuning.observe.signals import (
    Applied,
    Attainment,
    CellKey,
    DraftSums,
    Identity,
    Missing,
    ObjectiveCounts,
    OrderOutcome,
    PodCounts,
    PodOutcomes,
    PromptSums,
    RequestLoad,
    Signals,
    StepWindow,
    Sums,
    Unobserved,
)

#: Where each sum over steps is among those of its cell.
_STEP_FIELDS: Final = {name: number for number, name in enumerate(Sums._fields)}
#: Figures of the load that are the same however many targets lead to an engine.
_NO_SUMS: Final = frozenset({"cores", "pods", "age", "interval", "kv_tokens", "uneven"})
#: Cells that are kept, so that all services have the same ones: twice those that engines have.
_MOST_CELLS: Final = 84

_Key = TypeVar("_Key", bound="str | tuple[str, ...]")
#: Figures of one service by the job that scraped it; "" where the query sums over jobs.
ByJob: TypeAlias = Mapping[str, Mapping[_Key, float]]
#: What a sum over the steps of a cell is known by: its field, and bucket and kind as labels have them.
StepKey: TypeAlias = tuple[str, str, str]
#: What a count of requests is known by: its field, where the query has several, its objective and its outcome. What is
#: of a pod has its name in place of the objective.
CountKey: TypeAlias = tuple[str, str, str]
#: Likewise of one pod: its field, its pod, its objective, empty where it counts all requests, and its outcome.
PodCountKey: TypeAlias = tuple[str, str, str, str]
#: What a limit is known by: least or most, and its name.
LimitKey: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Figures(Generic[_Key]):
    """An instant vector by service and job: `at`, the Unix time it is of, each figure by the labels that name it."""

    at: float = 0.0
    services: Mapping[Identity, ByJob[_Key]] = field(default_factory=dict)

    def of(self, identity: Identity) -> ByJob[_Key]:
        """Those of one service."""
        return self.services.get(identity, {})


#: The least and the most of each limit over a service's engine cores, by its name.
Ran = Mapping[str, tuple[float, float]]


def figures(answer: Vector, key: Callable[[Mapping[str, str]], _Key]) -> Figures[_Key]:
    """An instant vector by service, job and what `key` makes of the other labels."""
    found: dict[Identity, dict[str, dict[_Key, float]]] = {}
    groups: dict[tuple[str, str, str], dict[_Key, float]] = {}
    names = dict[_Key, _Key]()
    time = 0.0
    for sample in answer:
        labels, (at, text) = sample.metric, sample.value
        try:
            value = float(text)
        except ValueError:
            continue
        if (uid := labels.get(UID)) is None or not -math.inf < value < math.inf:
            continue
        time = at
        group = labels.get(NAMESPACE, ""), uid, labels.get(JOB, "")
        if (named := groups.get(group)) is None:
            named = groups[group] = found.setdefault(group[:2], {}).setdefault(group[2], {})
        # All services have the same object for a name: a thousand of each would take as long to make and to forget.
        if (name := names.get(given := key(labels))) is None:
            name = names[given] = given
        named[name] = value
    return Figures(time, found)


def name_of(labels: Mapping[str, str]) -> str:
    """The name of a figure of `queries.load`."""
    return labels.get(FIELD, "")


def step_key(labels: Mapping[str, str]) -> StepKey:
    """What a sum of `queries.steps` is known by; one of drafts by its position and state."""
    found = labels.get(FIELD, "")
    if found == DRAFTS:
        return found, labels.get("position", ""), labels.get("state", "")
    return found, labels.get("bucket", ""), labels.get("kind", "")


def count_key(labels: Mapping[str, str]) -> CountKey:
    """What a count of `queries.outcomes` or `queries.attainment` is known by."""
    return labels.get(FIELD, ""), labels.get("objective") or labels.get(POD, ""), labels.get("outcome", "")


def pod_count_key(labels: Mapping[str, str]) -> PodCountKey:
    """What a count of `queries.pod_outcomes` is known by."""
    return labels.get(FIELD, ""), labels.get(POD, ""), labels.get("objective", ""), labels.get("outcome", "")


def limit_key(labels: Mapping[str, str]) -> LimitKey:
    """What a limit of `queries.ran` is known by."""
    return labels.get(FIELD, ""), labels.get("knob", "")


#: How the answer to each query of `queries` is understood.
load_figures: Final = partial(figures, key=name_of)
step_figures: Final = partial(figures, key=step_key)
count_figures: Final = partial(figures, key=count_key)
pod_count_figures: Final = partial(figures, key=pod_count_key)
limit_figures: Final = partial(figures, key=limit_key)


def step_window(found: Mapping[StepKey, float], end: float, window: int) -> StepWindow | Unobserved:
    """The steps of a window, or why they are not known. A sum that is not there is zero: see `queries.steps`."""
    if (CELLS, "", "") not in found:
        return Unobserved(Missing.TOO_FEW_SAMPLES, f"no step statistics in the last {window} s")
    cells = dict[tuple[str, str], list[float]]()
    for (name, bucket, kind), value in found.items():
        number = _STEP_FIELDS.get(name)
        if number is not None:
            cell = bucket, kind
            if (figures_of_cell := cells.get(cell)) is None:
                figures_of_cell = cells[cell] = [0.0] * len(_STEP_FIELDS)
            figures_of_cell[number] = max(0.0, value)
    whole = [
        (key, sums)
        for labels_of_cell, figures_of_cell in cells.items()
        if (sums := Sums(*figures_of_cell)).of_steps and (key := _cell(*labels_of_cell)) is not None
    ]
    # In an order of their own: sums over cells shall not differ in their last digit by the order of Prometheus' series.
    whole.sort(key=itemgetter(0))
    prompts, drafts = _prompts_of(found), _drafts_of(found)
    return StepWindow(start=end - window, end=end, cells=dict(whole), prompts=prompts, drafts=drafts)


def _prompts_of(found: Mapping[StepKey, float]) -> PromptSums | None:
    try:
        tokens, squares = (found[name, "", ""] for name in (COMPUTED_PROMPT_TOKENS, COMPUTED_PROMPT_TOKENS_SQUARED))
    except KeyError:
        return None
    return PromptSums(tokens=max(0.0, tokens), squares=max(0.0, squares))


def _drafts_of(found: Mapping[StepKey, float]) -> tuple[DraftSums, ...]:
    """What became of drafts, from the first position on, as long as all of one is known."""
    drafts: list[DraftSums] = []
    while len(drafts) < MOST_DRAFTS:
        keys = [(DRAFTS, str(len(drafts) + 1), state) for state in DraftSums._fields]
        if any(key not in found for key in keys):
            break
        drafts.append(DraftSums(*(max(0.0, found[key]) for key in keys)))
    return tuple(drafts)


@lru_cache(_MOST_CELLS)
def _cell(bucket: str, kind: str) -> CellKey | None:
    try:
        return CellKey(int(bucket), StepKind(kind))
    except ValueError:
        return None


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
        used_tokens=by_name.get("used_tokens"),
        refused=max(0.0, by_name.get("shed", 0.0)) / window,
        uneven=max(1.0, by_name.get("uneven", 1.0)),
    )


def attained_of(found: ByJob[CountKey]) -> Attainment:
    """What came of requests as one job has it: the one that counted the most of them."""
    requests = {
        job: {key: value for key, value in said.items() if key[0] == "objective"} for job, said in sorted(found.items())
    }
    job = max(requests, key=lambda name: sum(requests[name].values()), default="")
    order = _order_of({name: value for (name, _, _), value in found.get(job, {}).items()})
    biases = {pod: value for (name, pod, _), value in found.get(job, {}).items() if name == BIAS and value > 0.0}
    return Attainment(outcomes=outcomes_of(requests.get(job, {})), order=order, biases=biases)


def _order_of(by_name: Mapping[str, float]) -> OrderOutcome | None:
    names = [name.name for name in fields(OrderOutcome)]
    if any(name not in by_name for name in names):
        return None
    return OrderOutcome(**{name: max(0.0, by_name[name]) for name in names})


def outcomes_of(found: Mapping[CountKey, float]) -> dict[str, ObjectiveCounts]:
    """Outcomes by objective id."""
    counts: dict[str, dict[str, float]] = {}
    for (_, objective, outcome), value in found.items():
        counts.setdefault(objective, {})[outcome] = max(0.0, value)
    return {name: ObjectiveCounts(count.get("met", 0.0), count.get("violated", 0.0)) for name, count in counts.items()}


def pod_outcomes_of(found: ByJob[PodCountKey]) -> PodOutcomes:
    """Outcomes by pod, as one job has them: the one that scrapes most pods, then of most requests.

    A pod that is scraped is there, even where it has counted nothing. A request counts once its outcome is certain: the
    open ones of now are added, and those of the window's start that ended in it do not count a second time. Where the
    plugin of a pod does not tell of open ones, those of no pod count: all are judged alike.
    """

    def rank(job: str) -> tuple[int, float, str]:
        said = found[job]
        pods = sum(name == SCRAPED for name, *_ in said)
        return -pods, -sum(value for (name, *_), value in said.items() if name == COUNTED), job

    said = found[min(found, key=rank)] if found else {}
    pods: dict[str, dict[CountKey, float]] = {pod: {} for name, pod, *_ in said if name == SCRAPED}
    telling = {pod for name, pod, *_ in said if name == OPEN}
    counting = (COUNTED, OPEN) if pods.keys() <= telling else (COUNTED,)
    for (name, pod, objective, outcome), value in said.items():
        if name in counting and pod in pods:
            key = COUNTED, objective, outcome
            pods[pod][key] = pods[pod].get(key, 0.0) + value
    return {
        pod: PodCounts(
            outcomes_of(counts),
            answered=max(0.0, said.get((ENDED, pod, "", "finished"), 0.0)),
            failed=max(0.0, said.get((ENDED, pod, "", "error"), 0.0)),
        )
        for pod, counts in pods.items()
    }


def ran_of(found: ByJob[LimitKey]) -> Ran:
    """The limits in effect, where both the least and the most are known."""
    limits = found.get("", {})
    names = sorted({knob for _, knob in limits})
    return {
        knob: (limits["least", knob], limits["most", knob])
        for knob in names
        if ("least", knob) in limits and ("most", knob) in limits
    }


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


def scrapes_of(jobs: ByJob[str], ready: int) -> Scrapes:
    """Of the jobs that scrape a service's pods the one to be believed: that of the most pods, then the fastest one.

    Of pods only as many count as are `ready`, and more than that count against a job: where it honours labels, one pod
    can claim to be many. Taking figures of several jobs would count requests twice, or hold the steps of one scrape
    against the seconds of another.
    """

    def rank(name: str) -> tuple[float, float, float, str]:
        pods = jobs[name].get("pods", 0.0)
        return -min(pods, ready), max(pods, ready), jobs[name].get("interval", math.inf), name

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


def _once(found: ByJob[_Key], scrapes: Scrapes, no_sums: Set[object] = frozenset()) -> Mapping[_Key, float]:
    """What one job says, its sums as if one of its targets led to each engine."""
    said = found.get(scrapes.job, {})
    if scrapes.share == 1.0:
        return said
    return {key: value if key in no_sums else value * scrapes.share for key, value in said.items()}


def signals_of(
    identity: Identity,
    *,
    steps: Figures[StepKey] | None,
    load: Figures[str],
    outcomes: Figures[CountKey],
    scrapes: Scrapes,
    window: int,
    pods: int,
) -> Signals | Unobserved:
    """All of one service, or why it is not known. `pods` are those that should be scraped, and `scrapes` who does.

    `steps`: None where they were not asked for.
    """
    by_name = _once(load.of(identity), scrapes, _NO_SUMS)
    if "cores" not in by_name or "age" not in by_name:
        return Unobserved(Missing.NOT_SCRAPED, f"Prometheus has no series {PRESENT} of the service")
    scraped = by_name.get("pods", 0.0)
    if scraped < pods / 2:
        return Unobserved(Missing.PARTIAL, f"job `{scrapes.job}` scrapes {scraped:.0f} of {pods} Ready pods")
    return Signals(
        at=load.at,
        twice=scrapes.twice,
        age_seconds=max(0.0, by_name["age"]),
        window_seconds=float(window),
        cores=int(by_name["cores"]),
        pods=int(scraped),
        unseen=max(0, pods - int(scraped)),
        steps=None if steps is None else step_window(_once(steps.of(identity), scrapes), steps.at, window),
        load=load_of(by_name, window),
        outcomes=outcomes_of(_once(outcomes.of(identity), scrapes)),
        applied=_applied_of(by_name),
    )


def _applied_of(by_name: Mapping[str, float]) -> Applied | None:
    try:
        return Applied(by_name["epoch"], by_name["generation"], by_name["trips"])
    except KeyError:
        return None
