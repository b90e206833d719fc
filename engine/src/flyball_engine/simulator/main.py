"""The simulated engine from the command line: a run in virtual time, with what came of it and how fast it was."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from flyball_engine.contract import Limits, Metric, ObjectiveSpec, Setpoint
from flyball_engine.simulator.lengths import SHAPES
from flyball_engine.simulator.presets import PRESETS
from flyball_engine.simulator.requests import Request
from flyball_engine.simulator.virtual import Run, build, retune, run
from flyball_engine.simulator.workload import Phase, TraceError, read_trace, workload


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        print(_run(parsed))
    except TraceError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flyball_engine.simulator",
        description="A simulated engine: vLLM's scheduling over a step-time law.",
    )
    commands = parser.add_subparsers(required=True)
    virtual = commands.add_parser("run", help="a run in virtual time, and how much faster than real time it was")
    virtual.add_argument("--preset", choices=sorted(PRESETS), default="h100-8b")
    virtual.add_argument("--lengths", choices=sorted(SHAPES), default="conversation")
    virtual.add_argument("--rate", type=float, default=20.0, metavar="R", help="requests per second (default 20)")
    virtual.add_argument("--variation", type=float, default=1.0, metavar="CV", help="of the gaps; 1 is Poisson")
    virtual.add_argument("--seconds", type=float, default=600.0, metavar="S", help="simulated (default 600)")
    virtual.add_argument("--trace", type=Path, metavar="CSV", help="instead: TIMESTAMP,ContextTokens,GeneratedTokens")
    virtual.add_argument("--patience", type=float, default=float("inf"), metavar="S", help="clients wait so long")
    virtual.add_argument("--active", type=int, metavar="N", help="max_num_active_seqs")
    virtual.add_argument("--tokens", type=int, metavar="N", help="max_num_scheduled_tokens")
    virtual.add_argument("--threshold", type=int, metavar="N", help="long_prefill_token_threshold")
    virtual.add_argument("--ttft", type=float, default=0.5, metavar="S", help="objective (default 0.5)")
    virtual.add_argument("--tpot", type=float, default=0.03, metavar="S", help="objective (default 0.03)")
    virtual.add_argument("--seed", type=int, default=1)
    return parser


def _run(parsed: argparse.Namespace) -> str:
    preset = PRESETS[parsed.preset]
    requests = _requests(parsed)
    setpoint = Setpoint(
        service="simulated",
        epoch=1,
        generation=1,
        limits=Limits(
            max_num_active_seqs=parsed.active,
            max_num_scheduled_tokens=parsed.tokens,
            long_prefill_token_threshold=parsed.threshold,
        ),
        objectives=(
            ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=parsed.ttft),
            ObjectiveSpec(metric=Metric.TIME_PER_OUTPUT_TOKEN, threshold_seconds=parsed.tpot),
        ),
        expires_seconds=7 * 86_400.0,
    )
    core = build(preset, seed=parsed.seed)
    began = time.process_time()
    played = run(core, requests, until=parsed.seconds, events=[retune(0.0, setpoint)])
    return _report(played, processor=time.process_time() - began)


def _requests(parsed: argparse.Namespace) -> list[Request]:
    if parsed.trace is not None:
        return [one for one in read_trace(parsed.trace, patience=parsed.patience) if one.arrival <= parsed.seconds]
    phase = Phase(
        seconds=parsed.seconds,
        rate=parsed.rate,
        shape=SHAPES[parsed.lengths],
        variation=parsed.variation,
        patience=parsed.patience,
    )
    return workload([phase], Random(parsed.seed + 1))  # noqa: S311 – a simulation is to be repeatable


def _report(played: Run, *, processor: float) -> str:
    counts = played.counts
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.requests.items() if count)
    good = sum(count for (_, outcome), count in counts.all_objectives.items() if outcome == "met")
    lines = [
        f"requests   {len(played.requests)} in {played.seconds:g} s: {outcomes or 'none ended'}",
        f"goodput    {good / played.seconds:.2f} requests/s met all objectives",
        *(
            f"           {count} {outcome} {objective}"
            for (objective, outcome), count in sorted(counts.objectives.items())
        ),
        f"tokens     {counts.generated_tokens / played.seconds:.0f}/s generated",
        f"steps      {sum(sums.steps for sums in played.steps)}, {played.preemptions} preemptions",
        f"speed      {played.seconds / processor:.0f} times real time on one core ({processor:.2f} s)",
    ]
    return "\n".join(lines)
