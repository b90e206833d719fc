"""The PromQL the tuner asks, a fixed set for each part of all services.

Everything is summed in Prometheus by namespace and service UID, both target labels. What a pod claims about itself
names no service, and a tick costs by the service, not by the pod. Each figure carries the label `field`, so that a
group of figures is one query and one evaluation time. Means are ratios of two `increase()` over one window, in which
Prometheus' extrapolation cancels.

Of target labels only `namespace`, `pod` and the UID are needed, and `job`, which Prometheus gives. The families are
engines' own, so their names say enough of container and port. Sums are kept apart by job: several jobs may scrape the
same pods, and one of them is believed (`answers.scrapes_of`). How many targets of a job lead to an engine is a figure
of its own: to sum over one of them alone would cost Prometheus a third more.
"""

from __future__ import annotations

import json
from typing import Final

from flyball_engine.contract import STEP_FIELDS, MetricName
from flyball_operator.api.names import LABEL_SERVICE_UID
from flyball_operator.api.shards import Shard
from flyball_operator.tuning.tunables import TUNABLES

NAMESPACE: Final = "namespace"
#: The pod label as Prometheus spells it.
UID: Final = LABEL_SERVICE_UID.replace(".", "_").replace("/", "_").replace("-", "_")
POD: Final = "pod"
JOB: Final = "job"
FIELD: Final = "field"
#: The field of the number of cells.
CELLS: Final = "cells"
#: The fields of what was computed of prompts, and of its squares. Those of `load` are of requests that finished.
COMPUTED_PROMPT_TOKENS: Final = "computed_prompt_tokens"
COMPUTED_PROMPT_TOKENS_SQUARED: Final = "computed_prompt_tokens_squared"
#: The field of what became of drafts, by position and state.
DRAFTS: Final = "drafts"
_PREFILL: Final = 'phase="prefill"'
#: The family whose series say which pods are scraped: there is one for each engine core, from its start on.
PRESENT: Final = MetricName.RUNNING

#: Series without a pod would all be taken for one pod's. Those without a namespace are no service's.
_NAMED: Final = f'{POD}!=""'
_TARGETS: Final = f'{_NAMED},{UID}!=""'


#: Parts of all services, by what their UIDs begin with: of random UIDs each has about a third. An answer is a third as
#: large, and what fails in one part, such as series that cannot be matched, leaves the others seen.
_PARTS: Final = ('=~"[0-4].*"', '=~"[5-9].*"', '=~"[^0-9].*"')
PARTS: Final = len(_PARTS)
_ALL: Final = Shard()


def part_of(uid: str) -> int:
    """The number of the part that a service is in."""
    first = uid[:1]
    return 0 if "0" <= first <= "4" else 1 if "5" <= first <= "9" else 2


def part(number: int, shard: Shard = _ALL) -> str:
    """The matchers of the pods of one part of a shard."""
    found = f"{_NAMED},{UID}{_PARTS[number]}"
    if shard.count == 1:
        return found
    pattern, matches = shard.pattern
    return f"{found},{UID}{'=~' if matches else '!~'}{json.dumps(pattern)}"


def targets(only: tuple[str, str] | None = None) -> str:
    """The matchers of pods: of all services, or of one by namespace and UID."""
    if only is None:
        return _TARGETS
    # PromQL's strings have JSON's escapes.
    namespace, uid = (json.dumps(value, ensure_ascii=False) for value in only)
    return f"{_NAMED},{NAMESPACE}={namespace},{UID}={uid}"


def _selected(metric: str, targets: str, extra: str = "") -> str:
    return f"{metric}{{{targets}{',' + extra if extra else ''}}}"


def _by(function: str, labels: tuple[str, ...], expression: str) -> str:
    return f"{function} by ({', '.join((NAMESPACE, UID, *labels))}) ({expression})"


def _aggregate(function: str, expression: str, *labels: str) -> str:
    """One figure of each service, job and `labels`."""
    return _by(function, (JOB, *labels), expression)


def _engines(function: str, each: str, expression: str) -> str:
    """One figure of each service and job, out of one of `each` engine core, however many targets lead to it."""
    return _aggregate(function, _aggregate(each, expression, POD, "engine"))


