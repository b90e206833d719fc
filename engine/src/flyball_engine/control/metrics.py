"""The engine's own metrics, made afresh from its state at each scrape.

They live in a registry of their own: vLLM's turns multi-process with several API servers, drops foreign collectors
then, and unregisters whatever is named like its own. One is in vLLM's, too, while that is its only API server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from flyball_engine.batching.batch_metrics import BATCH_SIZES
from flyball_engine.batching.gate import REFUSALS
from flyball_engine.contract import STEP_FIELDS, AnyKnob, MetricName
from flyball_engine.control.api_servers import Admissions
from flyball_engine.control.service import ControlService
from flyball_engine.control.state_file import CoreReport

_EXPIRED: Final = "expired"
_WATCHDOG: Final = "watchdog"


class RequestCounts(Protocol):
    """What requests came to, cumulative since the start."""

    @property
    def requests(self) -> Mapping[str, int]:
        """Requests by outcome."""

    @property
    def classes(self) -> Mapping[tuple[str, str], int]:
        """Requests by class and outcome."""

    @property
    def adapters(self) -> Mapping[tuple[str, str], int]:
        """Requests by adapter and outcome."""

    @property
    def adapter_tokens(self) -> Mapping[str, int]:
        """Output tokens of finished requests by adapter."""

    @property
    def unknown_class(self) -> int:
        """Requests that named a class that nobody configured."""

    @property
    def objectives(self) -> Mapping[tuple[str, str], int]:
        """Requests by objective and outcome."""

    @property
    def open_objectives(self) -> Mapping[tuple[str, str], int]:
        """Open requests by objective and outcome, where that is certain already: of now, not cumulative."""

    @property
    def all_objectives(self) -> Mapping[tuple[str, str], int]:
        """Requests by the objectives held together (joined by `,`) and outcome."""

    @property
    def generated_tokens(self) -> int:
        """Output tokens of finished requests."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of finished requests."""

    @property
    def cached_prompt_tokens(self) -> int:
        """Prompt tokens of finished requests that the prefix cache held."""


class EngineCollector(Collector):
    """Turns the cores' reports, the outcomes of writes and the counts of requests into metrics."""

    def __init__(self, service: ControlService, counts: Callable[[], RequestCounts], gate: Admissions) -> None:
        self._service = service
        self._counts = counts
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        """All metrics of `MetricName` that this engine can tell."""
        reports = self._service.engine.reports()
        cores = reports.cores
        yield _retunes(self._service.outcomes, cores)
        yield _unsupported(reports.unsupported)
        yield from _core_metrics(cores)
        yield headroom(cores)
        yield from _step_metrics(cores)
        yield from _batch_metrics(cores)
        yield from _request_metrics(self._counts())
        yield _admissions(self._gate)


