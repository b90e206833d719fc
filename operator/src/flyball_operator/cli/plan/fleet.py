"""Asks Prometheus for a fleet's past, window by window, and makes a `ServicePast` of each service."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.contract import MetricName
from flyball_operator.api.v1alpha1 import (
    DEFAULT_MIN_NUM_ACTIVE_SEQS,
    DEFAULT_MIN_NUM_SCHEDULED_TOKENS,
    InferenceService,
    Mode,
)
from flyball_operator.cli.plan import fleet_queries
from flyball_operator.cli.plan.fleet_answers import (
    Figures,
    Group,
    by_group,
    ceilings,
    pods_of,
    share,
    vllm_arrivals,
    window_of,
)
from flyball_operator.cli.plan.fleet_queries import Grouping
from flyball_operator.cli.plan.modelled import Learnt, capacity_of, learnt
from flyball_operator.cli.plan.objectives import LookBack
from flyball_operator.cli.plan.windows import Kind, ServicePast, Share, Window
from flyball_operator.prometheus import answers, queries
from flyball_operator.prometheus.reader import Source
from flyball_operator.tuning.observe.signals import Identity, RequestLoad, Signals
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span, TuningSpec, tuning_spec

_SEQS: Final = "max_num_seqs"
_TOKENS: Final = "max_num_batched_tokens"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked for. `services`: those of the cluster by identity, none where it is not asked.

    `objectives`: of all services, in place of their own; empty where each has its own. `gpus`: of each replica, in
    place of what services say. `by`: the labels that make up a service of plain vLLM.
    """

    look_back: LookBack
    objectives: tuple[LatencyObjective, ...]
    services: Mapping[Identity, InferenceService]
    by: tuple[str, ...]
    gpus: int | None
    namespace: str | None


def fleet(source: Source, asked: Asked) -> list[ServicePast]:
    """All services that are seen, by name. Raises `PrometheusError`."""
    return sorted([*_plugin(source, asked), *_vllm(source, asked)], key=lambda past: past.name)


def _vllm(source: Source, asked: Asked) -> list[ServicePast]:
    group, seconds = fleet_queries.vllm(asked.by, asked.namespace), asked.look_back.seconds
    metrics = dict.fromkeys(one.metric for one in asked.objectives)
    windows: dict[Group, list[Window]] = {}
    left_out: Counter[Group] = Counter()
    edges: dict[Group, dict[str, tuple[float, float]]] = {}
    for at in asked.look_back.ends():
        text = fleet_queries.requests(group, seconds, metrics)
        for name, figures in by_group(source.query(text, at), group.labels).items():
            arrivals = vllm_arrivals(figures, seconds)
            window = None if arrivals is None else window_of(figures, at=at, seconds=seconds, arrivals=arrivals)
            windows.setdefault(name, [])
            if window is None:
                left_out[name] += 1
                continue
            met = {one.name: found for one in asked.objectives if (found := share(figures, one)) is not None}
            between = {name: bounds for name, (_, bounds) in met.items() if bounds[0] < bounds[1]}
            edges.setdefault(name, {}).update(between)
            windows[name].append(replace(window, met={key: found for key, (found, _) in met.items()}))
    now = _pods(source, group, fleet_queries.now(group, fleet_queries.VLLM_GAUGES), asked)
    # They are told by what the plugin says.
    twice = _pods(source, group, fleet_queries.with_plugin(group), asked)
    return [
        ServicePast(
            name="/".join(filter(None, name)) or "vLLM",
            kind=Kind.VLLM,
            objectives=asked.objectives,
            windows=tuple(found),
            now=pods_of(now.get(name)),
            gpus=asked.gpus,
            edges=edges.get(name, {}),
            left_out=left_out[name],
        )
        for name, found in windows.items()
        if pods_of(twice.get(name)) < max(1, pods_of(now.get(name)))
    ]


def _plugin(source: Source, asked: Asked) -> list[ServicePast]:
    group, seconds = fleet_queries.plugin(asked.namespace), asked.look_back.seconds
    seen: dict[Identity, list[tuple[Window, Signals]]] = {}
    left_out: Counter[Identity] = Counter()
    for at in asked.look_back.ends():
        gauges = by_group(
            source.query(fleet_queries.gauges(group, fleet_queries.PLUGIN_GAUGES, seconds), at), group.labels
        )
        if not gauges:
            continue
        signals_of_all = _signals(source, group.matchers, seconds, at)
        for (namespace, uid), figures in gauges.items():
            identity = namespace, uid
            signals, found = signals_of_all.get(identity), seen.setdefault(identity, [])
            window = None if signals is None else _plugin_window(figures, signals, at=at, seconds=seconds)
            if signals is None or window is None:
                left_out[identity] += 1
            else:
                found.append((window, signals))
    if not seen:
        return []
    started: dict[Group, dict[str, float]] = {}
    # As engines were started in the last window of each service: before, they may have had others.
    for last in sorted({found[-1][0].at for found in seen.values() if found}):
        started |= ceilings(source.query(fleet_queries.ceilings(group, seconds), last), group.labels)
    now = _pods(source, group, fleet_queries.now(group, fleet_queries.PLUGIN_GAUGES), asked)
    return [
        replace(
            _plugin_past(identity, found, started.get(identity, {}), pods_of(now.get(identity)), asked),
            left_out=left_out[identity],
        )
        for identity, found in seen.items()
    ]