def _increase(metric: str, window: int, targets: str, *labels: str, extra: str = "") -> str:
    return _aggregate("sum", f"increase({_selected(metric, targets, extra)}[{window}s])", *labels)


def _named(field: str, expression: str) -> str:
    return f'label_replace({expression}, "{FIELD}", "{field}", "", "")'


def _together(figures: dict[str, str]) -> str:
    return " or ".join(_named(field, expression) for field, expression in figures.items())


def steps(window: int, targets: str = _TARGETS) -> str:
    """Sums over the steps of a window in seconds, by bucket and kind; `field` is that of `contract.StepSums`.

    Only what is above zero: of an engine's 42 cells most are idle, and each has seven sums. `cells` counts all of them,
    which tells an idle service from one that is not seen. Prompts are those of the engines that tell of their squares.
    """
    tokens = f"increase({_selected(MetricName.TOKENS, targets, _PREFILL)}[{window}s])"
    squares = f"increase({_selected(MetricName.COMPUTED_PROMPT_TOKENS_SQUARED, targets)}[{window}s])"
    # Both by their increase: a scrape that fails ends the series of now, but not what the window has of them.
    prompts = {
        COMPUTED_PROMPT_TOKENS: _aggregate("sum", f"{tokens} and on ({NAMESPACE}, {JOB}, {POD}, engine) {squares}"),
        COMPUTED_PROMPT_TOKENS_SQUARED: _aggregate("sum", squares),
    }
    sums = {field: _increase(metric, window, targets, "bucket", "kind") for field, metric in STEP_FIELDS.items()}
    moved = {field: f"{increase} > 0" for field, increase in sums.items()}
    drafts = _increase(MetricName.DRAFT_POSITIONS, window, targets, "position", "state")
    return _together({CELLS: _aggregate("count", sums["steps"]), **prompts, DRAFTS: drafts, **moved})


def load(window: int, targets: str = _TARGETS) -> str:
    """Queue, lengths, what cores apply, and the state of the scrapes; `field` names the figure."""
    running, waiting = (_selected(name, targets) for name in (MetricName.RUNNING, MetricName.WAITING))
    usage, cache = (_selected(name, targets) for name in (MetricName.KV_CACHE_USAGE, MetricName.KV_CACHE_TOKENS))
    return _together(
        {
            "cores": _engines("count", "count", running),
            "series": _aggregate("count", running),
            "running": _aggregate("sum", running),
            "waiting": _aggregate("sum", waiting),
            "uneven": _uneven(running, waiting),
            "grown": f"{_aggregate('sum', f'delta({running}[{window}s])')}"
            f" + {_aggregate('sum', f'delta({waiting}[{window}s])')}",
            "kv_tokens": _aggregate("min", cache),
            "held_tokens": _aggregate("sum", _selected(MetricName.RUNNING_KV_TOKENS, targets)),
            "used_tokens": _aggregate("sum", f"{usage} * {cache}"),
            "ended": _increase(MetricName.REQUESTS, window, targets, extra='outcome!="refused"'),
            "shed": _increase(MetricName.ADMISSIONS, window, targets, extra='decision="refused"'),
            "finished": _increase(MetricName.REQUESTS, window, targets, extra='outcome="finished"'),
            "prompt_tokens": _increase(MetricName.PROMPT_TOKENS, window, targets),
            "cached_tokens": _increase(MetricName.CACHED_PROMPT_TOKENS, window, targets),
            "generated_tokens": _increase(MetricName.GENERATED_TOKENS, window, targets),
            "age": _engines("max", "min", f"time() - timestamp({running})"),
            "pods": _aggregate("count", _aggregate("count", running, POD)),
            "interval": _engines("max", "min", _scrape_interval(running)),
            "epoch": _aggregate("sum", _selected(MetricName.SETPOINT_EPOCH, targets)),
            "generation": _aggregate("sum", _selected(MetricName.SETPOINT_GENERATION, targets)),
            "trips": _aggregate("sum", _selected(MetricName.WATCHDOG_TRIPS, targets)),
        }
    )


