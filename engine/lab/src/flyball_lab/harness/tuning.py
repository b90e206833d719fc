"""Builders and expectations for the law: who asks for what of which engine."""

from __future__ import annotations

from dataclasses import replace

from flyball_engine.contract import Limits, Metric, StepKind
from flyball_engine.model import StepModel
from flyball_lab.harness.plant import CPU
from flyball_operator.api.v1alpha1 import Mode, Order, Overload
from flyball_operator.tuning.control_input import ControlInput, Workload, margins
from flyball_operator.tuning.observe.signals import CellKey, ObjectiveCounts, RequestLoad, Signals, StepWindow, Sums
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span, TuningSpec

TTFT = LatencyObjective("ttft", Metric.TIME_TO_FIRST_TOKEN, 2.0, 0.01)
TPOT = LatencyObjective("tpot", Metric.TIME_PER_OUTPUT_TOKEN, 0.06, 0.01)
GAP = LatencyObjective("itl", Metric.INTER_TOKEN_LATENCY, 0.25, 0.01)
E2E = LatencyObjective("e2e", Metric.END_TO_END_LATENCY, 10.0, 0.01)
ENVELOPE = Envelope(Span(4, 128), Span(128, 2048))


def workload(**changed: float) -> Workload:
    """A calm chat load on one core."""
    base = Workload(
        arrivals=4.0,
        prompt=120.0,
        uncached=120.0,
        output=40.0,
        ratio=3.0,
        attention=60.0,
        decodes=4.0,
        waiting=0.0,
        kv_tokens=100_000.0,
    )
    return replace(base, **changed)


def inputs(
    *objectives: LatencyObjective,
    model: StepModel = CPU,
    envelope: Envelope = ENVELOPE,
    **load: float,
) -> ControlInput:
    """What the law decides on."""
    return ControlInput(model, workload(**load), objectives, margins(), envelope)


def tuning(
    *objectives: LatencyObjective,
    mode: Mode = Mode.AUTO,
    envelope: Envelope = ENVELOPE,
    overload: Overload = Overload.QUEUE,
    order: Order = Order.ON_TIME,
) -> TuningSpec:
    """What a service's spec says."""
    return TuningSpec(mode, envelope, objectives, overload, order=order)


def limits(seqs: int, tokens: int) -> Limits:
    """Live limits."""
    return Limits(max_num_active_seqs=seqs, max_num_scheduled_tokens=tokens)


def step_window(
    model: StepModel = CPU,
    *,
    start: float = 0.0,
    end: float = 15.0,
    decodes: tuple[int, ...] = (1, 3, 7, 15, 31, 60),
    prefills: tuple[int, ...] = (0, 50, 200, 900),
    steps: int = 20,
    slower: float = 1.0,
) -> StepWindow:
    """A window in which steps of every combination took what the model says, times `slower`."""
    cells: dict[CellKey, Sums] = {}
    for n in decodes:
        for p in prefills:
            seconds = slower * model.seconds(decodes=n, prefill_tokens=p)
            key = CellKey(1 << (n + p - 1).bit_length(), StepKind.MIXED if p else StepKind.DECODE)
            step = Sums(
                steps=steps,
                seconds=steps * seconds,
                seconds_squared=steps * seconds**2,
                tokens=steps * (n + p),
                prefill_tokens=steps * p,
                decodes=steps * n,
                prefill_attention=steps * p * p / 2,
            )
            cells[key] = cells.get(key, Sums()).plus(step)
    return StepWindow(start=start, end=end, cells=cells)


def signals(at: float, *, window: StepWindow | None = None, age: float = 1.0, **load: float) -> Signals:
    """What one tick sees of a calm chat load."""
    base = RequestLoad(
        arrivals=4.0,
        finished=60.0,
        prompt_tokens=60 * 120.0,
        cached_tokens=0.0,
        generated_tokens=60 * 40.0,
        running=4.0,
        waiting=0.0,
        kv_tokens=100_000.0,
        held_tokens=560.0,
    )
    return Signals(
        at=at,
        age_seconds=age,
        window_seconds=15.0,
        cores=1,
        steps=window or step_window(start=at - 15, end=at),
        load=replace(base, **load),
        outcomes={},
    )


def outcome(met: float, violated: float) -> ObjectiveCounts:
    """Counts of a window."""
    return ObjectiveCounts(met, violated)