def _plugin_window(figures: Figures, signals: Signals, *, at: float, seconds: float) -> Window | None:
    load = signals.load
    if not isinstance(load, RequestLoad):
        return None
    came = load.arrivals + load.refused
    return window_of(figures, at=at, seconds=seconds, arrivals=came, refused=load.refused)


def _pods(source: Source, group: Grouping, text: str, asked: Asked) -> Mapping[Group, Figures]:
    """The answer at the end of the look-back."""
    return by_group(source.query(text, asked.look_back.end), group.labels)


def _signals(source: Source, targets: str, seconds: int, at: float) -> dict[Identity, Signals]:
    """What the tuner would have seen of each service, over a window of this length."""
    load = answers.load_figures(source.query(queries.load(seconds, targets), at))
    outcomes = answers.count_figures(source.query(queries.outcomes(seconds, targets), at))
    steps = answers.step_figures(source.query(queries.steps(seconds, targets), at))
    found = {
        identity: answers.signals_of(
            identity,
            steps=steps,
            load=load,
            outcomes=outcomes,
            # Which pods were Ready is known to nobody any more: those that were scraped stand for all, and no job has
            # more than there were.
            scrapes=answers.scrapes_of(jobs, sys.maxsize),
            window=seconds,
            pods=1,
        )
        for identity, jobs in load.services.items()
    }
    return {
        identity: signals
        for identity, signals in found.items()
        if isinstance(signals, Signals) and signals.impossible is None
    }


def _plugin_past(
    identity: Identity,
    seen: Sequence[tuple[Window, Signals]],
    started: Mapping[str, float],
    now: int,
    asked: Asked,
) -> ServicePast:
    service = asked.services.get(identity)
    spec = _spec(service, started, asked.objectives)
    model = learnt(signals for _, signals in seen)
    if not spec.envelope.tokens.most:
        model = Learnt(None, None, f"its engines do not tell their ceilings ({MetricName.CEILING})")
    return ServicePast(
        name="/".join(identity) if service is None else f"{service.metadata.namespace}/{service.metadata.name}",
        kind=Kind.PLUGIN,
        objectives=spec.objectives,
        windows=tuple(
            replace(
                window,
                met=_met(signals, spec),
                capacity=capacity_of(model.model, signals, signals.load, spec)
                if model.model is not None and isinstance(signals.load, RequestLoad)
                else None,
            )
            for window, signals in seen
        ),
        now=now,
        ceiling=started.get(_SEQS),
        gpus=asked.gpus if asked.gpus is not None or service is None else gpus_of_replica(service),
        error=model.error,
        doubt=model.doubt,
    )


def _met(signals: Signals, spec: TuningSpec) -> dict[str, Share]:
    counted = {one.name: signals.outcomes.get(one.id) for one in spec.objectives}
    return {
        name: Share(counts.met / counts.total, counts.met / counts.total, counts.total)
        for name, counts in counted.items()
        if counts is not None and counts.total > 0.0
    }


def _spec(
    service: InferenceService | None, started: Mapping[str, float], objectives: tuple[LatencyObjective, ...]
) -> TuningSpec:
    """What capacity is judged by: the service's spec, or the ceilings that its engines tell."""
    seqs, tokens = int(started.get(_SEQS, 0)), int(started.get(_TOKENS, 0))
    if service is not None:
        own = service.spec.workload is None or not (seqs and tokens)
        spec = tuning_spec(service.spec, ceilings=None if own else (seqs, tokens))
        return replace(spec, objectives=objectives or spec.objectives)
    least_seqs, least_tokens = DEFAULT_MIN_NUM_ACTIVE_SEQS, DEFAULT_MIN_NUM_SCHEDULED_TOKENS
    envelope = Envelope(Span(min(least_seqs, seqs), seqs), Span(min(least_tokens, tokens), tokens))
    return TuningSpec(Mode.AUTO, envelope, objectives)


def gpus_of_replica(service: InferenceService) -> int | None:
    """Devices of what counts as a replica of a service here: a pod that serves, with its workers. None if not known."""
    parallel = service.spec.parallelism
    return parallel.devices_per_core * parallel.cores_per_pod if service.spec.has_devices else None