def _uneven(*gauges: str) -> str:
    """What the fullest core has over the mean core, in the mean of some time; NaN where nobody has any."""
    requests = " + ".join(f"avg_over_time({gauge}[{TUNABLES.compared_seconds}s])" for gauge in gauges)
    return f"{_aggregate('max', requests)} / {_aggregate('avg', requests)}"


def _scrape_interval(series: str) -> str:
    """Seconds between the scrapes of each target over two minutes, from 5 s on: NaN before the second scrape."""
    times = f"timestamp({series})[2m:5s]"
    return f"(max_over_time({times}) - min_over_time({times})) / changes({times})"


def outcomes(window: int, targets: str = _TARGETS) -> str:
    """Requests by objective and outcome in a window."""
    return _increase(MetricName.OBJECTIVE_REQUESTS, window, targets, "objective", "outcome")


#: A field of `attainment`: what the steps of a pod take over what the model says, in the mean of its cores.
BIAS: Final = "bias"


def attainment(window: int, targets: str = _TARGETS) -> str:
    """Requests by objective and outcome in a window, what the on-time order did in it, and how slow each pod is.

    `field` names the figure. The order's are of an engine, however many targets lead to it: nobody divides them by
    others.
    """
    moved, in_time, wait = (
        _selected(name, targets)
        for name in (MetricName.MOVED_BEHIND, MetricName.IN_TIME_AFTER_ALL, MetricName.LONGEST_WAIT_BEHIND_SECONDS)
    )
    return _together(
        {
            "objective": _increase(MetricName.OBJECTIVE_REQUESTS, window, targets, "objective", "outcome"),
            "moved_behind": _engines("sum", "max", f"increase({moved}[{window}s])"),
            "in_time_after_all": _engines("sum", "max", f"increase({in_time}[{window}s])"),
            "longest_wait": _aggregate("max", f"max_over_time({wait}[{window}s])"),
            BIAS: _aggregate("avg", _selected(MetricName.LOCAL_BIAS, targets), POD),
        }
    )


#: The fields of `pod_outcomes`.
SCRAPED: Final = "scraped"
COUNTED: Final = "counted"
ENDED: Final = "ended"
OPEN: Final = "open"


def pod_outcomes(window: int, targets: str) -> str:
    """Requests by pod and outcome in a window, also by objective, and which pods are scraped; `field` names the figure.

    The counters are of an engine, however many targets lead to it. `open`: by how many more requests are open of which
    the outcome is certain already.
    """
    labels = (POD, "objective", "outcome")
    counted = _selected(MetricName.OBJECTIVE_REQUESTS, targets)
    ended = _selected(MetricName.REQUESTS, targets, 'outcome=~"finished|error"')
    still_open = _selected(MetricName.OPEN_OBJECTIVE_REQUESTS, targets)
    return _together(
        {
            SCRAPED: _aggregate("count", _selected(PRESENT, targets), POD),
            COUNTED: _aggregate("max", f"increase({counted}[{window}s])", *labels),
            ENDED: _aggregate("max", f"increase({ended}[{window}s])", POD, "outcome"),
            OPEN: _aggregate("max", f"delta({still_open}[{window}s])", *labels),
        }
    )


def ran(targets: str = _TARGETS) -> str:
    """The limits in effect in engine cores by the label `knob`, `field` says whether the least or the most of them."""
    limit = _selected(MetricName.LIMIT, targets)
    return _together({"least": _by("min", ("knob",), limit), "most": _by("max", ("knob",), limit)})


#: The fields of `found`.
ENGINES: Final = "engines"
NAMELESS: Final = "nameless"
UP: Final = "up"


def found() -> str:
    """What is scraped at all, whatever labels it has: asked only where a service is not seen, to say what it lacks.

    `engines`: series of engines; `nameless`: of them those without a pod; `up`: targets of services that answer.
    """
    return _together(
        {
            ENGINES: _aggregate("count", PRESENT),
            NAMELESS: _aggregate("count", f'{PRESENT}{{{POD}=""}}'),
            UP: _aggregate("count", f'up{{{UID}!=""}} == 1'),
        }
    )