class HeadroomCollector(Collector):
    """The one metric for vLLM's own registry: endpoint pickers read the port that requests go to, and no other."""

    def __init__(self, service: ControlService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """The headroom of the engine."""
        yield headroom(self._service.engine.reports().cores)


def headroom(cores: Iterable[CoreReport]) -> Metric:
    """Seconds that a prompt which comes now may take to be on time."""
    known = [core.headroom_seconds for core in cores if core.headroom_seconds is not None]
    text = "Seconds that a prompt which comes now may take to have its first token in time"
    return _gauge(MetricName.HEADROOM_SECONDS, text, [], [((), max(known))] if known else [])


def _retunes(outcomes: Counter[str], cores: Iterable[CoreReport]) -> Metric:
    by_core = {
        _EXPIRED: sum(core.expiries for core in cores),
        _WATCHDOG: sum(core.state.watchdog_trips for core in cores),
    }
    values = {(outcome,): float(count) for outcome, count in {**outcomes, **by_core}.items()}
    return _counter(MetricName.RETUNES, "Setpoints by what became of them", ["outcome"], values.items())


def _unsupported(unsupported: Mapping[AnyKnob, str]) -> Metric:
    values = {(knob.value, reason): 1.0 for knob, reason in unsupported.items()}
    return _gauge(MetricName.UNSUPPORTED, "Knobs that this engine cannot move", ["knob", "reason"], values.items())


def _core_metrics(cores: Iterable[CoreReport]) -> Iterator[Metric]:
    limits: dict[tuple[str, ...], float] = {}
    ceilings: dict[tuple[str, ...], float] = {}
    single: dict[MetricName, dict[tuple[str, ...], float]] = {name: {} for name in _SINGLE}
    counters: dict[MetricName, dict[tuple[str, ...], float]] = {name: {} for name in _COUNTERS}
    biases: dict[tuple[str, ...], float] = {}
    strategies: dict[tuple[str, ...], float] = {}
    for core in cores:
        engine = str(core.state.engine)
        if core.state.local_bias is not None:
            biases[engine,] = core.state.local_bias
        limits |= {(engine, knob.value): float(value) for knob, value in core.state.effective.given().items()}
        ceilings |= {(engine, name): float(value) for name, value in core.state.ceilings}
        for name, count in _counted(core).items():
            counters[name][engine,] = float(count)
        strategies[engine, core.state.strategy.value, core.state.policy.value] = 1.0
        for name, value in _singles(core).items():
            single[name][engine,] = value
    yield _gauge(MetricName.LIMIT, "Effective live limit", ["engine", "knob"], limits.items())
    yield _gauge(MetricName.CEILING, "Start-up size that no live limit exceeds", ["engine", "knob"], ceilings.items())
    yield _gauge(
        MetricName.STRATEGY, "How requests are admitted now", ["engine", "strategy", "policy"], strategies.items()
    )
    for name, values in single.items():
        yield _gauge(name, _SINGLE[name], ["engine"], values.items())
    yield _gauge(MetricName.LOCAL_BIAS, "What steps take over what the model says", ["engine"], biases.items())
    for name, values in counters.items():
        yield _counter(name, _COUNTERS[name], ["engine"], values.items())


_COUNTERS: Final[Mapping[MetricName, str]] = {
    MetricName.WATCHDOG_TRIPS: "Returns to start values because requests stood still",
    MetricName.MOVED_BEHIND: "Requests that the on-time order gave up as late once",
    MetricName.IN_TIME_AFTER_ALL: "Those of them whose first token came by its deadline",
}


def _counted(core: CoreReport) -> dict[MetricName, int]:
    return {
        MetricName.WATCHDOG_TRIPS: core.state.watchdog_trips,
        MetricName.MOVED_BEHIND: core.state.order.moved_behind,
        MetricName.IN_TIME_AFTER_ALL: core.state.order.in_time_after_all,
    }


_SINGLE: Final[Mapping[MetricName, str]] = {
    MetricName.SETPOINT_EPOCH: "Epoch of the applied setpoint",
    MetricName.SETPOINT_GENERATION: "Generation of the applied setpoint",
    MetricName.RUNNING: "Running requests",
    MetricName.WAITING: "Waiting requests",
    MetricName.KV_CACHE_USAGE: "Fraction of the KV cache in use",
    MetricName.KV_CACHE_TOKENS: "Tokens the KV cache can hold",
    MetricName.RUNNING_KV_TOKENS: "Tokens in the KV cache that the requests of the newest step hold",
    MetricName.LONGEST_STEP_SECONDS: "Longest step up to the setpoint that is applied, and since",
    MetricName.OLDEST_WAITING_SECONDS: "Age of the oldest request that was never admitted",
    MetricName.STEP_BUDGET_SECONDS: "Time a step may take, 0 where the limits alone hold",
    MetricName.BEHIND: "Requests that the on-time order serves behind all others now",
    MetricName.LONGEST_WAIT_BEHIND_SECONDS: "How long the oldest of those has waited",
}


def _singles(core: CoreReport) -> dict[MetricName, float]:
    state = core.state
    applied = state.applied
    return {
        MetricName.SETPOINT_EPOCH: applied.epoch if applied else 0,
        MetricName.SETPOINT_GENERATION: applied.generation if applied else 0,
        MetricName.RUNNING: state.running,
        MetricName.WAITING: state.waiting,
        MetricName.KV_CACHE_USAGE: state.kv_cache_usage,
        MetricName.KV_CACHE_TOKENS: state.kv_cache_tokens,
        MetricName.RUNNING_KV_TOKENS: core.running_kv_tokens,
        MetricName.LONGEST_STEP_SECONDS: state.longest_step_seconds,
        MetricName.OLDEST_WAITING_SECONDS: core.oldest_waiting_seconds,
        MetricName.STEP_BUDGET_SECONDS: core.step_budget_seconds,
        MetricName.BEHIND: state.order.behind,
        MetricName.LONGEST_WAIT_BEHIND_SECONDS: state.order.longest_wait_seconds,
    }


def _step_metrics(cores: Iterable[CoreReport]) -> Iterator[Metric]:
    rows = [(str(core.state.engine), sums) for core in cores for sums in core.state.steps]
    for field, name in STEP_FIELDS.items():
        values = {(engine, str(sums.bucket), sums.kind.value): float(getattr(sums, field)) for engine, sums in rows}
        yield _counter(name, f"Sum over steps: {field.replace('_', ' ')}", ["engine", "bucket", "kind"], values.items())


#: The counters of batches: what each is said to be, its second label, and for each value of it the field of
#: `BatchCounts`.
_BATCHES: Final[Mapping[MetricName, tuple[str, str, Mapping[str, str]]]] = {
    MetricName.TOKENS: (
        "Tokens that steps processed",
        "phase",
        {"prefill": "prefill_tokens", "decode": "decode_tokens"},
    ),
    MetricName.SLOT_SECONDS: (
        "Slots, each for the time of the steps",
        "state",
        {"used": "slots_used", "free": "slots_free", "withheld": "slots_withheld"},
    ),
    MetricName.TOKEN_ROOM: (
        "Tokens that steps with a prompt might have processed",
        "state",
        {"used": "room_used", "free": "room_free"},
    ),
    MetricName.QUEUE_SECONDS: (
        "Seconds that requests waited for their first admission",
        "outcome",
        {"admitted": "admitted_seconds", "left": "left_seconds"},
    ),
    MetricName.QUEUED_REQUESTS: (
        "Requests that waited for their first admission",
        "outcome",
        {"admitted": "admitted", "left": "left"},
    ),
    MetricName.COHORT_TOKENS: (
        "Tokens of requests that are, or would have been, one padded batch",
        "phase",
        {"prompt": "cohort_prompts", "output": "cohort_outputs"},
    ),
    MetricName.COHORT_PADDED_TOKENS: (
        "Tokens that padded batches of them compute",
        "phase",
        {"prompt": "cohort_prompts_padded", "output": "cohort_outputs_padded"},
    ),
}
_BATCHES_ALONE: Final[Mapping[MetricName, tuple[str, str]]] = {
    MetricName.COMPUTED_PROMPT_TOKENS_SQUARED: (
        "Squares of what is computed of each prompt, in tokens",
        "prefill_squares",
    ),
    MetricName.PREEMPTIONS: ("Requests that lost their KV cache, to be computed anew", "preemptions"),
    MetricName.COHORTS: ("Batches that are, or would have been, padded", "cohorts"),
    MetricName.COHORT_REQUESTS: ("Requests in them", "cohort_requests"),
}


def _batch_metrics(cores: Iterable[CoreReport]) -> Iterator[Metric]:
    counts = {str(core.state.engine): core.batches for core in cores}
    for name, (text, label, by_value) in _BATCHES.items():
        values = {
            (engine, value): getattr(each, field)
            for engine, each in counts.items()
            for value, field in by_value.items()
        }
        yield _counter(name, text, ["engine", label], values.items())
    for name, (text, field) in _BATCHES_ALONE.items():
        alone = {(engine,): getattr(each, field) for engine, each in counts.items()}
        yield _counter(name, text, ["engine"], alone.items())
    drafts = {
        (str(core.state.engine), str(number), state): count
        for core in cores
        for number, position in enumerate(core.drafts, start=1)
        for state, count in position._asdict().items()
    }
    text = "Decodes by what became of their drafts"
    yield _counter(MetricName.DRAFT_POSITIONS, text, ["engine", "position", "state"], drafts.items())
    sizes = HistogramMetricFamily(MetricName.BATCH_SIZE.value, "Requests in a step", labels=["engine"])
    for engine, each in counts.items():
        edges = [*(str(float(size)) for size in BATCH_SIZES), "+Inf"]
        sizes.add_metric([engine], [*zip(edges, accumulate(each.steps), strict=True)], each.step_requests)
    yield sizes


def _admissions(gate: Admissions) -> Metric:
    values = {
        ("refused" if reason in REFUSALS else "admitted", reason.value): float(count)
        for reason, count in gate.counts.items()
    }
    return _counter(MetricName.ADMISSIONS, "What the gate said of requests", ["decision", "reason"], values.items())


def _request_metrics(counts: RequestCounts) -> Iterator[Metric]:
    requests = {(outcome,): float(count) for outcome, count in counts.requests.items()}
    classes = {key: float(count) for key, count in counts.classes.items()}
    objectives = {key: float(count) for key, count in counts.objectives.items()}
    together = {key: float(count) for key, count in counts.all_objectives.items()}
    yield _counter(MetricName.REQUESTS, "Requests by outcome", ["outcome"], requests.items())
    yield _counter(MetricName.CLASS_REQUESTS, "Requests by class", ["class", "outcome"], classes.items())
    adapters = {key: float(count) for key, count in counts.adapters.items()}
    adapter_tokens = {(name,): float(count) for name, count in counts.adapter_tokens.items()}
    yield _counter(MetricName.ADAPTER_REQUESTS, "Requests by LoRA adapter", ["adapter", "outcome"], adapters.items())
    yield _counter(
        MetricName.ADAPTER_GENERATED_TOKENS, "Output tokens by LoRA adapter", ["adapter"], adapter_tokens.items()
    )
    unknown = [((), float(counts.unknown_class))]
    yield _counter(MetricName.UNKNOWN_CLASS, "Requests that named a class that there is not", [], unknown)
    yield _counter(MetricName.OBJECTIVE_REQUESTS, "Requests by objective", ["objective", "outcome"], objectives.items())
    still_open = {key: float(count) for key, count in counts.open_objectives.items()}
    yield _gauge(
        MetricName.OPEN_OBJECTIVE_REQUESTS,
        "Open requests by objective, where its outcome is certain",
        ["objective", "outcome"],
        still_open.items(),
    )
    yield _counter(
        MetricName.ALL_OBJECTIVES_REQUESTS, "Requests by all objectives", ["objectives", "outcome"], together.items()
    )
    for name, value in (
        (MetricName.GENERATED_TOKENS, counts.generated_tokens),
        (MetricName.PROMPT_TOKENS, counts.prompt_tokens),
        (MetricName.CACHED_PROMPT_TOKENS, counts.cached_prompt_tokens),
    ):
        yield _counter(name, "Tokens of finished requests", [], [((), float(value))])


def _gauge(name: MetricName, text: str, labels: list[str], samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(name.value, text, labels=labels)
    for key, value in samples:
        family.add_metric(list(key), value)
    return family


def _counter(name: MetricName, text: str, labels: list[str], samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = CounterMetricFamily(name.value.removesuffix("_total"), text, labels=labels)
    for key, value in samples:
        family.add_metric(list(key), value)
    return family
